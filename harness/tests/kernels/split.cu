// A step that uses what the ladder's steps do not: two kernels, a workspace, several configurations, a limit that it
// states itself, one element type. The first kernel takes the keys in several splits and leaves what it has of each in
// the workspace; the second adds the splits up. And once more, with a workspace that all calls share.
#include "harness/tests/kernels/scalar_attention.h"

namespace STEP_NAMESPACE {

constexpr int kSplits[] = {2, 3};  // by configuration
constexpr int NUM_THREADS = 32;

// The mistake: what one call leaves here, another one overwrites.
constexpr size_t kSharedBytes = 4 << 20;
alignas(16) __device__ unsigned char shared_by_calls[kSharedBytes];

template <typename Element>
__device__ void* workspace_of(const AttentionParams<Element>& params, bool is_shared) {
  return is_shared ? shared_by_calls : params.workspace;
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void split_kernel(const AttentionParams<Element> params, int num_splits, bool is_shared) {
  const int row = blockIdx.x / num_splits * NUM_THREADS + threadIdx.x;
  const int split = blockIdx.x % num_splits;
  const int head = blockIdx.y, batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  const int num_keys = params.template visible_keys<CAUSAL>(row, params.kv_length(batch));
  const int per_split = ceil_div(num_keys, num_splits);
  RowState<HEAD_DIM> state;
  attend(state, params, batch, head, row, split * per_split, min((split + 1) * per_split, num_keys));
  const int64_t index = (int64_t(batch) * params.num_heads_q + head) * params.seqlen_q + row;
  static_cast<RowState<HEAD_DIM>*>(workspace_of(params, is_shared))[index * num_splits + split] = state;
}

template <typename Element, int HEAD_DIM>
__global__ void merge_kernel(const AttentionParams<Element> params, int num_splits, bool is_shared) {
  const int row = blockIdx.x * NUM_THREADS + threadIdx.x;
  const int head = blockIdx.y, batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  const int64_t index = (int64_t(batch) * params.num_heads_q + head) * params.seqlen_q + row;
  const auto* const splits =
      static_cast<const RowState<HEAD_DIM>*>(workspace_of(params, is_shared)) + index * num_splits;
  RowState<HEAD_DIM> all;
  for (int split = 0; split < num_splits; ++split) all.row_max = fmaxf(all.row_max, splits[split].row_max);
  for (int split = 0; split < num_splits; ++split) {
    const float scale = all.row_max == -INFINITY ? 0.0f : exp2f(splits[split].row_max - all.row_max);
    all.row_sum += splits[split].row_sum * scale;
    for (int d = 0; d < HEAD_DIM; ++d) all.acc_o[d] += splits[split].acc_o[d] * scale;
  }
  store(all, params, batch, head, row);
}

size_t workspace_bytes(const AttentionCall& call) {
  const size_t state = call.head_dim == 64 ? sizeof(RowState<64>) : sizeof(RowState<128>);
  return state * kSplits[call.configuration] * call.batch * call.num_heads_q * call.seqlen_q;
}

int choose_configuration(const AttentionCall& call) { return call.seqlen_kv < 100 ? 0 : 1; }

std::string refuses(const AttentionCall& call) {
  return call.configuration == 0 && call.seqlen_kv > 500 ? "needs three splits beyond 500 keys" : "";
}

template <bool IS_SHARED>
struct Launcher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const AttentionParams<Element>& params, Stream stream) {
    const int num_splits = kSplits[params.configuration];
    const unsigned num_tiles = ceil_div(params.seqlen_q, NUM_THREADS);
    launch(split_kernel<Element, HEAD_DIM, CAUSAL>, dim3(num_tiles * num_splits, params.num_heads_q, params.batch),
           dim3(NUM_THREADS), 0, stream, params, num_splits, IS_SHARED);
    launch(merge_kernel<Element, HEAD_DIM>, dim3(num_tiles, params.num_heads_q, params.batch), dim3(NUM_THREADS), 0,
           stream, params, num_splits, IS_SHARED);
  }
};

constexpr StepInfo kStepInfo{.title = "Two kernels and a workspace, for the tests",
                             .removes = "nothing",
                             .part = Part::kDecode,
                             .purpose = Purpose::kDecode,
                             .dtypes = {DType::kBf16},
                             .configurations = {"2splits", "3splits"},
                             .choose = choose_configuration,
                             .workspace_bytes = workspace_bytes,
                             .refuses = refuses};
const bool kRegistered =
    register_step({"split", kThisBackend, kStepInfo, dispatch<Launcher<false>, kStepInfo>}) &&
    register_step({"split_shared_by_calls", kThisBackend, kStepInfo, dispatch<Launcher<true>, kStepInfo>});

}  // namespace STEP_NAMESPACE
