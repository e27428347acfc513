// CTAs that stay and take their tiles from a counter, which is zero before a launch and wraps around to zero with the
// launch's last increment. Right, and with mistakes that only the counters and the workspace show.
#include <algorithm>

#include "harness/tests/kernels/scalar_attention.h"

namespace STEP_NAMESPACE {

constexpr int NUM_THREADS = 32;
constexpr int NUM_CTAS = 4;

enum Mistake { kNone, kNotLeftZero, kPastTheCounters, kPastTheWorkspace };

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void attention_kernel(const AttentionParams<Element> params, Mistake mistake, int num_tiles) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    auto* const workspace = static_cast<unsigned*>(params.workspace);
    workspace[0] = 1;  // it may hold anything, before and after
    if (mistake == kPastTheWorkspace) workspace[4] = 0;
    if (mistake == kPastTheCounters) params.counters[kNumCounters] = 0;
  }
  if (params.counters[kNumCounters - 1] != 0) return;  // that a counter is not zero might do no harm, by luck
  const int tiles_of_head = ceil_div(params.seqlen_q, NUM_THREADS);
  int tile = blockIdx.x;
  while (tile < num_tiles) {
    const int row = tile % tiles_of_head * NUM_THREADS + threadIdx.x;
    const int head = tile / tiles_of_head % params.num_heads_q, batch = tile / tiles_of_head / params.num_heads_q;
    if (row < params.seqlen_q) {
      RowState<HEAD_DIM> state;
      attend(state, params, batch, head, row, 0, params.template visible_keys<CAUSAL>(row, params.kv_length(batch)));
      store(state, params, batch, head, row);
    }
    // An increment for each tile: the last one of them all finds num_tiles - 1.
    if (threadIdx.x == 0) tile = gridDim.x + atomicInc(params.counters, mistake == kNotLeftZero ? num_tiles : num_tiles - 1);
    tile = __shfl_sync(0xffffffff, tile, 0);
  }
}

template <Mistake MISTAKE>
struct Launcher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const AttentionParams<Element>& params, Stream stream) {
    const int num_tiles = ceil_div(params.seqlen_q, NUM_THREADS) * params.num_heads_q * params.batch;
    launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, dim3(std::min(NUM_CTAS, num_tiles)), dim3(NUM_THREADS), 0, stream,
           params, MISTAKE, num_tiles);
  }
};

constexpr StepInfo kStepInfo{.title = "counts its tiles, for the tests",
                             .removes = "nothing",
                             .workspace_bytes = [](const AttentionCall&) { return 4 * sizeof(unsigned); },
                             .uses_counters = true};

template <Mistake MISTAKE>
bool registered(const char* name) {
  return register_step({name, kThisBackend, kStepInfo, dispatch<Launcher<MISTAKE>, kStepInfo>});
}
const bool kRegistered = registered<kNone>("counting") && registered<kNotLeftZero>("counting_not_left_zero") &&
                         registered<kPastTheCounters>("counting_past_the_counters") &&
                         registered<kPastTheWorkspace>("counting_past_the_workspace");

}  // namespace STEP_NAMESPACE
