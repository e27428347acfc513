// What common/interface.h declares: the list of steps, and what every backend refuses alike.
#include "common/interface.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace flashsteps {
namespace {

std::vector<Step>& mutable_steps() {
  // A function's static: registration happens before main(), in no fixed order. Never destroyed: a thread
  // that outlives main() may still call.
  static auto& steps = *new std::vector<Step>;
  return steps;
}

// Why the rows of a tensor are not aligned to so many bytes; empty when all are.
std::string misaligned(int alignment, const AttentionCall& call) {
  if (alignment == 0) return "";
  const AttentionCall seen = with_kernel_strides(call);
  struct Tensor {
    const char* what;
    TensorView view;
    DType dtype;
  };
  std::vector<Tensor> tensors = {{"q", seen.q, call.dtype},
                                 {"k", seen.k, call.kv_dtype()},
                                 {"v", seen.v, call.kv_dtype()},
                                 {"o", seen.o, output_type(call.dtype)}};
  if (call.backward) {
    tensors.insert(tensors.end(), {{"d_o", seen.d_o, call.dtype},
                                   {"dq", seen.dq, call.dtype},
                                   {"dk", seen.dk, call.dtype},
                                   {"dv", seen.dv, call.dtype}});
  }
  for (const auto& [what, view, dtype] : tensors) {
    const auto bytes = int64_t(element_bytes(dtype));
    for (const int64_t offset : {int64_t(reinterpret_cast<uintptr_t>(view.data)), view.batch_stride * bytes,
                                 view.head_stride * bytes, view.row_stride * bytes}) {
      if (offset % alignment != 0)
        return "needs every row of " + std::string(what) + " to be " + std::to_string(alignment) +
               "-byte aligned";
    }
  }
  return "";
}

std::string names_of(DTypes dtypes) {  // "fp16 and bf16"
  std::vector<std::string> names;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32, DType::kE4m3}) {
    if (dtypes.has(dtype)) names.push_back(name(dtype));
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  return text;
}

}  // namespace

std::string name(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kFp16:
      return "fp16";
    case DType::kBf16:
      return "bf16";
    case DType::kE4m3:
      return "e4m3";
  }
  return "?";
}

bool register_step(const Step& step) {
  mutable_steps().push_back(step);
  return true;
}

const std::vector<Step>& registered_steps() { return mutable_steps(); }

bool keep_only_step(std::string_view name) {
  const auto is_other = [&](const Step& step) { return step.name != name; };
  if (std::all_of(mutable_steps().begin(), mutable_steps().end(), is_other)) return false;
  std::erase_if(mutable_steps(), is_other);
  return true;
}

const Step* find_step(std::string_view name, BackendKind backend) {
  for (const Step& step : registered_steps()) {
    if (step.name == name && step.backend == backend) return &step;
  }
  return nullptr;
}

std::vector<LaunchRecord>*& launch_recorder() {
  thread_local std::vector<LaunchRecord>* recorder = nullptr;
  return recorder;
}

std::string refusal(const Step& step, const AttentionCall& call) {
  const StepInfo& info = step.info;
  if (!info.dtypes.has(call.dtype)) return "supports " + names_of(info.dtypes) + ", not " + name(call.dtype);
  if (info.fp8_cache && !call.fp8_cache)
    return "needs K and V in e4m3, this call has them in " + name(call.kv_dtype());
  if (!info.fp8_cache && call.fp8_cache) return "cannot read K and V in e4m3 with q in " + name(call.dtype);
  if (info.quantizes && !call.quantize) return "rounds to e4m3, and the call does not ask for that";
  if (!info.quantizes && call.quantize) return "does not round q, k and v to e4m3";
  if (info.backward && !call.backward) return "computes gradients, and the call does not ask for them";
  if (!info.backward && call.backward) return "computes no gradients";
  // A call with more query heads than a grid has is split between them, but not where their gradients are
  // summed.
  if (call.backward && call.num_heads_q / std::max(1, call.num_heads_kv) > kMaxGridYZ)
    return "cannot sum the gradients of more than " + std::to_string(kMaxGridYZ) + " query heads";
  // Kernels fold log2(e) into it.
  if (!(call.softmax_scale > 0.0f && std::isfinite(call.softmax_scale * 2.0f)))
    return "needs a positive softmax_scale, not beyond half of FP32's range";
  if (std::string reason = misaligned(info.alignment_bytes, call); !reason.empty()) return reason;
  if (info.fast && !call.fast) return "approximates, and the call asks for exact results";
  if (info.no_lse && call.lse != nullptr) return "computes no log-sum-exp, and the call asks for it";
  if (call.earlier.o != nullptr && !info.merges) return "cannot merge its result with an earlier one";
  if (call.page_table.pages != nullptr && !info.pages) return "cannot read K and V through a page table";
  const int configuration = configuration_of(info, call);
  if (configuration < 0 || configuration >= std::max(1, info.num_configurations()))
    return "has no configuration " + std::to_string(call.configuration);
  if (info.refuses == nullptr) return "";
  AttentionCall configured = call;
  configured.configuration = configuration;
  return info.refuses(configured);
}

std::string architecture_refusal(const StepInfo& info, const std::string& gpu, int compute_capability) {
  const Architecture needed(info.needs_sm);
  if (needed.exact ? compute_capability == needed.sm : compute_capability >= needed.sm) return "";
  return "needs sm_" + std::string(info.needs_sm) + (needed.exact ? " and nothing else, " : " or newer, ") +
         gpu + " is sm_" + std::to_string(compute_capability);
}

int configuration_of(const StepInfo& info, const AttentionCall& call) {
  if (call.configuration != AttentionCall::kChosenByStep) return call.configuration;
  int wanted = -1, most = 0;
  for (int c = 0; call.num_splits > 0 && c < info.num_configurations(); ++c) {
    int splits = 0;
    if (std::sscanf(info.configurations[c], "splits%d", &splits) != 1) continue;
    if (splits > call.num_splits || splits <= most) continue;
    wanted = c;
    most = splits;
  }
  if (wanted >= 0) return wanted;
  return info.choose != nullptr ? info.choose(call) : 0;
}

Purpose purpose_of(const AttentionCall& call) {
  constexpr int kMaxDecodeQueries = 16;  // a token, or the few that speculative decoding tries at a time
  return call.seqlen_q <= kMaxDecodeQueries ? Purpose::kDecode : Purpose::kPrefill;
}

size_t needed_workspace(const StepInfo& info, const AttentionCall& call) {
  if (info.workspace_bytes == nullptr) return 0;
  size_t bytes = 0;  // the parts of a call run one after the other
  for (AttentionCall& part : split_for_grid(call)) {
    part.configuration = configuration_of(info, part);
    bytes = std::max(bytes, info.workspace_bytes(part));
  }
  return bytes;
}

std::string counters_refusal(const StepInfo& info, const AttentionCall& call) {
  return info.uses_counters && call.counters == nullptr ? "needs counters, this call has none" : "";
}

std::string memory_refusal(const StepInfo& info, const AttentionCall& call) {
  if (std::string reason = counters_refusal(info, call); !reason.empty()) return reason;
  const size_t needed = needed_workspace(info, call);
  if (needed == 0) return "";
  if (call.workspace == nullptr || call.workspace_bytes < needed)
    return "needs a workspace of " + std::to_string(needed) + " bytes, this call has " +
           (call.workspace == nullptr ? "none" : std::to_string(call.workspace_bytes));
  if (reinterpret_cast<uintptr_t>(call.workspace) % kWorkspaceAlignment != 0)
    return "needs a workspace aligned to " + std::to_string(kWorkspaceAlignment) + " bytes";
  return "";
}

AttentionCall with_kernel_strides(AttentionCall call) {
  const auto replace = [&](TensorView& view, int blocks, int heads, int rows) {
    if (blocks <= 1) view.batch_stride = call.head_dim;
    if (heads <= 1) view.head_stride = call.head_dim;
    if (rows <= 1) view.row_stride = call.head_dim;
  };
  replace(call.q, call.batch, call.num_heads_q, call.seqlen_q);
  replace(call.k, call.kv_blocks(), call.num_heads_kv, call.kv_block_rows());
  replace(call.v, call.kv_blocks(), call.num_heads_kv, call.kv_block_rows());
  replace(call.o, call.batch, call.num_heads_q, call.seqlen_q);
  replace(call.d_o, call.batch, call.num_heads_q, call.seqlen_q);
  replace(call.dq, call.batch, call.num_heads_q, call.seqlen_q);
  replace(call.dk, call.batch, call.num_heads_kv, call.seqlen_kv);
  replace(call.dv, call.batch, call.num_heads_kv, call.seqlen_kv);
  return call;
}

std::vector<AttentionCall> split_for_grid(const AttentionCall& call) {
  if (call.batch <= kMaxGridYZ && call.num_heads_q <= kMaxGridYZ) return {call};
  const auto moved = [](TensorView view, DType dtype, int batch, int head) {
    view.data = static_cast<char*>(view.data) +
                (batch * view.batch_stride + head * view.head_stride) * int64_t(element_bytes(dtype));
    return view;
  };
  // A part has as many whole groups of query heads (those that share a KV head) as fit, or a piece of one
  // group. LSE is contiguous, so a part without all of the heads has only one batch.
  const int group = call.num_heads_q / call.num_heads_kv;
  const bool all_heads = call.num_heads_q <= kMaxGridYZ;
  const int heads = all_heads            ? call.num_heads_q
                    : group > kMaxGridYZ ? kMaxGridYZ
                                         : kMaxGridYZ / group * group;
  const int batches = all_heads ? kMaxGridYZ : 1;
  std::vector<AttentionCall> parts;
  for (int b = 0; b < call.batch; b += batches) {
    for (int h = 0; h < call.num_heads_q;) {
      const int end_of_group = group > kMaxGridYZ ? (h / group + 1) * group : call.num_heads_q;
      AttentionCall part = call;
      part.batch = std::min(batches, call.batch - b);
      part.num_heads_q = std::min(heads, end_of_group - h);
      part.num_heads_kv = std::max(1, part.num_heads_q / group);
      part.q = moved(call.q, call.dtype, b, h);
      const bool paged = call.page_table.pages != nullptr;  // all sequences share the pool
      part.k = moved(call.k, call.kv_dtype(), paged ? 0 : b, h / group);
      part.v = moved(call.v, call.kv_dtype(), paged ? 0 : b, h / group);
      for (Descale* const each : {&part.q_descale, &part.k_descale, &part.v_descale})
        if (each->data != nullptr) each->data += b * each->batch_stride + h / group * each->head_stride;
      if (paged) part.page_table.pages += int64_t(b) * call.page_table.max_pages;
      part.o = moved(call.o, output_type(call.dtype), b, h);
      part.d_o = moved(call.d_o, call.dtype, b, h);
      part.dq = moved(call.dq, call.dtype, b, h);
      part.dk = moved(call.dk, call.dtype, b, h / group);
      part.dv = moved(call.dv, call.dtype, b, h / group);
      if (call.lse != nullptr) part.lse = call.lse + (int64_t(b) * call.num_heads_q + h) * call.seqlen_q;
      if (call.kv_lengths != nullptr) part.kv_lengths = call.kv_lengths + b;
      if (call.earlier.o != nullptr) {
        const int64_t rows = (int64_t(b) * call.num_heads_q + h) * call.earlier.rows;
        part.earlier.o += rows * call.head_dim;
        part.earlier.lse += rows;
      }
      parts.push_back(part);
      h += part.num_heads_q;
    }
  }
  return parts;
}

std::string page_table_error(const AttentionCall& call) {
  const PageTable& table = call.page_table;
  if (table.pages == nullptr) return "";
  const auto is = [](const char* what, int value) {
    return "page_table: " + std::string(what) + " is " + std::to_string(value);
  };
  if (table.page_size < 1 || (table.page_size & (table.page_size - 1)) != 0)
    return is("page_size", table.page_size) + ", it must be a power of two";
  if (table.num_pages < 1) return is("num_pages", table.num_pages) + ", it must be at least 1";
  if (int64_t(table.max_pages) * table.page_size < call.seqlen_kv)
    return is("max_pages", table.max_pages) + ", so a sequence has room for " +
           std::to_string(int64_t(table.max_pages) * table.page_size) + " keys, and seqlen_kv is " +
           std::to_string(call.seqlen_kv);
  return "";
}

std::string size_error(int batch, int num_heads_q, int num_heads_kv, int64_t seqlen_q, int64_t seqlen_kv,
                       int head_dim, int least) {
  const struct {
    const char* what;
    int64_t value;
  } sizes[] = {{"batch", batch},
               {"heads_q", num_heads_q},
               {"heads_kv", num_heads_kv},
               {"seqlen_q", seqlen_q},
               {"seqlen_kv", seqlen_kv}};
  for (const auto& size : sizes) {
    if (size.value < least)
      return std::string(size.what) + " is " + std::to_string(size.value) + ", it must be at least " +
             std::to_string(least);
  }
  if (head_dim != 64 && head_dim != 128)
    return "head_dim is " + std::to_string(head_dim) + ", the steps support 64 and 128";
  if (num_heads_kv > 0 && num_heads_q % num_heads_kv != 0)
    return "heads_q (" + std::to_string(num_heads_q) + ") is not a multiple of heads_kv (" +
           std::to_string(num_heads_kv) + ")";
  // Row counts and one-past-the-end indices are kept in int by the kernels; element offsets are 64-bit.
  if (seqlen_q > (1 << 30) || seqlen_kv > (1 << 30)) return "sequence lengths are limited to 2^30";
  const double elements = double(batch) * num_heads_q * (double(seqlen_q) + double(seqlen_kv)) * head_dim;
  if (elements > 1e15) return "the shape overflows: its tensors would have more than 10^15 elements";
  return "";
}

}  // namespace flashsteps
