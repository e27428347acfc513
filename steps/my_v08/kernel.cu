// v08: S stays in the registers that the product left it in. A warp holds half of each of its rows and
// computes the softmax of this half. Then the two warps of a row exchange their maxima and sums and correct
// their results. Only P, in 16 bits, still goes through shared memory.
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "common/step.h"
#include "common/vector_copy.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;  // query rows per CTA
constexpr int BLOCK_N = 64;  // keys per tile
constexpr int NUM_THREADS = 128;

// The four warps form a 2 x 2 grid over a tile: a warp owns 32 rows and half of the columns of S and of O.
// Each operand that the warp loads serves two products or more.
constexpr int WARP_M = 32;
constexpr int WARPS_N = 2;
constexpr int S_WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int M_TILES = WARP_M / MMA_M;
constexpr int S_TILES = S_WARP_N / MMA_N;

// Distances between rows in shared memory, in elements: P_STRIDE in P, D_STRIDE in Q, K and V. A row of 64 or
// 128 elements goes a whole number of times around the 32 banks of 4 bytes; 8 more shift each row by 16
// bytes. So the 8 rows of 16 bytes that ldmatrix reads at once lie in different banks.
constexpr int PAD = 8;
constexpr int P_STRIDE = BLOCK_N + PAD;
template <int HEAD_DIM>
constexpr int D_STRIDE = HEAD_DIM + PAD;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  Element q[BLOCK_M][D_STRIDE<HEAD_DIM>];
  Element kv[BLOCK_N][D_STRIDE<HEAD_DIM>];  // the K tile, then the V tile of the same keys
  Element p[BLOCK_M][P_STRIDE];             // probabilities, rounded to what the tensor cores take
  float half_max[WARPS_N][BLOCK_M];         // of the half of a row that one warp holds
  float half_sum[WARPS_N][BLOCK_M];         // relative to half_max
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// A lane moves 16 bytes at a time.
constexpr int CHUNK = 8;  // elements

// Copies rows first_row .. first_row + 63 into shared memory. Rows at or beyond num_rows (at least 1) repeat
// the last one. Such keys are masked and such queries are not stored; clamping the row avoids a branch before
// each load.
template <int HEAD_DIM, typename Element>
__device__ void load_tile(Element (&tile)[BLOCK_M][D_STRIDE<HEAD_DIM>], const Element* head,
                          int64_t row_stride, int first_row, int num_rows) {
  constexpr int CHUNKS = HEAD_DIM / CHUNK;  // of a row
#pragma unroll 4  // all loads of a thread at D = 64, half of them at D = 128: 8 would cost too many registers
  for (int i = 0; i < BLOCK_M * CHUNKS; i += NUM_THREADS) {
    const int row = (i + threadIdx.x) / CHUNKS;
    const int d = (i + threadIdx.x) % CHUNKS * CHUNK;
    const int from_row = min(first_row + row, num_rows - 1);
    store_16_bytes(&tile[row][d], load_16_bytes(&head[from_row * row_stride + d]));
  }
}

// Reductions over the four lanes that share a row of an accumulator; all four get the result.
// EXERCISE 1: return the maximum over the four lanes of a quad, in all of these lanes. Write the sum in the
// same way.
__device__ float quad_reduce_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ float quad_reduce_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) attention_kernel(const AttentionParams<Element> params) {
  constexpr int O_WARP_N = HEAD_DIM / WARPS_N;
  constexpr int O_TILES = O_WARP_N / MMA_N;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int first_query = blockIdx.x * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
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

  // The loop over keys ends at the last one that any row of the tile sees. Only tiles that reach beyond the
  // keys that the first row sees need a mask.
  const int kv_len = params.kv_length(batch);
  const int last_query = min(first_query + BLOCK_M, params.seqlen_q) - 1;
  const int kv_end = params.template visible_keys<CAUSAL>(last_query, kv_len);
  const int unmasked_end = params.template visible_keys<CAUSAL>(first_query, kv_len);
  const int num_kv_tiles = ceil_div(kv_end, BLOCK_N);

  load_tile<HEAD_DIM>(shared.q, params.q_head(batch, head), params.q.row_stride, first_query,
                      params.seqlen_q);
  // Of the rows acc_row + r * 8 of each 16 x 8 tile. Both warps of a row have them, and their sums differ
  // only by rounding.
  float row_max[M_TILES][2];
  float row_sum[M_TILES][2];
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
    row_max[m][0] = row_max[m][1] = -INFINITY;
    row_sum[m][0] = row_sum[m][1] = 0.0f;
  }
  float acc_o[M_TILES][O_TILES][4] = {};

  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;

    // Load K.
    __syncthreads();  // all warps are done with the previous V tile, whose place K takes
    load_tile<HEAD_DIM>(shared.kv, params.k_head(batch, head), params.k.row_stride, first_key, kv_len);
    __syncthreads();  // the K tile (and, the first time, Q) is complete

    // S = Q K^T.
    float acc_s[M_TILES][S_TILES][4] = {};
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += MMA_K) {
      uint32_t frag_q[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
        ldmatrix_x4(frag_q[m], &shared.q[warp_row + m * MMA_M + a_row][d + a_col]);
#pragma unroll
      for (int n = 0; n < S_TILES; n += 2) {
        uint32_t frag_k[4];  // two B operands
        ldmatrix_x4(frag_k, &shared.kv[s_warp_col + n * MMA_N + k_row][d + k_col]);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma_m16n8k16<Element>(acc_s[m][n], frag_q[m], {frag_k[0], frag_k[1]});
          mma_m16n8k16<Element>(acc_s[m][n + 1], frag_q[m], {frag_k[2], frag_k[3]});
        }
      }
    }

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

    // Softmax of this warp's half of a row, as if it were the whole row.
    float half_max[M_TILES][2];
    float half_sum[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * MMA_M + acc_row + r * 8;
        float max = -INFINITY;
#pragma unroll
        for (int i = 0; i < 2 * S_TILES; ++i) {
          float& s = acc_s[m][i / 2][r * 2 + i % 2];
          s *= params.softmax_scale_log2;
          max = fmaxf(max, s);
        }
        max = quad_reduce_max(max);
        // A row that sees no key: -inf - (-inf) would be NaN. Any finite base gives exp2(-inf) = 0.
        const float base = max == -INFINITY ? 0.0f : max;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * S_TILES; ++i) {
          float& p = acc_s[m][i / 2][r * 2 + i % 2];  // the score becomes the probability
          p = exp2f(p - base);
          sum += p;
        }
        sum = quad_reduce_sum(sum);
        half_max[m][r] = max;
        half_sum[m][r] = sum;
        if (lane_id % 4 == 0) {
          shared.half_max[warp_half][row] = max;
          shared.half_sum[warp_half][row] = sum;
        }
      }
    }
    __syncthreads();  // both halves of a row are known, and all warps are done with K, which V overwrites

    // The maximum of the whole row is known only now: P and the sums are scaled to it.
    float row_scale[M_TILES][2];  // by how much this tile's maximum shrinks what came before
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + m * MMA_M + acc_row + r * 8;
        // EXERCISE 2: take the other warp's maximum and sum from shared.half_max and shared.half_sum. Set
        // new_max, the maximum of all that the row has seen; half_scale, which brings this half's P to
        // new_max; row_scale, which does the same for what came before; and row_sum, of both halves.
        const float new_max = fmaxf(row_max[m][r], half_max[m][r]);
        const float base = new_max == -INFINITY ? 0.0f : new_max;
        const float half_scale = exp2f(half_max[m][r] - base);
        row_scale[m][r] = exp2f(row_max[m][r] - base);
        row_sum[m][r] = row_sum[m][r] * row_scale[m][r] + half_sum[m][r] * half_scale;
        row_max[m][r] = new_max;
#pragma unroll
        for (int n = 0; n < S_TILES; ++n) {
          const float* const p = &acc_s[m][n][r * 2];
          *reinterpret_cast<uint32_t*>(&shared.p[row][s_warp_col + n * MMA_N + acc_col]) =
              pack2<Element>(p[0] * half_scale, p[1] * half_scale);
        }
      }
    }

    // Load V.
    load_tile<HEAD_DIM>(shared.kv, params.v_head(batch, head), params.v.row_stride, first_key, kv_len);
    __syncthreads();  // P and the V tile are complete

    // O = O * row_scale + P V.
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < O_TILES; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc_o[m][n][e] *= row_scale[m][e / 2];
      }
    }
#pragma unroll
    for (int key = 0; key < BLOCK_N; key += MMA_K) {
      uint32_t frag_p[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
        ldmatrix_x4(frag_p[m], &shared.p[warp_row + m * MMA_M + a_row][key + a_col]);
#pragma unroll
      for (int n = 0; n < O_TILES; n += 2) {
        uint32_t frag_v[4];  // two B operands
        ldmatrix_x4_trans(frag_v, &shared.kv[key + a_row][o_warp_col + n * MMA_N + a_col]);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma_m16n8k16<Element>(acc_o[m][n], frag_p[m], {frag_v[0], frag_v[1]});
          mma_m16n8k16<Element>(acc_o[m][n + 1], frag_p[m], {frag_v[2], frag_v[3]});
        }
      }
    }
  }
  __syncthreads();  // without any tile, Q may not be complete in the place that O takes

  // O, rounded, replaces Q in shared memory. From there each lane stores 16 bytes of a row at a time. A row
  // that sees no key has row_sum 0: its output is zero and its LSE log(0) = -inf.
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + m * MMA_M + acc_row + r * 8;
      const float sum = row_sum[m][r];
      const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int n = 0; n < O_TILES; ++n) {
        const float* const o = &acc_o[m][n][r * 2];
        *reinterpret_cast<uint32_t*>(&shared.q[row][o_warp_col + n * MMA_N + acc_col]) =
            pack2<Element>(o[0] * scale, o[1] * scale);
      }
      if (warp_half == 0 && lane_id % 4 == 0 && first_query + row < params.seqlen_q) {
        params.store_lse(batch, head, first_query + row,
                         sum == 0.0f ? -INFINITY : row_max[m][r] * kLn2 + logf(sum));
      }
    }
  }
  __syncthreads();  // O is complete

  Element* const o_head = params.o_head(batch, head);
  constexpr int CHUNKS = HEAD_DIM / CHUNK;  // of a row
  for (int i = threadIdx.x; i < BLOCK_M * CHUNKS; i += NUM_THREADS) {
    const int row = i / CHUNKS;
    const int d = i % CHUNKS * CHUNK;
    if (first_query + row >= params.seqlen_q) break;  // ragged last tile
    store_16_bytes(&o_head[(first_query + row) * params.o.row_stride + d], load_16_bytes(&shared.q[row][d]));
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params);
}

constexpr StepInfo kStep = {
    .title = "Softmax in registers; the two warps of a row exchange its maximum and sum",
    .removes = "the round trip of S through shared memory",
    .part = Part::kMmaSync,
    .alignment_bytes = 16,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
