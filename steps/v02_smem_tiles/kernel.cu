// v02: a CTA works on 64 query rows together and goes through the keys 64 at a time. Each K and V tile is
// read from global memory once per CTA, into shared memory, and each value read from there is used for
// several products.
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;  // query rows per CTA
constexpr int BLOCK_N = 64;  // keys per tile
constexpr int NUM_THREADS = 128;

// Register blocking: the threads form an 8 x 16 grid over a tile. A thread owns 8 consecutive rows and every
// 16th column of S and of O, so that 8 + 4 values from shared memory feed 8 * 4 products.
constexpr int THREAD_COLS = 16;
constexpr int THREAD_ROWS = NUM_THREADS / THREAD_COLS;
constexpr int ROWS_PER_THREAD = BLOCK_M / THREAD_ROWS;
constexpr int S_COLS_PER_THREAD = BLOCK_N / THREAD_COLS;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  Element q[BLOCK_M][HEAD_DIM];
  Element kv[BLOCK_N][HEAD_DIM];  // the K tile, then the V tile of the same keys
  float s[BLOCK_M][BLOCK_N];      // scores, then probabilities
  float row_max[BLOCK_M];
  float row_sum[BLOCK_M];
  float row_scale[BLOCK_M];  // by how much this tile's maximum shrinks what came before
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376 && sizeof(SharedStorage<float, 128>) <= 101376);

// Copies rows first_row .. first_row + 63 into shared memory. Rows at or beyond num_rows (at least 1) repeat
// the last one. Such keys are masked and such queries are not stored; clamping the row avoids a branch before
// each load.
template <typename Element, int HEAD_DIM>
__device__ void load_tile(Element (&tile)[BLOCK_M][HEAD_DIM], const Element* head, int64_t row_stride,
                          int first_row, int num_rows) {
#pragma unroll HEAD_DIM / 8  // a quarter of a thread's HEAD_DIM / 2 loads are in flight together
  for (int i = 0; i < BLOCK_M * HEAD_DIM; i += NUM_THREADS) {
    const int row = (i + threadIdx.x) / HEAD_DIM;
    const int d = (i + threadIdx.x) % HEAD_DIM;
    const int from_row = min(first_row + row, num_rows - 1);
    tile[row][d] = head[from_row * row_stride + d];
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) attention_kernel(const AttentionParams<Element> params) {
  constexpr int O_COLS_PER_THREAD = HEAD_DIM / THREAD_COLS;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int first_query = blockIdx.x * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int lane_id = threadIdx.x % 32;
  const int thread_row = threadIdx.x / THREAD_COLS * ROWS_PER_THREAD;  // first of this thread's rows
  const int thread_col = threadIdx.x % THREAD_COLS;  // first of its columns, which are THREAD_COLS apart

  // The loop over keys ends at the last one that any row of the tile sees. Only tiles that reach beyond the
  // keys that the first row sees need a mask.
  const int kv_len = params.kv_length(batch);
  const int last_query = min(first_query + BLOCK_M, params.seqlen_q) - 1;
  const int kv_end = params.template visible_keys<CAUSAL>(last_query, kv_len);
  const int unmasked_end = params.template visible_keys<CAUSAL>(first_query, kv_len);
  const int num_kv_tiles = ceil_div(kv_end, BLOCK_N);

  load_tile(shared.q, params.q_head(batch, head), params.q.row_stride, first_query, params.seqlen_q);
  if (threadIdx.x < BLOCK_M) {
    shared.row_max[threadIdx.x] = -INFINITY;
    shared.row_sum[threadIdx.x] = 0.0f;
  }
  float acc_o[ROWS_PER_THREAD][O_COLS_PER_THREAD] = {};

  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;

    // Load K.
    __syncthreads();  // all threads are done with the previous V tile, whose place K takes
    load_tile(shared.kv, params.k_head(batch, head), params.k.row_stride, first_key, kv_len);
    __syncthreads();  // the K tile (and, the first time, Q and the row state) is complete

    // S = Q K^T.
    float acc_s[ROWS_PER_THREAD][S_COLS_PER_THREAD] = {};
    for (int walk = 0; walk < HEAD_DIM; ++walk) {
      // Lanes that read different rows of K at the same d would all hit one memory bank, since a row is a
      // whole number of 128-byte lines. A sum may be taken in any order, so each lane walks d in its own
      // order.
      const int d = walk ^ (lane_id * 2 % HEAD_DIM);
      float q[ROWS_PER_THREAD], k[S_COLS_PER_THREAD];
#pragma unroll
      for (int i = 0; i < ROWS_PER_THREAD; ++i) q[i] = float(shared.q[thread_row + i][d]);
#pragma unroll
      for (int j = 0; j < S_COLS_PER_THREAD; ++j) k[j] = float(shared.kv[thread_col + j * THREAD_COLS][d]);
#pragma unroll
      for (int i = 0; i < ROWS_PER_THREAD; ++i) {
#pragma unroll
        for (int j = 0; j < S_COLS_PER_THREAD; ++j) acc_s[i][j] += q[i] * k[j];
      }
    }
    const bool needs_mask = first_key + BLOCK_N > unmasked_end;
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i) {
      const int row = thread_row + i;
      const int visible = params.template visible_keys<CAUSAL>(first_query + row, kv_len) - first_key;
#pragma unroll
      for (int j = 0; j < S_COLS_PER_THREAD; ++j) {
        const int col = thread_col + j * THREAD_COLS;
        const bool hidden = needs_mask && col >= visible;
        shared.s[row][col] = hidden ? -INFINITY : acc_s[i][j] * params.softmax_scale_log2;
      }
    }
    __syncthreads();  // S is complete before rows are read across threads; K is no longer needed

    // Softmax: one thread per row, the other half of the CTA waits.
    if (threadIdx.x < BLOCK_M) {
      const int row = threadIdx.x;
      const float old_max = shared.row_max[row];
      float new_max = old_max;
      for (int walk = 0; walk < BLOCK_N; ++walk) new_max = fmaxf(new_max, shared.s[row][walk ^ lane_id]);
      // A row that has seen no key yet: -inf - (-inf) would be NaN. Any finite base gives exp2(-inf) = 0.
      const float base = new_max == -INFINITY ? 0.0f : new_max;
      const float row_scale = exp2f(old_max - base);
      float row_sum = shared.row_sum[row] * row_scale;
      for (int walk = 0; walk < BLOCK_N; ++walk) {
        const int col = walk ^ lane_id;
        const float p = exp2f(shared.s[row][col] - base);
        shared.s[row][col] = p;
        row_sum += p;
      }
      shared.row_max[row] = new_max;
      shared.row_sum[row] = row_sum;
      shared.row_scale[row] = row_scale;
    }

    // Load V.
    load_tile(shared.kv, params.v_head(batch, head), params.v.row_stride, first_key, kv_len);
    __syncthreads();  // P, row_scale and the V tile are complete

    // O = O * row_scale + P V.
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; ++i) {
      const float row_scale = shared.row_scale[thread_row + i];
#pragma unroll
      for (int j = 0; j < O_COLS_PER_THREAD; ++j) acc_o[i][j] *= row_scale;
    }
    for (int key = 0; key < BLOCK_N; ++key) {
      float p[ROWS_PER_THREAD], v[O_COLS_PER_THREAD];
#pragma unroll
      for (int i = 0; i < ROWS_PER_THREAD; ++i) p[i] = shared.s[thread_row + i][key];
#pragma unroll
      for (int j = 0; j < O_COLS_PER_THREAD; ++j) v[j] = float(shared.kv[key][thread_col + j * THREAD_COLS]);
#pragma unroll
      for (int i = 0; i < ROWS_PER_THREAD; ++i) {
#pragma unroll
        for (int j = 0; j < O_COLS_PER_THREAD; ++j) acc_o[i][j] += p[i] * v[j];
      }
    }
  }
  __syncthreads();  // without any tile, other threads have only just set the row state

  // A row that sees no key has row_sum 0: its output is zero and its LSE log(0) = -inf.
  Element* const o_head = params.o_head(batch, head);
#pragma unroll
  for (int i = 0; i < ROWS_PER_THREAD; ++i) {
    const int row = thread_row + i;
    if (first_query + row >= params.seqlen_q) break;  // ragged last tile
    const float row_sum = shared.row_sum[row];
    const float inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
    Element* const o_row = o_head + (first_query + row) * params.o.row_stride;
#pragma unroll
    for (int j = 0; j < O_COLS_PER_THREAD; ++j)
      o_row[thread_col + j * THREAD_COLS] = Element(acc_o[i][j] * inverse_sum);
  }
  const int lse_row = threadIdx.x;
  if (lse_row < BLOCK_M && first_query + lse_row < params.seqlen_q) {
    const float row_sum = shared.row_sum[lse_row];
    params.store_lse(batch, head, first_query + lse_row,
                     row_sum == 0.0f ? -INFINITY : shared.row_max[lse_row] * kLn2 + logf(row_sum));
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params);
}

constexpr StepInfo kStep = {
    .title = "Tiles of K and V in shared memory; register blocking, 32 FP32 scores per thread",
    .removes = "global memory traffic: a tile is read once per 64 rows",
    .part = Part::kMemory,
    .dtypes = {DType::kFp16, DType::kBf16, DType::kFp32},
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
