// v16: TMA and a producer again, as in v10, but the producer is a warpgroup, which gives registers to the
// warps that compute (setmaxnreg). The loop has no barrier of the whole CTA left: each warp goes through the
// tiles, and stores its rows of O, independently of the others.
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

constexpr int NUM_WARPS = 4;                 // that compute
constexpr int WARP_M = 32;                   // query rows per warp: each operand it loads serves two products
constexpr int BLOCK_M = NUM_WARPS * WARP_M;  // query rows per CTA
constexpr int BLOCK_N = 64;                  // keys per tile
constexpr int NUM_STAGES = 2;                // of K and V each: one is computed on while the other is filled
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int M_TILES = WARP_M / MMA_M;
constexpr int S_TILES = BLOCK_N / MMA_N;

// setmaxnreg changes the registers of a whole warpgroup, four warps. So the producer is a warpgroup, though
// one of its threads does all the work. Two CTAs of 256 threads start with 128 registers a thread; the
// consumers take what the producers release.
constexpr int CTAS_PER_SM = 2;
constexpr int NUM_THREADS = 32 * NUM_WARPS + 128;
constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, CTAS_PER_SM);
constexpr int PRODUCER_REGISTERS = 24;
constexpr int CONSUMER_REGISTERS = 232;

template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, WARP_M, HEAD_DIM, 128>;  // a warp's rows
template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  QTile<Element, HEAD_DIM> q[NUM_WARPS];  // after the loop, O
  KVTile<Element, HEAD_DIM> k[NUM_STAGES];
  KVTile<Element, HEAD_DIM> v[NUM_STAGES];
  uint64_t bar_q_full;
  Ring<NUM_STAGES> ring_k, ring_v;
};

struct TensorMaps {
  TensorMap q, k, v, o;
};

// The last tile of keys ends with the last key, so that what lies beyond is not loaded at all: it may be NaN,
// and 0 * NaN is NaN. Keys that the previous tile has already processed are masked.
__device__ inline int first_key_of(int kv_tile, int kv_len) {
  return min(kv_tile * BLOCK_N, kv_len - BLOCK_N);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     int group_size) {
  constexpr int O_TILES = HEAD_DIM / MMA_N;
  constexpr int K_STEPS = HEAD_DIM / MMA_K;  // of Q K^T
  constexpr bool Q_IN_REGISTERS = HEAD_DIM == 64;
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const auto [first_query, head, batch] = query_tile<BLOCK_M>(params, blockIdx.x, group_size);
  // The shuffle tells the compiler that the number is the same in all lanes of a warp. So the compiler needs
  // no register per lane for what it computes from the number.
  const int warp_id = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane_id = threadIdx.x % 32;
  const int num_kv_tiles = key_range<CAUSAL>(params, batch, first_query, BLOCK_M).num_tiles(BLOCK_N);

  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_q_full, 1);
    shared.ring_k.init(NUM_WARPS);
    shared.ring_v.init(NUM_WARPS);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producer.
  if (warp_id >= NUM_WARPS) {
    warpgroup_reg_dealloc<PRODUCER_REGISTERS, REGISTERS_AT_LAUNCH>();
    if (warp_id > NUM_WARPS || !elect_one()) return;
    mbarrier_arrive_expect_tx(&shared.bar_q_full, sizeof(shared.q));
    for (int w = 0; w < NUM_WARPS; ++w)
      tma_load_5d(&shared.q[w], maps.q, &shared.bar_q_full, 0, first_query + w * WARP_M, 0, head, batch);
    const int kv_len = params.kv_length(batch);
    const int kv_head = params.kv_head(head);
    for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
      const int first_key = first_key_of(kv_tile, kv_len);
      const int stage = kv_tile % NUM_STAGES;
      uint64_t* const bar_k_full = shared.ring_k.producer_acquire(kv_tile, sizeof(KV));
      tma_load_5d(&shared.k[stage], maps.k, bar_k_full, 0, first_key, 0, kv_head, batch);
      uint64_t* const bar_v_full = shared.ring_v.producer_acquire(kv_tile, sizeof(KV));
      tma_load_5d(&shared.v[stage], maps.v, bar_v_full, 0, first_key, 0, kv_head, batch);
    }
    return;  // from here on, no __syncthreads
  }

  // Consumers.
  warpgroup_reg_alloc<CONSUMER_REGISTERS, REGISTERS_AT_LAUNCH>();
  const int warp_query = first_query + warp_id * WARP_M;
  Q& q = shared.q[warp_id];
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  // The place in a tile where this lane begins; at() moves on by distances that the compiler knows.
  const int q_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));
  const int k_offset = KV::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const int v_offset = KV::offset_of(operand_row(lane_id), operand_col(lane_id));
  const KeyRange keys = key_range<CAUSAL>(params, batch, warp_query, WARP_M);
  const float scale = params.softmax_scale_log2;

  // Of the rows acc_row + r * 8 of each 16 x 8 tile.
  float row_base[M_TILES][2];      // P is relative to it: an earlier maximum of the row's scores, scaled
  float row_sum[M_TILES][2] = {};  // of this lane's columns only: the lanes' sums are added after the loop
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) row_base[m][0] = row_base[m][1] = -INFINITY;
  float acc_o[M_TILES][O_TILES][4] = {};

  mbarrier_wait(&shared.bar_q_full, 0);  // Q has arrived
  uint32_t frag_q[Q_IN_REGISTERS ? K_STEPS : 1][M_TILES][4];
  if constexpr (Q_IN_REGISTERS) {
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(frag_q[step][m], q.at(q_offset, m * MMA_M, step * MMA_K));
    }
  }
  const int num_own_tiles = keys.num_tiles(BLOCK_N);
  for (int kv_tile = 0; kv_tile < num_own_tiles; ++kv_tile) {
    const int stage = kv_tile % NUM_STAGES;

    // S = Q K^T.
    shared.ring_k.consumer_wait(kv_tile);
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
    __syncwarp();  // all lanes have read K
    if (lane_id == 0) shared.ring_k.consumer_release(kv_tile);

    const bool needs_mask = keys.needs_mask(kv_tile * BLOCK_N, BLOCK_N);
    const float growth = growth_bound(acc_s, row_base, scale);  // not behind ||: that would be a branch
    if (__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) {
      if (needs_mask) {
        const int key = first_key_of(kv_tile, keys.kv_len) + acc_col;  // of the lane's first score
        mask_scores<CAUSAL>(acc_s, params, keys.kv_len, warp_query + acc_row, key);
#pragma unroll
        for (int i = 0; i < M_TILES * S_TILES * 4; ++i) {
          if (key + i / 4 % S_TILES * MMA_N + i % 2 < kv_tile * BLOCK_N)  // the previous tile had it
            acc_s[i / 4 / S_TILES][i / 4 % S_TILES][i % 4] = -INFINITY;
        }
      }
      rescale(acc_s, scale, row_base, row_sum, acc_o);
    }

    // O += P V, with 16 keys of P at a time. The first 16 are made while V may still be in flight.
#pragma unroll
    for (int step = 0; step < BLOCK_N / MMA_K; ++step) {
      uint32_t frag_p[M_TILES][4];
      make_p<Element>(frag_p, acc_s, step, scale, row_base, row_sum);
      if (step == 0) shared.ring_v.consumer_wait(kv_tile);
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
    __syncwarp();  // all lanes have read V
    if (lane_id == 0) shared.ring_v.consumer_release(kv_tile);
  }
  // The warp releases the tiles beyond the diagonal of its rows without reading them; other warps need them.
  for (int kv_tile = num_own_tiles; kv_tile < num_kv_tiles; ++kv_tile) {
    shared.ring_k.consumer_wait(kv_tile);
    if (lane_id == 0) shared.ring_k.consumer_release(kv_tile);
    shared.ring_v.consumer_wait(kv_tile);
    if (lane_id == 0) shared.ring_v.consumer_release(kv_tile);
  }

  // O, rounded, goes where this warp's Q was, to be stored by TMA.
  finish_rows(params, batch, head, warp_query + acc_row, lane_id, row_base, row_sum);
  __syncwarp();  // all lanes have read Q
  store_normalised(q, Q::offset_of(acc_row, acc_col), acc_o, row_sum);
  fence_proxy_async();  // makes what this lane has written visible to TMA
  __syncwarp();         // this warp's O is complete
  if (elect_one()) {
    tma_store_5d(maps.o, &q, 0, warp_query, 0, head, batch);  // rows beyond the end are left out
    tma_store_commit();
    tma_store_wait_read<0>();  // the CTA keeps its shared memory only until its last thread exits
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  const TensorMaps maps = {.q = make_tensor_map<Q>(params.q),
                           .k = make_tensor_map<KV>(params.k),
                           .v = make_tensor_map<KV>(params.v),
                           .o = make_tensor_map<Q>(params.o)};
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M) * params.num_heads_q * params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, maps,
         heads_per_group<HEAD_DIM, CAUSAL>(params));
}

constexpr StepInfo kStep = {
    .title = "A producer warpgroup loads by TMA and gives registers to the computing warps",
    .removes = "copy instructions, barriers, the limit of 168 registers",
    .part = Part::kMmaSync,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .spills = "at D = 128 O, S and the operands need all of the registers that a consumer has",
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
