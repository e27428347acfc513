// v17: as many CTAs as fit on the GPU run for the whole launch and take tile after tile of queries from a
// counter. While the warps finish one tile, the loads of Q, K and V of the next are in flight.
#include <algorithm>

#include "common/blocks/accumulator.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/key_range.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/ring.h"
#include "common/blocks/tile_order.h"
#include "common/elect.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int WARP_M = 32;   // query rows per warp: each operand it loads serves two products
constexpr int BLOCK_N = 64;  // keys per tile
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int M_TILES = WARP_M / MMA_M;
constexpr int S_TILES = BLOCK_N / MMA_N;

// At D = 128 two CTAs would have no room for a second Q; one CTA with twice as many warps has.
template <int HEAD_DIM>
struct Config {
  static constexpr int NUM_WARPS = HEAD_DIM == 64 ? 4 : 8;  // that compute
  static constexpr int CTAS_PER_SM = HEAD_DIM == 64 ? 2 : 1;
  static constexpr int BLOCK_M = NUM_WARPS * WARP_M;  // query rows per tile
  static constexpr int Q_STAGES = 2;
  static constexpr int NUM_STAGES = 3;  // of K and V each
  static constexpr int NUM_THREADS = 32 * NUM_WARPS + 128;
  static constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, CTAS_PER_SM);
  static constexpr int PRODUCER_REGISTERS = 24;
  static constexpr int CONSUMER_REGISTERS = HEAD_DIM == 64 ? 232 : 240;
};

template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, WARP_M, HEAD_DIM, 128>;  // a warp's rows
template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  using C = Config<HEAD_DIM>;
  QTile<Element, HEAD_DIM> q[C::Q_STAGES][C::NUM_WARPS];  // after the loop, O
  KVTile<Element, HEAD_DIM> k[C::NUM_STAGES];
  KVTile<Element, HEAD_DIM> v[C::NUM_STAGES];
  int tile[C::Q_STAGES];  // which tile of queries Q is
  Ring<C::Q_STAGES> ring_q;
  Ring<C::NUM_STAGES> ring_k, ring_v;
};

struct TensorMaps {
  TensorMap q, k, v, o;
};

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(Config<HEAD_DIM>::NUM_THREADS, Config<HEAD_DIM>::CTAS_PER_SM)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     int group_size, int num_tiles) {
  using C = Config<HEAD_DIM>;
  constexpr int O_TILES = HEAD_DIM / MMA_N;
  constexpr int K_STEPS = HEAD_DIM / MMA_K;  // of Q K^T
  constexpr bool Q_IN_REGISTERS = HEAD_DIM == 64;
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  // The shuffle tells the compiler that the number is the same in all lanes of a warp. So the compiler needs
  // no register per lane for what it computes from the number.
  const int warp_id = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane_id = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    shared.ring_q.init(C::NUM_WARPS);
    shared.ring_k.init(C::NUM_WARPS);
    shared.ring_v.init(C::NUM_WARPS);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producer.
  if (warp_id >= C::NUM_WARPS) {
    warpgroup_reg_dealloc<C::PRODUCER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
    if (warp_id > C::NUM_WARPS || !elect_one()) return;
    int kv_count = 0;  // tiles of K and V so far
    int tile = blockIdx.x;
    for (int q_count = 0;; ++q_count) {
      const int q_stage = q_count % C::Q_STAGES;
      const bool none_left = tile >= num_tiles;
      shared.ring_q.producer_wait(q_count);
      shared.tile[q_stage] = tile;
      uint64_t* const bar_q_full =
          shared.ring_q.producer_announce(q_count, none_left ? 0 : sizeof(shared.q[0]));
      if (none_left) return;
      const auto [first_query, head, batch] = query_tile<C::BLOCK_M>(params, tile, group_size);
      for (int w = 0; w < C::NUM_WARPS; ++w)
        tma_load_5d(&shared.q[q_stage][w], maps.q, bar_q_full, 0, first_query + w * WARP_M, 0, head, batch);
      const KeyRange keys = key_range<CAUSAL>(params, batch, first_query, C::BLOCK_M);
      const int kv_head = params.kv_head(head);
      for (int kv_tile = 0; kv_tile < keys.num_tiles(BLOCK_N); ++kv_tile, ++kv_count) {
        const int first_key = keys.first_key(kv_tile, BLOCK_N);
        const int stage = kv_count % C::NUM_STAGES;
        uint64_t* const bar_k_full = shared.ring_k.producer_acquire(kv_count, sizeof(KV));
        tma_load_5d(&shared.k[stage], maps.k, bar_k_full, 0, first_key, 0, kv_head, batch);
        uint64_t* const bar_v_full = shared.ring_v.producer_acquire(kv_count, sizeof(KV));
        tma_load_5d(&shared.v[stage], maps.v, bar_v_full, 0, first_key, 0, kv_head, batch);
      }
      tile = gridDim.x + atomicAdd(static_cast<int*>(params.workspace), 1);
    }
  }

  // Consumers.
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  // The place in a tile where this lane begins; at() moves on by distances that the compiler knows.
  const int q_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));
  const int k_offset = KV::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const int v_offset = KV::offset_of(operand_row(lane_id), operand_col(lane_id));
  const float scale = params.softmax_scale_log2;
  // With eight warps, w and w + 4 share a scheduler. Their rows lie at opposite ends of the tile, so that all
  // four schedulers have equal work.
  const int slot = warp_id < 4 ? warp_id : C::NUM_WARPS + 3 - warp_id;
  int kv_count = 0;  // tiles of K and V so far
  for (int q_count = 0;; ++q_count) {
    const int q_stage = q_count % C::Q_STAGES;
    shared.ring_q.consumer_wait(q_count);
    const int tile = shared.tile[q_stage];
    if (tile >= num_tiles) return;
    const auto [first_query, head, batch] = query_tile<C::BLOCK_M>(params, tile, group_size);
    const int warp_query = first_query + slot * WARP_M;
    Q& q = shared.q[q_stage][slot];
    const int num_kv_tiles = key_range<CAUSAL>(params, batch, first_query, C::BLOCK_M).num_tiles(BLOCK_N);
    const KeyRange keys = key_range<CAUSAL>(params, batch, warp_query, WARP_M);

    // Of the rows acc_row + r * 8 of each 16 x 8 tile.
    float row_base[M_TILES][2];      // P is relative to it: an earlier maximum of the row's scores, scaled
    float row_sum[M_TILES][2] = {};  // of this lane's columns only: the lanes' sums are added after the loop
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) row_base[m][0] = row_base[m][1] = -INFINITY;
    float acc_o[M_TILES][O_TILES][4] = {};

    uint32_t frag_q[Q_IN_REGISTERS ? K_STEPS : 1][M_TILES][4];
    if constexpr (Q_IN_REGISTERS) load_q(frag_q, q, q_offset);
    const int num_own_tiles = keys.num_tiles(BLOCK_N);
    for (int kv_tile = 0; kv_tile < num_own_tiles; ++kv_tile, ++kv_count) {
      const int stage = kv_count % C::NUM_STAGES;

      // S = Q K^T.
      shared.ring_k.consumer_wait(kv_count);
      float acc_s[M_TILES][S_TILES][4] = {};
#pragma unroll
      for (int step = 0; step < K_STEPS; ++step) {
        auto& a = frag_q[Q_IN_REGISTERS ? step : 0];
        if constexpr (!Q_IN_REGISTERS) {
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(a[m], q.at(q_offset, m * MMA_M, step * MMA_K));
        }
#pragma unroll
        for (int n = 0; n < S_TILES; n += 2) {
          uint32_t frag_k[4];  // two B operands
          ldmatrix_x4(frag_k, shared.k[stage].at(k_offset, n * MMA_N, step * MMA_K));
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            mma_m16n8k16<Element>(acc_s[m][n], a[m], {frag_k[0], frag_k[1]});
            mma_m16n8k16<Element>(acc_s[m][n + 1], a[m], {frag_k[2], frag_k[3]});
          }
        }
      }
      shared.ring_k.warp_release(kv_count, lane_id);

      const bool needs_mask = keys.needs_mask(kv_tile * BLOCK_N, BLOCK_N);
      const float growth = growth_bound(acc_s, row_base, scale);
      if (__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) {
        if (needs_mask) {
          const int first_key = keys.first_key(kv_tile, BLOCK_N);
          mask_scores<CAUSAL>(acc_s, params, keys.kv_len, warp_query + acc_row, first_key + acc_col);
          mask_first_keys(acc_s, kv_tile * BLOCK_N - first_key, acc_col);
        }
        rescale(acc_s, scale, row_base, row_sum, acc_o);
      }

      // O += P V, with 16 keys of P at a time. The first 16 are made while V may still be in flight.
#pragma unroll
      for (int step = 0; step < BLOCK_N / MMA_K; ++step) {
        uint32_t frag_p[M_TILES][4];
        make_p<Element>(frag_p, acc_s, step, scale, row_base, row_sum);
        if (step == 0) shared.ring_v.consumer_wait(kv_count);
#pragma unroll
        for (int n = 0; n < O_TILES; n += 2) {
          uint32_t frag_v[4];  // two B operands
          ldmatrix_x4_trans(frag_v, shared.v[stage].at(v_offset, step * MMA_K, n * MMA_N));
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            mma_m16n8k16<Element>(acc_o[m][n], frag_p[m], {frag_v[0], frag_v[1]});
            mma_m16n8k16<Element>(acc_o[m][n + 1], frag_p[m], {frag_v[2], frag_v[3]});
          }
        }
      }
      shared.ring_v.warp_release(kv_count, lane_id);
    }
    // O, rounded, goes where this warp's Q was, to be stored by TMA.
    finish_rows(params, batch, head, warp_query + acc_row, lane_id, row_base, row_sum);
    __syncwarp();  // all lanes have read Q
    store_normalised(q, Q::offset_of(acc_row, acc_col), acc_o, row_sum);
    fence_proxy_async();  // makes what this lane has written visible to TMA
    __syncwarp();         // this warp's O is complete
    if (lane_id == 0) {
      tma_store_5d(maps.o, &q, 0, warp_query, 0, head, batch);  // rows beyond the end are left out
      tma_store_commit();
      tma_store_wait_read<0>();  // the place of Q is free
      shared.ring_q.consumer_release(q_count);
    }
    // The warp releases tiles beyond its own diagonal as soon as all of its lanes have waited for them.
    for (int kv_tile = num_own_tiles; kv_tile < num_kv_tiles; ++kv_tile, ++kv_count) {
      shared.ring_k.consumer_wait(kv_count);
      shared.ring_k.warp_release(kv_count, lane_id);
      shared.ring_v.consumer_wait(kv_count);
      shared.ring_v.warp_release(kv_count, lane_id);
    }
  }
}

__global__ void reset_counter(int* counter) { *counter = 0; }

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  const TensorMaps maps = {.q = make_tensor_map<Q>(params.q),
                           .k = make_tensor_map<KV>(params.k),
                           .v = make_tensor_map<KV>(params.v),
                           .o = make_tensor_map<Q>(params.o)};
  using C = Config<HEAD_DIM>;
  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  launch(reset_counter, dim3(1), dim3(1), 0, stream, static_cast<int*>(params.workspace));
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, dim3(std::min(num_tiles, num_sms() * C::CTAS_PER_SM)),
         dim3(C::NUM_THREADS), sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, maps,
         heads_per_group<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "Each CTA takes tiles from a counter and loads the next before the current ends",
    .removes = "the start and the end of each CTA",
    .part = Part::kMmaSync,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .spills = "at D = 128 O, S and the operands need all of the registers that a consumer has",
    .workspace_bytes = [](const AttentionCall&) { return sizeof(int); },
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
