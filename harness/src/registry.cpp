// What common/interface.h declares: the list of steps, and what every backend refuses alike.
#include <cmath>

#include "common/interface.h"
#include "harness/src/element.h"

namespace flashsteps {
namespace {

std::vector<Step>& mutable_steps() {
  // A function's static: registration happens before main(), in no fixed order. Never destroyed: a thread
  // that outlives main() may still call.
  static auto& steps = *new std::vector<Step>;
  return steps;
}

}  // namespace

bool register_step(const Step& step) {
  mutable_steps().push_back(step);
  return true;
}

const std::vector<Step>& registered_steps() { return mutable_steps(); }

std::vector<LaunchRecord>*& launch_recorder() {
  thread_local std::vector<LaunchRecord>* recorder = nullptr;
  return recorder;
}

std::string refusal(const Step& step, const AttentionCall& call) {
  if (call.dtype == DType::kFp32 && !step.info.supports_fp32) return "supports fp16 and bf16, not fp32";
  if (call.head_dim != 64 && call.head_dim != 128)
    return "supports head_dim 64 and 128, not " + std::to_string(call.head_dim);
  // Kernels fold log2(e) into it.
  if (!(call.softmax_scale > 0.0f && std::isfinite(call.softmax_scale * 2.0f)))
    return "needs a positive softmax_scale, not beyond half of FP32's range";
  const int alignment = step.info.alignment_bytes;
  if (alignment == 0) return "";
  const int64_t bytes = int64_t(element_bytes(call.dtype));
  const struct {
    const char* what;
    const TensorView& view;
    int heads, rows;
  } tensors[] = {{"q", call.q, call.num_heads_q, call.seqlen_q},
                 {"k", call.k, call.num_heads_kv, call.seqlen_kv},
                 {"v", call.v, call.num_heads_kv, call.seqlen_kv},
                 {"o", call.o, call.num_heads_q, call.seqlen_q}};
  for (const auto& [what, view, heads, rows] : tensors) {
    // Nobody steps over a dimension of size 1: frameworks leave any stride there.
    const int64_t offsets[] = {
        int64_t(reinterpret_cast<uintptr_t>(view.data)), call.batch > 1 ? view.batch_stride * bytes : 0,
        heads > 1 ? view.head_stride * bytes : 0, rows > 1 ? view.row_stride * bytes : 0};
    for (const int64_t offset : offsets) {
      if (offset % alignment != 0)
        return "needs every row of " + std::string(what) + " to be " + std::to_string(alignment) +
               "-byte aligned";
    }
  }
  return "";
}

std::string architecture_refusal(const StepInfo& info, const std::string& gpu, int compute_capability) {
  if (compute_capability >= info.needs_sm) return "";
  return "needs sm_" + std::to_string(info.needs_sm) + " or newer, " + gpu + " is sm_" +
         std::to_string(compute_capability);
}

std::string size_error(int batch, int num_heads_q, int num_heads_kv, int64_t seqlen_q, int64_t seqlen_kv,
                       int head_dim) {
  const struct {
    const char* what;
    int64_t value;
  } sizes[] = {{"batch", batch},
               {"heads_q", num_heads_q},
               {"heads_kv", num_heads_kv},
               {"seqlen_q", seqlen_q},
               {"seqlen_kv", seqlen_kv}};
  for (const auto& size : sizes) {
    if (size.value < 1)
      return std::string(size.what) + " is " + std::to_string(size.value) + ", it must be at least 1";
  }
  if (head_dim != 64 && head_dim != 128)
    return "head_dim is " + std::to_string(head_dim) + ", the steps know 64 and 128";
  if (num_heads_q % num_heads_kv != 0)
    return "heads_q (" + std::to_string(num_heads_q) + ") is not a multiple of heads_kv (" +
           std::to_string(num_heads_kv) + ")";
  // Row counts and one-past-the-end indices are kept in int by the kernels; element offsets are 64-bit.
  if (seqlen_q > (1 << 30) || seqlen_kv > (1 << 30)) return "sequence lengths are limited to 2^30";
  const double elements = double(batch) * num_heads_q * (double(seqlen_q) + double(seqlen_kv)) * head_dim;
  if (elements > 1e15) return "the shape overflows: its tensors would have more than 10^15 elements";
  return "";
}

}  // namespace flashsteps
