// v22: while the tensor cores multiply P by V, the warpgroup computes the next tile's exponentials. Q K^T of
// the next tile is issued in front of P V of this one.
#include <algorithm>

#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/ring.h"
#include "common/blocks/tile_order.h"
#include "common/elect.h"
#include "common/named_barrier.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/stmatrix.h"
#include "common/swizzle.h"
#include "common/wgmma.h"

namespace STEP_NAMESPACE {

constexpr int NUM_WARPGROUPS = 2;  // that compute
constexpr int NUM_WARPS = 4 * NUM_WARPGROUPS;
constexpr int WARPGROUP_M = 64;                        // query rows per warpgroup: 16 for each of its warps
constexpr int BLOCK_M = NUM_WARPGROUPS * WARPGROUP_M;  // query rows per tile
constexpr int BLOCK_N = 128;                           // keys per tile
constexpr int Q_STAGES = 2;
constexpr int NUM_STAGES = 2;  // of K and V each
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int S_TILES = BLOCK_N / MMA_N;

constexpr int NUM_THREADS = 32 * NUM_WARPS + 128;
constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, 1);
constexpr int PRODUCER_REGISTERS = 24;
constexpr int CONSUMER_REGISTERS = 240;

template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, WARPGROUP_M, HEAD_DIM, 128>;  // a warpgroup's rows
template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  QTile<Element, HEAD_DIM> q[Q_STAGES][NUM_WARPGROUPS];  // after the loop, O
  KVTile<Element, HEAD_DIM> k[NUM_STAGES];
  KVTile<Element, HEAD_DIM> v[NUM_STAGES];
  int tile[Q_STAGES];  // which tile of queries Q is
  Ring<Q_STAGES> ring_q;
  Ring<NUM_STAGES> ring_k, ring_v;
};

struct TensorMaps {
  TensorMap q, k, v, o;
};

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     int group_size, int num_tiles) {
  constexpr int O_TILES = HEAD_DIM / MMA_N;
  constexpr int K_STEPS = HEAD_DIM / MMA_K;  // of Q K^T
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  // The shuffle tells the compiler that the number is the same in all lanes of a warp. So the compiler needs
  // no register per lane for what it computes from the number.
  const int warp_id = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane_id = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    shared.ring_q.init(NUM_WARPGROUPS);
    shared.ring_k.init(NUM_WARPS);
    shared.ring_v.init(NUM_WARPS);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producer.
  if (warp_id >= NUM_WARPS) {
    warpgroup_reg_dealloc<PRODUCER_REGISTERS, REGISTERS_AT_LAUNCH>();
    if (warp_id > NUM_WARPS || !elect_one()) return;
    int kv_count = 0;  // tiles of K and V so far
    int tile = blockIdx.x;
    for (int q_count = 0;; ++q_count) {
      const int q_stage = q_count % Q_STAGES;
      const bool none_left = tile >= num_tiles;
      shared.ring_q.producer_wait(q_count);
      shared.tile[q_stage] = tile;
      uint64_t* const bar_q_full =
          shared.ring_q.producer_announce(q_count, none_left ? 0 : sizeof(shared.q[0]));
      if (none_left) return;
      const auto [first_query, head, batch] = query_tile<BLOCK_M>(params, tile, group_size);
      for (int w = 0; w < NUM_WARPGROUPS; ++w)
        tma_load_5d(&shared.q[q_stage][w], maps.q, bar_q_full, 0, first_query + w * WARPGROUP_M, 0, head,
                    batch);
      const KeyRange keys = key_range<CAUSAL>(params, batch, first_query, BLOCK_M);
      const int kv_head = params.kv_head(head);
      for (int kv_tile = 0; kv_tile < keys.num_tiles(BLOCK_N); ++kv_tile, ++kv_count) {
        const int first_key = keys.first_key(kv_tile, BLOCK_N);
        const int stage = kv_count % NUM_STAGES;
        uint64_t* const bar_k_full = shared.ring_k.producer_acquire(kv_count, sizeof(KV));
        tma_load_5d(&shared.k[stage], maps.k, bar_k_full, 0, first_key, 0, kv_head, batch);
        uint64_t* const bar_v_full = shared.ring_v.producer_acquire(kv_count, sizeof(KV));
        tma_load_5d(&shared.v[stage], maps.v, bar_v_full, 0, first_key, 0, kv_head, batch);
      }
      tile = gridDim.x + atomicAdd(static_cast<int*>(params.workspace), 1);
    }
  }

  // Consumers.
  warpgroup_reg_alloc<CONSUMER_REGISTERS, REGISTERS_AT_LAUNCH>();
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  const int warpgroup = warp_id / 4;
  const int warp_row = warp_id % 4 * 16;  // of the warpgroup's rows
  // Where this lane begins to store O.
  const int o_offset = Q::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const float scale = params.softmax_scale_log2;
  int kv_count = 0;  // tiles of K and V so far
  for (int q_count = 0;; ++q_count) {
    const int q_stage = q_count % Q_STAGES;
    shared.ring_q.consumer_wait(q_count);
    const int tile = shared.tile[q_stage];
    if (tile >= num_tiles) return;
    const auto [first_query, head, batch] = query_tile<BLOCK_M>(params, tile, group_size);
    const int warpgroup_query = first_query + warpgroup * WARPGROUP_M;
    const int query = warpgroup_query + warp_row + acc_row;  // of this lane's first row
    Q& q = shared.q[q_stage][warpgroup];
    const int num_kv_tiles = key_range<CAUSAL>(params, batch, first_query, BLOCK_M).num_tiles(BLOCK_N);
    const KeyRange keys = key_range<CAUSAL>(params, batch, warpgroup_query, WARPGROUP_M);

    // Of the rows acc_row + r * 8.
    float row_base[1][2] = {{-INFINITY, -INFINITY}};  // what P is relative to: a maximum so far, scaled
    float row_sum[1][2] = {};                         // of this lane's columns only: added up in the end
    float acc_o[1][O_TILES][4] = {};

    float acc_s[1][S_TILES][4];
    uint32_t frag_p[BLOCK_N / MMA_K][1][4];
    // S = Q K^T, issued.
    const auto issue_qk = [&](int kv_index) {
      const KV& k = shared.k[kv_index % NUM_STAGES];
#pragma unroll
      for (int step = 0; step < K_STEPS; ++step)
        wgmma_m64k16<Element>(wgmma_accumulator(acc_s), make_smem_descriptor(q, 0, step * MMA_K),
                              make_smem_descriptor(k, 0, step * MMA_K), step > 0);
      warpgroup_commit_batch();
    };
    // O += P V, issued. V has a row per key, and B's N runs along it.
    const auto issue_pv = [&](int kv_index) {
      const KV& v = shared.v[kv_index % NUM_STAGES];
#pragma unroll
      for (int step = 0; step < BLOCK_N / MMA_K; ++step)
        wgmma_m64k16<Element, Major::kMN>(wgmma_accumulator(acc_o), frag_p[step][0],
                                          make_smem_descriptor(v, step * MMA_K, 0), true);
      warpgroup_commit_batch();
    };

    const int num_own_tiles = keys.num_tiles(BLOCK_N);
    if (num_own_tiles > 0) {
      shared.ring_k.consumer_wait(kv_count);
      warpgroup_arrive();
      issue_qk(kv_count);
      warpgroup_wait<0>();  // S is there
      shared.ring_k.warp_release(kv_count, lane_id);
      update_base<CAUSAL, BLOCK_N>(acc_s, params, keys, 0, 0, query, acc_col, row_base, row_sum, acc_o);
      exponentiate(acc_s, scale, row_base, row_sum);
      pack_p<Element>(frag_p, acc_s);
      for (int kv_tile = 1; kv_tile < num_own_tiles; ++kv_tile, ++kv_count) {
        // EXERCISE 1: issue Q K^T of the next tile, then P V of this one, and wait only for the first,
        // because exponentials need S and not O.
        shared.ring_v.consumer_wait(kv_count);
        warpgroup_arrive();
        issue_pv(kv_count);
        warpgroup_wait<0>();  // O is there
        shared.ring_v.warp_release(kv_count, lane_id);
        shared.ring_k.consumer_wait(kv_count + 1);
        warpgroup_arrive();
        issue_qk(kv_count + 1);
        warpgroup_wait<0>();  // S is there
        shared.ring_k.warp_release(kv_count + 1, lane_id);
        update_base<CAUSAL, BLOCK_N>(acc_s, params, keys, kv_tile, 0, query, acc_col, row_base, row_sum,
                                     acc_o);
        exponentiate(acc_s, scale, row_base, row_sum);
        pack_p<Element>(frag_p, acc_s);
      }
      shared.ring_v.consumer_wait(kv_count);
      warpgroup_arrive();
      issue_pv(kv_count);
      warpgroup_wait<0>();
      shared.ring_v.warp_release(kv_count++, lane_id);
    }

    // O, rounded, goes where this warpgroup's Q was, to be stored by TMA.
    finish_rows(params, batch, head, query, lane_id, row_base, row_sum);
    const float top = fast_inverse_of(row_sum[0][0]), bottom = fast_inverse_of(row_sum[0][1]);
#pragma unroll
    for (int n = 0; n < O_TILES; n += 2) {
      const float *left = acc_o[0][n], *right = acc_o[0][n + 1];
      stmatrix_x4(q.at(o_offset, 0, n * MMA_N),
                  {scaled2<Element>(left, top), scaled2<Element>(left + 2, bottom),
                   scaled2<Element>(right, top), scaled2<Element>(right + 2, bottom)});
    }
    fence_proxy_async();           // makes what this lane has written visible to TMA
    bar_sync(1 + warpgroup, 128);  // this warpgroup's O is complete
    if (threadIdx.x % 128 == 0) {
      tma_store_5d(maps.o, &q, 0, warpgroup_query, 0, head, batch);  // rows beyond the end are left out
      tma_store_commit();
      tma_store_wait_read<0>();  // the place of Q is free
      shared.ring_q.consumer_release(q_count);
    }
    // A warp releases tiles beyond its own diagonal unread, as soon as all of its lanes know that they have
    // come.
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
  const int num_tiles = ceil_div(params.seqlen_q, BLOCK_M) * params.num_heads_q * params.batch;
  launch(reset_counter, dim3(1), dim3(1), 0, stream, static_cast<int*>(params.workspace));
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, dim3(std::min(num_tiles, num_sms())), dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, maps,
         heads_per_group<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "Warps compute the next tile's exponentials while tensor cores multiply P by V",
    .removes = "turns of softmax and products",
    .part = Part::kHopper,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = [](const AttentionCall&) { return sizeof(int); },
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
