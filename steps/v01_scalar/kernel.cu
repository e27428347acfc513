// v01: one thread computes one query row. FP32 arithmetic, K and V straight from global memory.
//
// The whole algorithm is here, in a loop over keys that looks at each key once (online softmax). Every later
// step computes exactly this, with the work distributed differently.
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;  // query rows per CTA, one thread each
constexpr int NUM_THREADS = BLOCK_M;

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) attention_kernel(const AttentionParams<Element> params) {
  const int row = blockIdx.x * BLOCK_M + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;  // ragged last tile; there is no barrier that this thread could miss

  const Element* const q_row = params.q_head(batch, head) + row * params.q.row_stride;
  const Element* const k_head = params.k_head(batch, head);
  const Element* const v_head = params.v_head(batch, head);

  // The row's query and its running output stay in registers for the whole loop.
  Element q[HEAD_DIM];
  float acc_o[HEAD_DIM];
#pragma unroll
  for (int d = 0; d < HEAD_DIM; ++d) {
    q[d] = q_row[d];
    acc_o[d] = 0.0f;
  }
  float row_max = -INFINITY;  // largest score so far, in units of log2
  float row_sum = 0.0f;       // sum of exp2(score - row_max) so far

  const float scale = params.score_scale_log2(batch, head);
  const int num_keys = params.template visible_keys<CAUSAL>(row, params.kv_length(batch));
  for (int key = 0; key < num_keys; ++key) {
    // S = Q K^T: one score.
    const Element* const k_row = k_head + key * params.k.row_stride;
    float score = 0.0f;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; ++d) score += float(q[d]) * float(k_row[d]);
    score *= scale;

    // Softmax, online: when a larger score turns up, row_scale shrinks what has been summed so far.
    const float new_max = fmaxf(row_max, score);
    const float row_scale = exp2f(row_max - new_max);  // 0 at the first key: exp2(-inf)
    const float p = exp2f(score - new_max);
    row_sum = row_sum * row_scale + p;
    row_max = new_max;

    // O += P V.
    const Element* const v_row = v_head + key * params.v.row_stride;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] = acc_o[d] * row_scale + p * float(v_row[d]);
  }

  // A row that sees no key has row_sum 0: its output is zero and its LSE log(0) = -inf.
  const float inverse_sum = row_sum == 0.0f ? 0.0f : params.output_scale(batch, head) / row_sum;
  using Output = typename AttentionParams<Element>::Output;
  Output* const o_row = params.o_head(batch, head) + row * params.o.row_stride;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; ++d) o_row[d] = Output(acc_o[d] * inverse_sum);
  params.store_lse(batch, head, row, num_keys > 0 ? row_max * kLn2 + logf(row_sum) : -INFINITY);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS), 0, stream, params);
}

constexpr StepInfo kStep = {
    .title = "One thread computes one query row and reads K and V from global memory",
    .removes = "nothing: the baseline",
    .part = Part::kMemory,
    .dtypes = {DType::kFp16, DType::kBf16, DType::kFp32, DType::kE4m3},
    .spills = "at D=128 q and acc_o alone are 256 values, and a thread has 255 registers",
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
