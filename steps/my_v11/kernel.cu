// v11: v10's overlap of loads and products, with instructions that every GPU since sm_80 has. Each thread
// requests its chunks of 16 bytes of the next tiles with cp.async, which copies them while the threads
// compute. The tiles are swizzled as TMA swizzles them.
#include "common/blocks/accumulator.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/key_range.h"
#include "common/blocks/operands.h"
#include "common/cp_async.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/named_barrier.h"
#include "common/pack.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;    // query rows per CTA
constexpr int BLOCK_N = 64;    // keys per tile
constexpr int NUM_STAGES = 2;  // of K and V each: one is computed on while the other is filled
constexpr int NUM_THREADS = 128;

// The four warps form a 2 x 2 grid over a tile: a warp owns 32 rows and half of the columns of S and of O.
constexpr int WARP_M = 32;
constexpr int WARPS_N = 2;
constexpr int S_WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int M_TILES = WARP_M / MMA_M;
constexpr int S_TILES = S_WARP_N / MMA_N;

template <typename Element, int HEAD_DIM>
using Tile = SwizzledTile<Element, 64, HEAD_DIM, 128>;  // of Q, K or V
template <typename Element>
using PTile = SwizzledTile<Element, BLOCK_M, BLOCK_N, 128>;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  Tile<Element, HEAD_DIM> q;  // after the loop, O
  Tile<Element, HEAD_DIM> k[NUM_STAGES];
  Tile<Element, HEAD_DIM> v[NUM_STAGES];
  PTile<Element> p;                  // probabilities, rounded to what the tensor cores take
  float half_max[WARPS_N][BLOCK_M];  // of the half of a row that one warp holds
  float half_sum[WARPS_N][BLOCK_M];  // of all tiles: exchanged once, after the loop
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// Starts to copy rows first_row .. first_row + 63, in chunks of 8 elements. Rows at or beyond num_rows become
// zero.
template <typename Tile, typename Element>
__device__ void load_tile_async(Tile& tile, const Element* head, int64_t row_stride, int first_row,
                                int num_rows) {
  constexpr int CHUNKS = Tile::COLS / 8;          // of a row
  constexpr int ROW_STEP = NUM_THREADS / CHUNKS;  // rows that all threads move at once
  const int row = threadIdx.x / CHUNKS;
  const int d = threadIdx.x % CHUNKS * 8;
  const int offset = Tile::offset_of(row, d);
  const Element* const from = head + (first_row + row) * row_stride + d;
  // EXERCISE 1: start to copy this thread's 16 bytes of every ROW_STEP-th row. Rows at or beyond num_rows
  // become zero.
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, HEAD_DIM == 64 ? 3 : 2)
    attention_kernel(const AttentionParams<Element> params) {
  constexpr int O_TILES = HEAD_DIM / WARPS_N / MMA_N;
  using DTile = Tile<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int first_query = blockIdx.x * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
  const int warp_row = warp_id / WARPS_N * WARP_M;
  const int warp_half = warp_id % WARPS_N;
  const int s_warp_col = warp_half * S_WARP_N;
  const int o_warp_col = warp_half * (HEAD_DIM / WARPS_N);
  const int bar_rows = 1 + warp_row / WARP_M;  // a named barrier for the two warps that share 32 rows
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  // The place in a tile where this lane begins; at() moves on by distances that the compiler knows.
  const int q_offset = DTile::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const int k_offset = DTile::offset_of(s_warp_col + k_operand_row(lane_id), k_operand_col(lane_id));
  const int v_offset = DTile::offset_of(operand_row(lane_id), o_warp_col + operand_col(lane_id));
  const int p_offset = PTile<Element>::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const int acc_p_offset = PTile<Element>::offset_of(warp_row + acc_row, s_warp_col + acc_col);

  const KeyRange keys = key_range<CAUSAL>(params, batch, first_query, BLOCK_M);
  const int num_kv_tiles = keys.num_tiles(BLOCK_N);
  const Element* const k_head = params.k_head(batch, head);
  const Element* const v_head = params.v_head(batch, head);
  const auto load_kv_async = [&](int kv_tile) {
    const int first_key = kv_tile * BLOCK_N;
    load_tile_async(shared.k[kv_tile % NUM_STAGES], k_head, params.k.row_stride, first_key, keys.kv_len);
    load_tile_async(shared.v[kv_tile % NUM_STAGES], v_head, params.v.row_stride, first_key, keys.kv_len);
  };

  // Of the rows acc_row + r * 8 of each 16 x 8 tile.
  float row_max[M_TILES][2];       // of the scores, scaled
  float row_sum[M_TILES][2] = {};  // of this lane's columns only: lanes and warps are added up after the loop
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;
  float acc_o[M_TILES][O_TILES][4] = {};

  load_tile_async(shared.q, params.q_head(batch, head), params.q.row_stride, first_query, params.seqlen_q);
  if (num_kv_tiles > 0) load_kv_async(0);
  cp_async_commit();
  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;
    const int stage = kv_tile % NUM_STAGES;
    // EXERCISE 2: wait for the tile that was requested one turn ago, then request the next one into the
    // other stage, with one __syncthreads per tile.
    __syncthreads();
    if (kv_tile > 0) load_kv_async(kv_tile);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();

    // S = Q K^T.
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
    if (keys.needs_mask(first_key, BLOCK_N))
      mask_scores<CAUSAL>(acc_s, params, keys.kv_len, first_query + warp_row + acc_row,
                          first_key + s_warp_col + acc_col);
    // Maximum of this warp's half of a row.
    float half_max[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        half_max[m][r] = quad_reduce_max(lane_max(acc_s[m], r));
        if (lane_id % 4 == 0)
          shared.half_max[warp_half][warp_row + m * MMA_M + acc_row + r * 8] = half_max[m][r];
      }
    }
    bar_sync(bar_rows, 64);  // both halves of a row are known

    // Softmax, relative to the maximum of the whole row.
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float other_max = shared.half_max[1 - warp_half][warp_row + m * MMA_M + acc_row + r * 8];
        const float tile_max = fmaxf(half_max[m][r], other_max);
        // Rounded down: the FFMA below takes the product exactly, so the largest p is never below 1.
        const float new_max = fmaxf(row_max[m][r], __fmul_rd(tile_max, params.softmax_scale_log2));
        // A row that sees no key: -inf - (-inf) would be NaN. Any finite base gives exp2(-inf) = 0.
        const float base = new_max == -INFINITY ? 0.0f : new_max;
        const float row_scale = exp2_approx(row_max[m][r] - base);  // by how much what came before shrinks
        row_sum[m][r] *= row_scale;
        row_max[m][r] = new_max;
#pragma unroll
        for (int n = 0; n < O_TILES; ++n) {
          acc_o[m][n][r * 2] *= row_scale;
          acc_o[m][n][r * 2 + 1] *= row_scale;
        }
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

    bar_sync(bar_rows, 64);  // P of these rows is complete

    // O += P V.
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
  cp_async_wait<0>();  // without any tile, Q may still be in flight
  __syncthreads();     // both halves' sums are known, and Q has been read, whose place O takes

  // O, rounded, replaces Q in shared memory. From there each lane stores 16 bytes of a row at a time.
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + m * MMA_M + acc_row + r * 8;
      row_sum[m][r] += shared.half_sum[1 - warp_half][row];
      if (warp_half == 0 && lane_id % 4 == 0 && first_query + row < params.seqlen_q)
        params.store_lse(batch, head, first_query + row, lse_of(row_max[m][r], row_sum[m][r]));
    }
  }
  store_normalised(shared.q, DTile::offset_of(warp_row + acc_row, o_warp_col + acc_col), acc_o, row_sum);
  __syncthreads();  // O is complete
  Element* const o = params.o_head(batch, head) + first_query * params.o.row_stride;
  store_rows(shared.q, 0, min(BLOCK_M, params.seqlen_q - first_query), o, params.o.row_stride, threadIdx.x,
             NUM_THREADS);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params);
}

constexpr StepInfo kStep = {
    .title = "All threads request the next tiles with cp.async and compute meanwhile",
    .removes = "waiting for loads, on every GPU since sm_80",
    .after = "v09_direct_rescale",
    .part = Part::kMmaSync,
    .alignment_bytes = 16,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
