// v10: a fifth warp, the producer, does nothing but load. It requests K and V tiles from TMA, two ahead,
// while the four consumer warps compute; mbarriers tell each side how far the other is. TMA swizzles what it
// loads, so no row is padded.
#include "common/elect.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mbarrier.h"
#include "common/mma.h"
#include "common/named_barrier.h"
#include "common/pack.h"
#include "common/step.h"
#include "common/swizzle.h"
#include "common/tma.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;    // query rows per CTA
constexpr int BLOCK_N = 64;    // keys per tile
constexpr int NUM_STAGES = 2;  // of K and V each: one is computed on while the other is filled
constexpr int NUM_CONSUMER_WARPS = 4;
constexpr int NUM_CONSUMERS = 32 * NUM_CONSUMER_WARPS;
constexpr int PRODUCER_WARP = NUM_CONSUMER_WARPS;
constexpr int NUM_THREADS = NUM_CONSUMERS + 32;

// The consumer warps form a 2 x 2 grid over a tile: a warp owns 32 rows and half of the columns of S and of
// O. Each operand that the warp loads serves two products or more.
constexpr int WARP_M = 32;
constexpr int WARPS_N = 2;
constexpr int S_WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int M_TILES = WARP_M / MMA_M;
constexpr int S_TILES = S_WARP_N / MMA_N;

// TMA lays tiles out in rows of SWIZZLE_BYTES, with the chunks of 16 bytes of each row in an order that
// depends on the row. The 8 rows of 16 bytes that ldmatrix reads at once then lie in different banks.
constexpr int SWIZZLE_BYTES = 128;
template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, BLOCK_M, HEAD_DIM, SWIZZLE_BYTES>;
template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, SWIZZLE_BYTES>;
template <typename Element>
using PTile = SwizzledTile<Element, BLOCK_M, BLOCK_N, 128>;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  QTile<Element, HEAD_DIM> q;  // after the loop, O
  KVTile<Element, HEAD_DIM> k[NUM_STAGES];
  KVTile<Element, HEAD_DIM> v[NUM_STAGES];
  PTile<Element> p;                  // probabilities, rounded to what the tensor cores take
  float half_max[WARPS_N][BLOCK_M];  // of the half of a row that one warp holds
  float half_sum[WARPS_N][BLOCK_M];  // of all tiles: exchanged once, after the loop
  // Full: TMA has brought the tile. Empty: every consumer warp is done with it.
  uint64_t bar_q_full;
  uint64_t bar_k_full[NUM_STAGES], bar_k_empty[NUM_STAGES];
  uint64_t bar_v_full[NUM_STAGES], bar_v_empty[NUM_STAGES];
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// For how many CTAs the compiler must limit registers. Each of an SM's four schedulers has 16,384 registers.
// Three CTAs have 15 warps, up to 4 for a scheduler, with 128 registers a thread; two have 10 warps, up to 3
// for a scheduler, with 168. At D = 128 shared memory allows two CTAs.
template <int HEAD_DIM>
constexpr int MIN_CTAS_PER_SM = HEAD_DIM == 64 ? 3 : 2;

struct TensorMaps {
  TensorMap q, k, v, o;
};

// Named barriers for the consumers. The producer does not arrive, so __syncthreads (barrier 0) cannot serve.
constexpr int BAR_ROWS = 1;  // and 2: for the two warps that share 32 rows
constexpr int BAR_CONSUMERS = 3;

// Reductions over the four lanes that share a row of an accumulator; all four get the result.
__device__ float quad_reduce_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ float quad_reduce_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, MIN_CTAS_PER_SM<HEAD_DIM>)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps) {
  constexpr int O_WARP_N = HEAD_DIM / WARPS_N;
  constexpr int O_TILES = O_WARP_N / MMA_N;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int first_query = blockIdx.x * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;

  // The loop over keys ends at the last one that any row of the tile sees. Only tiles that reach beyond the
  // keys that the first row sees need a mask.
  const int kv_len = params.kv_length(batch);
  const int last_query = min(first_query + BLOCK_M, params.seqlen_q) - 1;
  const int kv_end = params.template visible_keys<CAUSAL>(last_query, kv_len);
  const int unmasked_end = params.template visible_keys<CAUSAL>(first_query, kv_len);
  const int num_kv_tiles = ceil_div(kv_end, BLOCK_N);

  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_q_full, 1);  // the producer's announcement
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(&shared.bar_k_full[stage], 1);
      mbarrier_init(&shared.bar_v_full[stage], 1);
      mbarrier_init(&shared.bar_k_empty[stage], NUM_CONSUMER_WARPS);
      mbarrier_init(&shared.bar_v_empty[stage], NUM_CONSUMER_WARPS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producer.
  if (warp_id == PRODUCER_WARP) {
    if (elect_one()) {
      mbarrier_arrive_expect_tx(&shared.bar_q_full, sizeof(shared.q));
      tma_load_5d(&shared.q, maps.q, &shared.bar_q_full, 0, first_query, 0, head, batch);
      const int kv_head = params.kv_head(head);
      for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
        const int first_key = kv_tile * BLOCK_N;
        const int stage = kv_tile % NUM_STAGES;
        const int phase = kv_tile / NUM_STAGES % 2;
        // Phase 0 of an empty barrier completes when the consumers are done with the stage's first tile. For
        // that tile there is nothing to wait for: on a new barrier a wait for parity 1 returns.
        mbarrier_wait(&shared.bar_k_empty[stage], phase ^ 1);
        fence_proxy_async();  // orders the consumers' ldmatrix before TMA's writes
        mbarrier_arrive_expect_tx(&shared.bar_k_full[stage], sizeof(shared.k[stage]));
        tma_load_5d(&shared.k[stage], maps.k, &shared.bar_k_full[stage], 0, first_key, 0, kv_head, batch);
        mbarrier_wait(&shared.bar_v_empty[stage], phase ^ 1);
        fence_proxy_async();
        mbarrier_arrive_expect_tx(&shared.bar_v_full[stage], sizeof(shared.v[stage]));
        tma_load_5d(&shared.v[stage], maps.v, &shared.bar_v_full[stage], 0, first_key, 0, kv_head, batch);
      }
    }
    return;  // from here on, no __syncthreads
  }

  // Consumers.
  const int warp_row = warp_id / WARPS_N * WARP_M;
  const int warp_half = warp_id % WARPS_N;
  const int s_warp_col = warp_half * S_WARP_N;
  const int o_warp_col = warp_half * O_WARP_N;

  // What a lane holds of a 16 x 8 accumulator: two columns each of rows acc_row and acc_row + 8.
  const int acc_row = lane_id / 4;
  const int acc_col = lane_id % 4 * 2;
  // Which row of a 16 x 16 block it passes to ldmatrix, which loads four 8 x 8 matrices. Q and P: in the
  // order of A's registers, first down, then right. V, loaded transposed, in the same order: the two left
  // matrices are one B operand and the two right ones the next. K: a row of K is a column of B, so the two
  // matrices of an operand lie side by side: first right, then down.
  const int a_row = lane_id % 16;
  const int a_col = lane_id / 16 * 8;
  const int k_row = lane_id / 16 * 8 + lane_id % 8;
  const int k_col = lane_id / 8 % 2 * 8;
  // The place in a tile where this lane begins; at() moves on by distances that the compiler knows.
  const int q_offset = QTile<Element, HEAD_DIM>::offset_of(warp_row + a_row, a_col);
  const int k_offset = KVTile<Element, HEAD_DIM>::offset_of(s_warp_col + k_row, k_col);
  const int v_offset = KVTile<Element, HEAD_DIM>::offset_of(a_row, o_warp_col + a_col);
  const int p_offset = PTile<Element>::offset_of(warp_row + a_row, a_col);
  const int acc_p_offset = PTile<Element>::offset_of(warp_row + acc_row, s_warp_col + acc_col);
  const int acc_o_offset = QTile<Element, HEAD_DIM>::offset_of(warp_row + acc_row, o_warp_col + acc_col);
  const int bar_rows = BAR_ROWS + warp_row / WARP_M;

  // Of the rows acc_row + r * 8 of each 16 x 8 tile.
  float row_max[M_TILES][2];  // of the scores, scaled
  float row_sum[M_TILES][2];  // of this lane's columns only: lanes and warps are added up after the loop
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
    row_max[m][0] = row_max[m][1] = -INFINITY;
    row_sum[m][0] = row_sum[m][1] = 0.0f;
  }
  float acc_o[M_TILES][O_TILES][4] = {};

  mbarrier_wait(&shared.bar_q_full, 0);  // Q has arrived
  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;
    const int stage = kv_tile % NUM_STAGES;
    const int phase = kv_tile / NUM_STAGES % 2;

    // S = Q K^T.
    mbarrier_wait(&shared.bar_k_full[stage], phase);  // the K tile has arrived
    float acc_s[M_TILES][S_TILES][4] = {};
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += MMA_K) {
      uint32_t frag_q[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(frag_q[m], shared.q.at(q_offset, m * MMA_M, d));
#pragma unroll
      for (int n = 0; n < S_TILES; n += 2) {
        uint32_t frag_k[4];  // two B operands
        ldmatrix_x4(frag_k, shared.k[stage].at(k_offset, n * MMA_N, d));
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma_m16n8k16<Element>(acc_s[m][n], frag_q[m], {frag_k[0], frag_k[1]});
          mma_m16n8k16<Element>(acc_s[m][n + 1], frag_q[m], {frag_k[2], frag_k[3]});
        }
      }
    }

    __syncwarp();  // all lanes have read K
    if (lane_id == 0) mbarrier_arrive(&shared.bar_k_empty[stage]);

    if (first_key + BLOCK_N > unmasked_end) {  // some row does not see all of this tile
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = warp_row + m * MMA_M + acc_row + r * 8;
          const int visible = params.template visible_keys<CAUSAL>(first_query + row, kv_len) - first_key;
#pragma unroll
          for (int i = 0; i < 2 * S_TILES; ++i) {
            const int col = s_warp_col + i / 2 * MMA_N + acc_col + i % 2;
            if (col >= visible) acc_s[m][i / 2][r * 2 + i % 2] = -INFINITY;
          }
        }
      }
    }

    // Maximum of this warp's half of a row.
    float half_max[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * MMA_M + acc_row + r * 8;
        float max = -INFINITY;
#pragma unroll
        for (int i = 0; i < 2 * S_TILES; ++i) max = fmaxf(max, acc_s[m][i / 2][r * 2 + i % 2]);
        half_max[m][r] = quad_reduce_max(max);
        if (lane_id % 4 == 0) shared.half_max[warp_half][row] = half_max[m][r];
      }
    }
    bar_sync(bar_rows, 64);  // both maxima of a row are known, and P of the previous tile has been read

    // Softmax, relative to the maximum of the whole row.
    float row_scale[M_TILES][2];  // by how much this tile's maximum shrinks what came before
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * MMA_M + acc_row + r * 8;
        const float other_max = shared.half_max[1 - warp_half][row];
        const float tile_max = fmaxf(half_max[m][r], other_max);
        // Rounded down: the FFMA below takes the product exactly, so the largest p is never below 1.
        const float new_max = fmaxf(row_max[m][r], __fmul_rd(tile_max, params.softmax_scale_log2));
        // A row that sees no key: -inf - (-inf) would be NaN. Any finite base gives exp2(-inf) = 0.
        const float base = new_max == -INFINITY ? 0.0f : new_max;
        row_scale[m][r] = exp2_approx(row_max[m][r] - base);
        row_sum[m][r] *= row_scale[m][r];
        row_max[m][r] = new_max;
#pragma unroll
        for (int n = 0; n < S_TILES; ++n) {
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            p[e] = exp2_approx(fmaf(acc_s[m][n][r * 2 + e], params.softmax_scale_log2, -base));
            row_sum[m][r] += p[e];
          }
          *reinterpret_cast<uint32_t*>(shared.p.at(acc_p_offset, m * MMA_M + r * 8, n * MMA_N)) =
              pack2<Element>(p[0], p[1]);
        }
      }
    }

    bar_sync(bar_rows, 64);  // P is complete, and the exchanged maxima have been read

    // O = O * row_scale + P V.
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc_o[m][n][e] *= row_scale[m][e / 2];
      }
    }
    mbarrier_wait(&shared.bar_v_full[stage], phase);  // the V tile has arrived
    // TMA does not know this batch's length, so it also loads rows beyond it. They may hold NaN, and 0 * NaN
    // is NaN. This is the last tile, so the consumers may overwrite them.
    if (first_key + BLOCK_N > kv_len && kv_len < params.seqlen_kv) {
      constexpr int WORDS = HEAD_DIM * sizeof(Element) / 4;  // of a row
      for (int i = threadIdx.x; i < (first_key + BLOCK_N - kv_len) * WORDS; i += NUM_CONSUMERS) {
        const int row = kv_len - first_key + i / WORDS;
        const int offset = KVTile<Element, HEAD_DIM>::offset_of(row, i % WORDS * 2);
        *reinterpret_cast<uint32_t*>(shared.v[stage].at(offset, 0, 0)) = 0;
      }
      bar_sync(BAR_CONSUMERS, NUM_CONSUMERS);  // all of V's rows beyond the length are zero
    }
#pragma unroll
    for (int key = 0; key < BLOCK_N; key += MMA_K) {
      uint32_t frag_p[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(frag_p[m], shared.p.at(p_offset, m * MMA_M, key));
#pragma unroll
      for (int n = 0; n < O_TILES; n += 2) {
        uint32_t frag_v[4];  // two B operands
        ldmatrix_x4_trans(frag_v, shared.v[stage].at(v_offset, key, n * MMA_N));
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma_m16n8k16<Element>(acc_o[m][n], frag_p[m], {frag_v[0], frag_v[1]});
          mma_m16n8k16<Element>(acc_o[m][n + 1], frag_p[m], {frag_v[2], frag_v[3]});
        }
      }
    }
    __syncwarp();  // all lanes have read V
    if (lane_id == 0) mbarrier_arrive(&shared.bar_v_empty[stage]);
  }

  // The whole row's sum.
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[m][r] = quad_reduce_sum(row_sum[m][r]);
      if (lane_id % 4 == 0)
        shared.half_sum[warp_half][warp_row + m * MMA_M + acc_row + r * 8] = row_sum[m][r];
    }
  }
  bar_sync(bar_rows, 64);  // both halves' sums are known, and Q has been read, whose place O takes

  // O, rounded, goes where Q was, to be stored by TMA. A row that sees no key has row_sum 0: its output is
  // zero and its LSE log(0) = -inf.
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + m * MMA_M + acc_row + r * 8;
      const float sum = row_sum[m][r] + shared.half_sum[1 - warp_half][row];
      const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int n = 0; n < O_TILES; ++n) {
        const float* const o = &acc_o[m][n][r * 2];
        *reinterpret_cast<uint32_t*>(shared.q.at(acc_o_offset, m * MMA_M + r * 8, n * MMA_N)) =
            pack2<Element>(o[0] * scale, o[1] * scale);
      }
      if (warp_half == 0 && lane_id % 4 == 0 && first_query + row < params.seqlen_q) {
        params.store_lse(batch, head, first_query + row,
                         sum == 0.0f ? -INFINITY : row_max[m][r] * kLn2 + logf(sum));
      }
    }
  }
  fence_proxy_async();                     // makes what this thread has written visible to TMA
  bar_sync(BAR_CONSUMERS, NUM_CONSUMERS);  // O is complete
  if (warp_id == 0 && elect_one()) {
    tma_store_5d(maps.o, &shared.q, 0, first_query, 0, head, batch);  // rows beyond the end are left out
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
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, maps);
}

constexpr StepInfo kStep = {
    .title = "A producer warp loads tiles by TMA, with a 128-byte swizzle, into two stages",
    .removes = "waiting for loads, address arithmetic, padding",
    .part = Part::kMmaSync,
    .alignment_bytes = 16,
    .needs_sm = "90",
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
