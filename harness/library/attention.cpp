// The public functions of flashsteps.h: check the call, choose a step, run it.
#include "harness/library/attention.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "common/device_error.h"
#include "common/emulator/emulator.h"
#include "common/interface.h"
#include "harness/base/call_tensors.h"
#include "harness/device/gpu.h"
#include "harness/device/tuning.h"
#include "harness/include/flashsteps.h"
#include "harness/library/default_step.h"

namespace flashsteps {
namespace {

// ---- Which step

// The steps of a backend in the order in which they are tried where the default step (default_step.h) cannot
// run a call: those of the ladder, vNN, from the last to the first. Of the recorded steps that can run a call
// the last one is the fastest: scripts/tests/test_ladder.py.
// An ablation, which has the number of its step, comes behind that, and what has no number comes last.
std::vector<const Step*> ordered_steps(BackendKind backend) {
  std::vector<const Step*> steps;
  for (const Step& step : registered_steps()) {
    if (step.backend == backend) steps.push_back(&step);
  }
  const auto order = [](const Step* step) {
    int number = -1;
    std::sscanf(step->name, "v%d_", &number);
    return std::pair(-number, std::string_view(step->name));
  };
  std::ranges::sort(steps, {}, order);
  return steps;
}

// Never destroyed, as all that calls need: a thread may outlive main().
const std::vector<const Step*>& candidates(BackendKind backend) {
  static const auto& cuda = *new const auto(ordered_steps(BackendKind::kCuda));
  static const auto& emulator = *new const auto(ordered_steps(BackendKind::kEmulator));
  return backend == BackendKind::kCuda ? cuda : emulator;
}

const Step& named_step(std::string_view name, BackendKind backend) {
  if (const Step* step = find_step(name, backend)) return *step;
  std::string known;
  for (const StepDescription& step : steps()) known += (known.empty() ? "" : ", ") + std::string(step.name);
  throw std::invalid_argument("unknown step '" + std::string(name) + "'; there are " + known);
}

// ---- What is wrong with a call

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

bool has_queries(const AttentionCall& c) { return c.batch != 0 && c.num_heads_q != 0 && c.seqlen_q != 0; }

void check_backward(const AttentionCall& c) {
  if (c.dtype == DType::kE4m3)
    refuse("the backward pass is for fp32, fp16 and bf16, and dtype is " + name(c.dtype));
  const std::pair<const char*, bool> others[] = {{"earlier", c.earlier.o != nullptr},
                                                 {"page_table", c.page_table.pages != nullptr},
                                                 {"fast", c.fast},
                                                 {"fp8_cache", c.fp8_cache},
                                                 {"quantize", c.quantize}};
  for (const auto& [what, is_there] : others) {
    if (is_there) refuse("the backward pass does not support " + std::string(what));
  }
}

// False where nothing is wrong with the call, and no step is to run for it either: it has no queries.
bool check_call(const AttentionCall& c, std::string_view step) {
  const int least = has_queries(c) ? 1 : 0;
  if (const std::string error =
          size_error(c.batch, c.num_heads_q, c.num_heads_kv, c.seqlen_q, c.seqlen_kv, c.head_dim, least);
      !error.empty())
    refuse(error);
  if (c.dtype != DType::kFp32 && c.dtype != DType::kFp16 && c.dtype != DType::kBf16 &&
      c.dtype != DType::kE4m3)
    refuse("dtype is none of DType's");
  if (c.fp8_cache && c.dtype != DType::kFp16 && c.dtype != DType::kBf16)
    refuse("fp8_cache is for fp16 and bf16, and dtype is " + name(c.dtype));
  if (c.quantize && c.dtype != DType::kFp16 && c.dtype != DType::kBf16)
    refuse("quantize is for fp16 and bf16, and dtype is " + name(c.dtype));
  if (c.backward) check_backward(c);
  if (!has_queries(c)) {
    if (!step.empty()) named_step(step, BackendKind::kEmulator);  // which has all steps
    return false;
  }
  if (const std::string error = page_table_error(c); !error.empty()) refuse(error);
  const size_t element = element_bytes(c.dtype), kv_element = element_bytes(c.kv_dtype());
  const struct {
    const char* name;
    const void* pointer;
    size_t alignment;
    bool needed = false;
  } pointers[] = {{"q", c.q.data, element, true},
                  {"k", c.k.data, kv_element, true},
                  {"v", c.v.data, kv_element, true},
                  {"o", c.o.data, element_bytes(output_type(c.dtype)), true},
                  {"lse", c.lse, sizeof(float), c.backward},
                  {"d_o", c.d_o.data, element, c.backward},
                  {"dq", c.dq.data, element, c.backward},
                  {"dk", c.dk.data, element, c.backward},
                  {"dv", c.dv.data, element, c.backward},
                  {"kv_lengths", c.kv_lengths, sizeof(int)},
                  {"page_table", c.page_table.pages, sizeof(int)},
                  {"q_descale", c.q_descale.data, sizeof(float)},
                  {"k_descale", c.k_descale.data, sizeof(float)},
                  {"v_descale", c.v_descale.data, sizeof(float)}};
  for (const auto& [name, pointer, alignment, needed] : pointers) {
    if (pointer == nullptr && needed) refuse(std::string(name) + " is a null pointer");
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
      refuse(std::string(name) + " is not aligned to its elements of " + std::to_string(alignment) +
             " bytes");
  }
  for (const Descale& each : {c.q_descale, c.k_descale, c.v_descale}) {
    if (each.batch_stride < 0 || each.head_stride < 0) refuse("a scale has a negative stride");
  }
  if (c.earlier.o != nullptr && (c.earlier.lse == nullptr || c.earlier.rows < c.seqlen_q || c.lse != nullptr))
    refuse("earlier needs an lse and as many rows as there are queries, and lse is null then");
  // Rows that share memory are fine to read, and a race to write.
  const AttentionCall seen = with_kernel_strides(c);
  const auto check_written = [&](const char* what, const TensorView& view) {
    for (const int64_t stride : {view.batch_stride, view.head_stride, view.row_stride}) {
      if (std::abs(stride) < c.head_dim)
        refuse(std::string(what) + " has a stride below head_dim: its rows overlap");
    }
  };
  if (c.backward) {
    check_written("dq", seen.dq);
    check_written("dk", seen.dk);
    check_written("dv", seen.dv);
  } else {
    check_written("o", seen.o);
  }
  return true;
}

// Of a call without queries: where it asks for gradients, those of K and V are zero.
void zero_gradients(const AttentionCall& c, const std::function<void(void* memory, size_t bytes)>& zero) {
  if (!c.backward) return;
  const auto [d_o, dq, dk, dv] = gradients_of(c);
  for (const auto& [what, tensor] : {std::pair("dk", dk), std::pair("dv", dv)}) {
    if (tensor.num_rows() == 0) continue;
    if (tensor.view.data == nullptr) refuse(std::string(what) + " is a null pointer");
    if (tensor.extent() == tensor.bytes()) {
      zero(tensor.begin(), tensor.bytes());
      continue;
    }
    for (int64_t row = 0; row < tensor.num_rows(); ++row) zero(tensor.row(row), tensor.row_bytes);
  }
}
void zero_gradients_on_host(const AttentionCall& c) {
  zero_gradients(c, [](void* memory, size_t bytes) { std::memset(memory, 0, bytes); });
}

// Of a call whose lengths and page table are in host memory.
void check_lengths_and_pages(const AttentionCall& c) {
  for (int b = 0; c.kv_lengths != nullptr && b < c.batch; ++b) {
    if (c.kv_lengths[b] < 0 || c.kv_lengths[b] > c.seqlen_kv)
      refuse("kv_lengths[" + std::to_string(b) + "] is " + std::to_string(c.kv_lengths[b]) +
             ", it must be 0 to seqlen_kv, which is " + std::to_string(c.seqlen_kv));
  }
  if (const std::string error = wrong_page(c); !error.empty()) refuse("page_table" + error);
}

// ---- Which step, in which configuration, with how much workspace

// On this GPU, or with nullptr on the emulator.
BackendKind backend_of(const Gpu* gpu) {
  return gpu != nullptr ? BackendKind::kCuda : BackendKind::kEmulator;
}

// Why the step cannot run the call, as far as that is known without launching it.
std::string refusal_of(const Step& step, const Gpu* gpu, const AttentionCall& call) {
  if (std::string reason = refusal(step, call); !reason.empty() || gpu == nullptr) return reason;
  return architecture_refusal(step.info, gpu->name, gpu->compute_capability);
}

// The call with what `flashsteps tune` has found out for this step and device.
AttentionCall tuned(const Step& step, const Gpu* gpu, const AttentionCall& call) {
  if (call.num_splits > 0) return call;  // that is the caller's choice
  const Tuning& tuning = tuning_of_process();
  if (const std::string warning = take_tuning_warning(); !warning.empty())
    std::fprintf(stderr, "flashsteps: %s\n", warning.c_str());
  AttentionCall chosen = call;
  if (!tuning.choose(step, gpu ? std::string_view(gpu->name) : "emulator", gpu ? gpu->num_sms : 0, chosen))
    return call;
  // A caller's workspace may be that of the step's own choice.
  const bool has_room =
      call.workspace == nullptr || needed_workspace(step.info, chosen) <= call.workspace_bytes;
  return has_room ? chosen : call;
}

// kChosenByStep, if it has none of this name.
int configuration_number(const StepInfo& info, std::string_view name) {
  for (int i = 0; i < info.num_configurations(); ++i)
    if (info.configurations[i] == name) return i;
  return AttentionCall::kChosenByStep;
}

struct Plan {
  const Step* step;
  AttentionCall call;  // with what was tuned for it, or what is the default
  size_t workspace_bytes;
};

// The plan of the named step. If none is named: of the default step, or of the first candidate that can run
// the call; steps for what the call is, decode or prefill, come before the others. use(plan) answers why that
// one will not do after all, or "".
template <typename Use>
Plan first_plan(const Gpu* gpu, const AttentionCall& call, std::string_view step_name, Use use) {
  Plan plan{};
  std::string why;
  const auto will_do = [&](const Step& step, std::string_view configuration = {}) {
    std::string reason = refusal_of(step, gpu, call);
    if (reason.empty()) {
      plan = {&step, tuned(step, gpu, call), 0};
      if (plan.call.configuration == AttentionCall::kChosenByStep)
        plan.call.configuration = configuration_number(step.info, configuration);
      plan.workspace_bytes = needed_workspace(step.info, plan.call);
      reason = use(plan);
    }
    if (!reason.empty()) why = std::string(step.name) + " " + reason;
    return reason.empty();
  };
  if (!step_name.empty()) {
    if (!will_do(named_step(step_name, backend_of(gpu)))) refuse(why);
    return plan;
  }
  constexpr double kBytesPerUs = 4.9e6, kL2Bytes = 60 << 20;  // the emulator pretends to be an H200
  const Card card = gpu != nullptr ? Card{gpu->num_sms, gpu->memory_bytes_per_us, gpu->l2_bytes}
                                   : Card{emulator::options().num_sms, kBytesPerUs, kL2Bytes};
  const DefaultStep first = default_step(call, card);
  if (const Step* const step = find_step(first.step, backend_of(gpu));
      step != nullptr && will_do(*step, first.configuration))
    return plan;
  for (const bool for_this : {true, false}) {
    for (const Step* step : candidates(backend_of(gpu))) {
      if (step->info.backward != call.backward) continue;
      if ((step->info.purpose == purpose_of(call)) == for_this && will_do(*step)) return plan;
    }
  }
  refuse("no step can run this call: " + (why.empty() ? "there is none" : why));
}

constexpr auto kWillDo = [](const Plan&) { return std::string(); };

// The stream's or its graph's counters, or else memory that becomes zero before the step runs.
unsigned* find_counters(bool on_gpu, void* stream, const FindMemory& find) {
  if (unsigned* const counters = on_gpu ? gpu_counters(stream) : nullptr) return counters;
  void* const memory = find(MemoryFor::kCounters, kCounterBytes);
  if (on_gpu) {
    gpu_fill_zero(memory, kCounterBytes, stream);
  } else {
    std::memset(memory, 0, kCounterBytes);
  }
  return static_cast<unsigned*>(memory);
}

// Runs the named step, or the first candidate that can run the call. A launch that is refused has launched
// nothing. `find` finds the memory that the call does not have; null: that is the caller's to do.
std::string_view run_step(const Gpu* gpu, const AttentionCall& call, void* stream, std::string_view step_name,
                          const FindMemory& find) {
  const auto run = [&](Plan& plan) -> std::string {
    const StepInfo& info = plan.step->info;
    AttentionCall& complete = plan.call;
    if (plan.workspace_bytes > 0 && find && call.workspace == nullptr) {
      complete.workspace = find(MemoryFor::kWorkspace, plan.workspace_bytes);
      complete.workspace_bytes = plan.workspace_bytes;
    }
    if (info.uses_counters && find && call.counters == nullptr)
      complete.counters = find_counters(gpu != nullptr, stream, find);
    if (std::string reason = memory_refusal(info, complete); !reason.empty()) return reason;
    try {
      plan.step->run(complete, stream);
    } catch (const DeviceError&) {
      throw;
    } catch (const std::system_error&) {  // the emulator's host threads: nothing is wrong with the call
      throw;
    } catch (const emulator::Report& report) {
      if (report.bug != emulator::Bug::kLaunch) throw;
      return report.what();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  return first_plan(gpu, call, step_name, run).step->name;
}

// ---- Tensors in host memory

// Memory, and what is to be done with it in the end.
using Memory = std::unique_ptr<void, void (*)(void*)>;

// While these live, kernels on the emulator may touch a call's tensors.
std::vector<Memory> register_memory(const AttentionCall& call) {
  std::vector<Memory> registered;
  for (const CallMemory& memory : memory_of(call)) {
    emulator::register_memory(memory.begin, memory.bytes);
    registered.emplace_back(memory.begin, emulator::unregister_memory);
  }
  return registered;
}

}  // namespace

std::string_view queue_attention(const AttentionCall& call, void* stream, std::string_view step,
                                 const FindMemory& find) {
  if (!check_call(call, step)) {
    zero_gradients(call, [&](void* memory, size_t bytes) { gpu_fill_zero(memory, bytes, stream); });
    return {};
  }
  drop_old_gpu_error();
  return run_step(&current_gpu(), call, stream, step, find);
}

std::string_view attention(const AttentionCall& call, void* stream, std::string_view step) {
  return queue_attention(call, stream, step, {});
}

size_t workspace_bytes(const AttentionCall& call, std::string_view step) {
  if (!check_call(call, step)) return 0;
  const auto use = [&](const Plan& plan) { return counters_refusal(plan.step->info, call); };
  return first_plan(&current_gpu(), call, step, use).workspace_bytes;
}

std::string wrong_page(const AttentionCall& c) {
  const PageTable& table = c.page_table;
  for (int b = 0; table.pages != nullptr && b < c.batch; ++b) {
    const int length = c.kv_lengths != nullptr ? c.kv_lengths[b] : c.seqlen_kv;
    for (int i = 0; int64_t(i) * table.page_size < length; ++i) {
      const int page = table.pages[int64_t(b) * table.max_pages + i];
      if (page < 0 || page >= table.num_pages)
        return "[" + std::to_string(b) + "][" + std::to_string(i) + "] is " + std::to_string(page) +
               ", it must be 0 to " + std::to_string(table.num_pages - 1) + ": sequence " +
               std::to_string(b) + " has " + std::to_string(length) + " keys, in pages of " +
               std::to_string(table.page_size);
    }
  }
  return "";
}

size_t plan_attention(const AttentionCall& call, std::string_view step, bool on_current_device) {
  if (!check_call(call, step)) return 0;
  first_plan(nullptr, call, step, kWillDo);
  if (!on_current_device && !missing_gpu().empty()) return 0;
  try {
    const Plan plan = first_plan(&current_gpu(), call, step, kWillDo);
    const bool needs_memory = plan.step->info.uses_counters || plan.workspace_bytes > 0;
    return needs_memory ? kCounterBytes + plan.workspace_bytes : 0;
  } catch (const std::invalid_argument&) {
    if (on_current_device) throw;
    return 0;
  }
}

std::string_view attention_from_host(const AttentionCall& call, std::string_view step) {
  if (!check_call(call, step)) {
    zero_gradients_on_host(call);
    return {};
  }
  check_lengths_and_pages(call);
  if (call.earlier.o != nullptr) refuse("earlier is not copied to the device and back");
  current_gpu();  // throws where there is none
  std::vector<Memory> memory;
  const auto allocate = [&](size_t bytes) {
    return memory.emplace_back(gpu_allocate(bytes), gpu_release).get();
  };
  AttentionCall on_gpu = call;
  struct Copied {
    CallTensor on_host;
    TensorView* on_gpu;
    bool is_result;
  };
  const auto [q, k, v, o] = tensors_of(call);
  std::vector<Copied> all = {
      {q, &on_gpu.q, false}, {k, &on_gpu.k, false}, {v, &on_gpu.v, false}, {o, &on_gpu.o, !call.backward}};
  if (call.backward) {
    const auto [d_o, dq, dk, dv] = gradients_of(call);
    const Copied more[] = {
        {d_o, &on_gpu.d_o, false}, {dq, &on_gpu.dq, true}, {dk, &on_gpu.dk, true}, {dv, &on_gpu.dv, true}};
    all.insert(all.end(), std::begin(more), std::end(more));
  }
  std::vector<char> staging(std::max({q.bytes(), k.bytes(), o.bytes()}));
  for (const auto& [on_host, view, is_result] : all) {
    *view = bhsd_view(allocate(on_host.bytes()), on_host.heads, on_host.rows, call.head_dim);
    if (is_result) continue;
    for (int64_t row = 0; row < on_host.num_rows(); ++row)
      std::memcpy(&staging[row * on_host.row_bytes], on_host.row(row), on_host.row_bytes);
    gpu_upload(view->data, staging.data(), on_host.bytes());
  }
  const size_t lse_bytes = o.num_rows() * sizeof(float);
  if (call.lse != nullptr) on_gpu.lse = static_cast<float*>(allocate(lse_bytes));
  if (call.backward) gpu_upload(on_gpu.lse, call.lse, lse_bytes);
  if (call.kv_lengths != nullptr) {
    void* const lengths = allocate(call.batch * sizeof(int));
    gpu_upload(lengths, call.kv_lengths, call.batch * sizeof(int));
    on_gpu.kv_lengths = static_cast<const int*>(lengths);
  }
  if (call.page_table.pages != nullptr) {
    const size_t table_bytes = size_t(call.batch) * call.page_table.max_pages * sizeof(int);
    void* const table = allocate(table_bytes);
    gpu_upload(table, call.page_table.pages, table_bytes);
    on_gpu.page_table.pages = static_cast<const int*>(table);
  }
  for (Descale* const each : {&on_gpu.q_descale, &on_gpu.k_descale, &on_gpu.v_descale}) {
    if (each->data == nullptr) continue;
    const size_t count = descale_extent(call, *each);
    void* const scales = allocate(count * sizeof(float));
    gpu_upload(scales, each->data, count * sizeof(float));
    each->data = static_cast<const float*>(scales);
  }
  on_gpu.workspace = nullptr;  // the caller's are in host memory
  on_gpu.counters = nullptr;

  const auto find = [&](MemoryFor, size_t bytes) { return allocate(bytes); };
  const std::string_view used = run_step(&current_gpu(), on_gpu, nullptr, step, find);
  for (const auto& [on_host, view, is_result] : all) {
    if (!is_result) continue;
    gpu_download(staging.data(), view->data, on_host.bytes());
    for (int64_t row = 0; row < on_host.num_rows(); ++row)
      std::memcpy(on_host.row(row), &staging[row * on_host.row_bytes], on_host.row_bytes);
  }
  if (call.lse != nullptr && !call.backward) gpu_download(call.lse, on_gpu.lse, lse_bytes);
  return used;
}

std::string_view attention_on_emulator(const AttentionCall& call, std::string_view step,
                                       const std::atomic<bool>* cancel) {
  if (!check_call(call, step)) {
    zero_gradients_on_host(call);
    return {};
  }
  check_lengths_and_pages(call);
  // Its options and counters are the process's. A process that forks waits for the call that is under way:
  // its child would have no thread to end it, and the lock for ever. Never destroyed, see above.
  static std::timed_mutex& one_at_a_time = *new std::timed_mutex;
  static const int registered = pthread_atfork([] { one_at_a_time.lock(); }, [] { one_at_a_time.unlock(); },
                                               [] { one_at_a_time.unlock(); });
  if (registered != 0) throw std::system_error(registered, std::generic_category(), "pthread_atfork");
  std::unique_lock lock(one_at_a_time, std::defer_lock);
  while (!lock.try_lock_for(std::chrono::milliseconds(50))) {
    if (cancel != nullptr && *cancel)
      throw std::system_error(std::make_error_code(std::errc::operation_canceled));
  }
  emulator::options() = {};
  struct Cancellable {
    explicit Cancellable(const std::atomic<bool>* flag) { emulator::cancel_by(flag); }
    ~Cancellable() { emulator::cancel_by(nullptr); }
  } const cancellable(cancel);
  const std::vector<Memory> touchable = register_memory(call);
  AttentionCall emulated = call;
  // One that no kernel has used: the emulator sees what is read before it is written.
  emulated.workspace = nullptr;
  emulated.counters = nullptr;
  std::vector<Memory> found;
  return run_step(nullptr, emulated, nullptr, step, [&](MemoryFor, size_t bytes) {
    return found.emplace_back(emulator::allocate(bytes), emulator::release).get();
  });
}

AttentionCall as_attention(const KvCacheCall& c) {
  if (c.head_dim < 1) refuse("head_dim is " + std::to_string(c.head_dim) + ", the steps support 64 and 128");
  const bool pages = c.page_table.pages != nullptr;
  const int64_t room = int64_t(c.page_table.max_pages) * c.page_table.page_size;
  const int64_t keys = pages && c.seqlen_kv == 0 ? room : c.seqlen_kv;
  if (keys > (1 << 30)) refuse("sequence lengths are limited to 2^30");
  if (c.dtype == DType::kE4m3) refuse("q in e4m3 is not supported: set fp8_cache where only the cache is");
  AttentionCall call{};
  call.dtype = c.dtype;
  call.batch = c.batch;
  call.num_heads_q = c.num_heads_q;
  call.num_heads_kv = c.num_heads_kv;
  call.seqlen_q = c.seqlen_q;
  call.seqlen_kv = int(keys);
  call.head_dim = c.head_dim;
  call.causal = c.causal;
  call.softmax_scale = c.scale != 0 ? c.scale : 1.0f / std::sqrt(float(c.head_dim));
  call.page_table = c.page_table;
  call.q = bshd_view(c.q, c.num_heads_q, c.seqlen_q, c.head_dim);
  call.k = bshd_view(c.k_cache, c.num_heads_kv, call.kv_block_rows(), c.head_dim);
  call.v = bshd_view(c.v_cache, c.num_heads_kv, call.kv_block_rows(), c.head_dim);
  call.o = bshd_view(c.o, c.num_heads_q, c.seqlen_q, c.head_dim);
  call.num_splits = c.num_splits;
  call.lse = c.lse;
  call.kv_lengths = c.cache_seqlens;
  call.fp8_cache = c.fp8_cache;
  call.k_descale = c.k_descale;
  call.v_descale = c.v_descale;
  call.workspace = c.workspace;
  call.workspace_bytes = c.workspace_bytes;
  call.counters = c.counters;
  return call;
}

std::vector<StepDescription> steps() {
  std::vector<StepDescription> all;
  for (const Step& step : registered_steps()) {
    const bool cuda = step.backend == BackendKind::kCuda;
    const auto known = std::ranges::find(all, std::string_view(step.name), &StepDescription::name);
    if (known != all.end()) {
      known->has_cuda |= cuda;
    } else {
      const StepInfo& info = step.info;
      const Architecture needed(info.needs_sm);
      all.push_back({.name = step.name,
                     .title = info.title,
                     .removes = info.removes,
                     .part = kPartNames[int(info.part)],
                     .purpose = kPurposeNames[int(info.purpose)],
                     .dtypes = info.dtypes,
                     .alignment_bytes = info.alignment_bytes,
                     .needs_sm = needed.sm,
                     .needs_sm_exactly = needed.exact,
                     .configurations = {info.configurations, info.configurations + info.num_configurations()},
                     .uses_counters = info.uses_counters,
                     .pages = info.pages,
                     .fast = info.fast,
                     .no_lse = info.no_lse,
                     .fp8_cache = info.fp8_cache,
                     .quantizes = info.quantizes,
                     .backward = info.backward,
                     .varies = info.varies != nullptr ? info.varies : "",
                     .spills = info.spills != nullptr ? info.spills : "",
                     .has_cuda = cuda});
    }
  }
  std::ranges::sort(all, {}, &StepDescription::name);
  return all;
}

}  // namespace flashsteps
