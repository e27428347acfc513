// v03: both matrix products run on the tensor cores, through WMMA: a warp multiplies 16 x 16 tiles as a
// whole. Which lane holds which element of such a tile is not specified, so everything that works on single
// elements or rows (mask, softmax, rescaling O) happens in shared memory.
#include "common/step.h"
#include "common/wmma.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;  // query rows per CTA
constexpr int BLOCK_N = 64;  // keys per tile
constexpr int NUM_THREADS = 128;
constexpr int CTAS_PER_SM = 2;  // otherwise ptxas limits registers for CTAs that shared memory cannot hold

// The four warps form a 2 x 2 grid over a tile: a warp owns 32 rows and half of the columns of S and of O.
// Its part of S is 2 x 2 tiles of 16 x 16, so each fragment that the warp loads serves two products.
constexpr int WARP_M = 32;
constexpr int WARPS_N = 2;
constexpr int S_WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA = 16;  // a product is 16 x 16 x 16
constexpr int M_TILES = WARP_M / MMA;
constexpr int S_TILES = S_WARP_N / MMA;

// Distances between rows in shared memory, in elements: S_STRIDE in S and P, D_STRIDE in Q, K, V and O.
constexpr int S_STRIDE = BLOCK_N;
template <int HEAD_DIM>
constexpr int D_STRIDE = HEAD_DIM;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  Element q[BLOCK_M][D_STRIDE<HEAD_DIM>];
  Element kv[BLOCK_N][D_STRIDE<HEAD_DIM>];  // the K tile, then the V tile of the same keys
  float s[BLOCK_M][S_STRIDE];               // scores
  Element p[BLOCK_M][S_STRIDE];             // probabilities, rounded to what the tensor cores take
  float o[BLOCK_M][D_STRIDE<HEAD_DIM>];     // the output so far
  float row_scale[BLOCK_M];                 // by how much this tile's maximum shrinks what came before
  float inverse_sum[BLOCK_M];  // 1 / row_sum, at the end; another warp may still be reading row_scale then
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// Copies rows first_row .. first_row + 63 into shared memory. Rows at or beyond num_rows (at least 1) repeat
// the last one. Such keys are masked and such queries are not stored; clamping the row avoids a branch before
// each load.
template <int HEAD_DIM, typename Element>
__device__ void load_tile(Element (&tile)[BLOCK_M][D_STRIDE<HEAD_DIM>], const Element* head,
                          int64_t row_stride, int first_row, int num_rows) {
#pragma unroll HEAD_DIM / 8  // a quarter of a thread's HEAD_DIM / 2 loads are in flight together
  for (int i = 0; i < BLOCK_M * HEAD_DIM; i += NUM_THREADS) {
    const int row = (i + threadIdx.x) / HEAD_DIM;
    const int d = (i + threadIdx.x) % HEAD_DIM;
    const int from_row = min(first_row + row, num_rows - 1);
    tile[row][d] = head[from_row * row_stride + d];
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM)
    attention_kernel(const AttentionParams<Element> params) {
  constexpr int O_WARP_N = HEAD_DIM / WARPS_N;
  constexpr int O_TILES = O_WARP_N / MMA;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);
  using FragA = wmma::fragment<wmma::matrix_a, MMA, MMA, MMA, Element, wmma::row_major>;
  using FragK = wmma::fragment<wmma::matrix_b, MMA, MMA, MMA, Element, wmma::col_major>;  // K^T: column = key
  using FragV = wmma::fragment<wmma::matrix_b, MMA, MMA, MMA, Element, wmma::row_major>;
  using Accumulator = wmma::fragment<wmma::accumulator, MMA, MMA, MMA, float>;

  const int first_query = blockIdx.x * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
  const int warp_row = warp_id / WARPS_N * WARP_M;
  const int s_warp_col = warp_id % WARPS_N * S_WARP_N;
  const int o_warp_col = warp_id % WARPS_N * O_WARP_N;

  // The loop over keys ends at the last one that any row of the tile sees. Only tiles that reach beyond the
  // keys that the first row sees need a mask.
  const int kv_len = params.kv_length(batch);
  const int last_query = min(first_query + BLOCK_M, params.seqlen_q) - 1;
  const int kv_end = params.template visible_keys<CAUSAL>(last_query, kv_len);
  const int unmasked_end = params.template visible_keys<CAUSAL>(first_query, kv_len);
  const int num_kv_tiles = ceil_div(kv_end, BLOCK_N);

  load_tile<HEAD_DIM>(shared.q, params.q_head(batch, head), params.q.row_stride, first_query,
                      params.seqlen_q);
  for (int i = threadIdx.x; i < BLOCK_M * HEAD_DIM; i += NUM_THREADS)
    shared.o[i / HEAD_DIM][i % HEAD_DIM] = 0.0f;
  float row_max = -INFINITY;  // of row threadIdx.x, in the threads that have one
  float row_sum = 0.0f;

  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;

    // Load K.
    __syncthreads();  // all warps are done with the previous V tile, whose place K takes
    load_tile<HEAD_DIM>(shared.kv, params.k_head(batch, head), params.k.row_stride, first_key, kv_len);
    __syncthreads();  // the K tile (and, the first time, Q and O) is complete

    // S = Q K^T.
    Accumulator acc_s[M_TILES][S_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < S_TILES; ++n) wmma::fill_fragment(acc_s[m][n], 0.0f);
    }
    for (int d = 0; d < HEAD_DIM; d += MMA) {
      FragA frag_q[M_TILES];
      FragK frag_k[S_TILES];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
        wmma::load_matrix_sync(frag_q[m], &shared.q[warp_row + m * MMA][d], D_STRIDE<HEAD_DIM>);
#pragma unroll
      for (int n = 0; n < S_TILES; ++n)
        wmma::load_matrix_sync(frag_k[n], &shared.kv[s_warp_col + n * MMA][d], D_STRIDE<HEAD_DIM>);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int n = 0; n < S_TILES; ++n) wmma::mma_sync(acc_s[m][n], frag_q[m], frag_k[n], acc_s[m][n]);
      }
    }
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < S_TILES; ++n)
        wmma::store_matrix_sync(&shared.s[warp_row + m * MMA][s_warp_col + n * MMA], acc_s[m][n], S_STRIDE,
                                wmma::mem_row_major);
    }
    __syncthreads();  // S is complete before rows are read across warps; K is no longer needed

    // Softmax: one thread per row, the other half of the CTA waits.
    const bool needs_mask = first_key + BLOCK_N > unmasked_end;
    if (threadIdx.x < BLOCK_M) {
      const int row = threadIdx.x;
      const int visible = params.template visible_keys<CAUSAL>(first_query + row, kv_len) - first_key;
      float new_max = row_max;
#pragma unroll 8  // all 64 at once would take too many registers
      for (int walk = 0; walk < BLOCK_N; ++walk) {
        const int col = walk ^ lane_id;  // 32 rows of the same column would all lie in one memory bank
        const bool hidden = needs_mask && col >= visible;
        float s = shared.s[row][col] * params.softmax_scale_log2;
        if (hidden) s = -INFINITY;
        shared.s[row][col] = s;  // scaled and masked, for the second walk
        new_max = fmaxf(new_max, s);
      }
      // A row that has seen no key yet: -inf - (-inf) would be NaN. Any finite base gives exp2(-inf) = 0.
      const float base = new_max == -INFINITY ? 0.0f : new_max;
      const float row_scale = exp2f(row_max - base);
      row_sum *= row_scale;
#pragma unroll 8
      for (int walk = 0; walk < BLOCK_N; ++walk) {
        const int col = walk ^ lane_id;
        const float p = exp2f(shared.s[row][col] - base);
        shared.p[row][col] = Element(p);
        row_sum += p;
      }
      row_max = new_max;
      shared.row_scale[row] = row_scale;
    }

    // Load V.
    load_tile<HEAD_DIM>(shared.kv, params.v_head(batch, head), params.v.row_stride, first_key, kv_len);
    __syncthreads();  // P, row_scale and the V tile are complete

    // O = O * row_scale + P V. A row's elements may lie anywhere in the fragments, so the warp rescales its
    // part of O in shared memory.
    for (int i = lane_id; i < WARP_M * O_WARP_N; i += 32) {
      const int row = warp_row + i / O_WARP_N;
      shared.o[row][o_warp_col + i % O_WARP_N] *= shared.row_scale[row];
    }
    __syncwarp();  // the lanes' products are complete before other lanes read them as fragments
    Accumulator acc_o[M_TILES][O_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
        wmma::load_matrix_sync(acc_o[m][n], &shared.o[warp_row + m * MMA][o_warp_col + n * MMA],
                               D_STRIDE<HEAD_DIM>, wmma::mem_row_major);
    }
    for (int key = 0; key < BLOCK_N; key += MMA) {
      FragA frag_p[M_TILES];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
        wmma::load_matrix_sync(frag_p[m], &shared.p[warp_row + m * MMA][key], S_STRIDE);
#pragma unroll
      for (int n = 0; n < O_TILES; ++n) {
        FragV frag_v;
        wmma::load_matrix_sync(frag_v, &shared.kv[key][o_warp_col + n * MMA], D_STRIDE<HEAD_DIM>);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) wmma::mma_sync(acc_o[m][n], frag_p[m], frag_v, acc_o[m][n]);
      }
    }
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
        wmma::store_matrix_sync(&shared.o[warp_row + m * MMA][o_warp_col + n * MMA], acc_o[m][n],
                                D_STRIDE<HEAD_DIM>, wmma::mem_row_major);
    }
  }
  // A row that sees no key has row_sum 0: its output is zero and its LSE log(0) = -inf.
  if (threadIdx.x < BLOCK_M) {
    const int row = threadIdx.x;
    shared.inverse_sum[row] = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
    if (first_query + row < params.seqlen_q) {
      params.store_lse(batch, head, first_query + row,
                       row_sum == 0.0f ? -INFINITY : row_max * kLn2 + logf(row_sum));
    }
  }
  __syncthreads();  // O and inverse_sum are complete

  Element* const o_head = params.o_head(batch, head);
  for (int i = threadIdx.x; i < BLOCK_M * HEAD_DIM; i += NUM_THREADS) {
    const int row = i / HEAD_DIM;
    const int d = i % HEAD_DIM;
    if (first_query + row >= params.seqlen_q) break;  // ragged last tile
    o_head[(first_query + row) * params.o.row_stride + d] =
        Element(shared.o[row][d] * shared.inverse_sum[row]);
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params);
}

constexpr StepInfo kStep = {
    .title = "WMMA runs the products on tensor cores; S, P and O are in shared memory",
    .removes = "the FP32 FMA ceiling",
    .part = Part::kMemory,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
