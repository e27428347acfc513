// A step for Hopper and nothing else: it holds an instruction that exists in sm_90a alone, and so must never be compiled
// for another GPU or to PTX.
#include "common/wgmma.h"
#include "harness/tests/kernels/scalar_attention.h"

namespace STEP_NAMESPACE {

constexpr int NUM_THREADS = 128;  // a warpgroup

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) attention_kernel(const AttentionParams<Element> params) {
  warpgroup_arrive();
  const int row = blockIdx.x * NUM_THREADS + threadIdx.x;
  const int head = blockIdx.y, batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  RowState<HEAD_DIM> state;
  attend(state, params, batch, head, row, 0, params.template visible_keys<CAUSAL>(row, params.kv_length(batch)));
  store(state, params, batch, head, row);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const dim3 grid(ceil_div(params.seqlen_q, NUM_THREADS), params.num_heads_q, params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS), 0, stream, params);
}

constexpr StepInfo kStep = {
    .title = "An instruction of sm_90a, for the tests",
    .removes = "nothing",
    .part = Part::kHopper,
    .needs_sm = "90a",
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
