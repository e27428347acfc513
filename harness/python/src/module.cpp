// flashsteps._core: what the Python package flashsteps asks of the C++ library. Arrays and numbers are
// checked here or in flashsteps/__init__.py, before anything is allocated; whether the step can run such a
// call is the library's to say, before anything is launched.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <vector>

#include "harness/base/build_info.h"
#include "harness/base/text.h"
#include "harness/device/gpu.h"
#include "harness/device/tuning.h"
#include "harness/include/flashsteps.h"
#include "harness/judge/gates.h"
#include "harness/judge/judge.h"
#include "harness/library/attention.h"
#include "harness/python/src/array.h"
#include "harness/python/src/xla_ffi.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashsteps::python {
namespace {

constexpr const char* kDTypeNames[] = {"fp32", "fp16", "bf16"};  // by DType

DType dtype_of(const Array& array) {
  if (array.dtype == "float16") return DType::kFp16;
  if (array.dtype == "bfloat16") return DType::kBf16;
  if (array.dtype == "float32") return DType::kFp32;
  raise_type_error(array.argument, "is " + array.dtype + ", expected float16, bfloat16 or float32");
}

constexpr int64_t kMaxLength = 1 << 30;  // rows are counted in int, with room for one tile more

// Where the heads and the rows are in a shape.
struct Axes {
  int heads, rows;
};

TensorView view_of(const Array& array, Axes axes) {
  return {array.data, array.strides[0], array.strides[axes.heads], array.strides[axes.rows]};
}

void check_memory(const Array& array, int64_t alignment, int device) {
  if (array.device != device)
    raise_value_error(array.argument,
                      "is " + device_text(array.device) + ", and q is " + device_text(device));
  if (reinterpret_cast<uintptr_t>(array.data) % alignment != 0)
    raise_value_error(array.argument, "is not aligned to the " + std::to_string(alignment) +
                                          " bytes of its element: copy it, e.g. with .clone() or .copy()");
}

void check_tensor(const Array& array, const Array& q) {
  const auto bytes = int64_t(element_bytes(dtype_of(array)));
  if (array.dtype != q.dtype) raise_type_error(array.argument, "is " + array.dtype + ", and q is " + q.dtype);
  check_memory(array, bytes, q.device);
  if (array.strides[3] != 1 && !array.empty)
    raise_value_error(array.argument, "has rows that are not contiguous (the stride of head_dim is " +
                                          std::to_string(array.strides[3]) +
                                          "): call .contiguous() on it, or copy it");
  for (const int64_t length : array.shape) {
    if (length > kMaxLength)
      raise_value_error(array.argument, "has shape " + shape_text(array.shape, 4) + ", the limit is 2^30");
  }
}

// Without queries nothing is computed: then whatever else there is may be empty, too.
void check_not_empty(const Array& array, const Array& q) {
  if (array.empty && !q.empty)
    raise_value_error(array.argument,
                      "has shape " + shape_text(array.shape, array.dimensions) + ", which is empty");
}

// `pages` of K and V belong to no sequence in particular.
void check_shapes(const Array& q, const Array& k, const Array& v, Axes axes, bool pages) {
  const auto expect = [](const Array& array, const char* what, int64_t found, int64_t expected) {
    if (found != expected)
      raise_value_error(array.argument, "has " + std::string(what) + " " + std::to_string(found) +
                                            ", and q has " + std::to_string(expected));
  };
  if (q.shape[3] != 64 && q.shape[3] != 128)
    raise_value_error("q", "has head_dim " + std::to_string(q.shape[3]) + ", the steps support 64 and 128");
  if (!pages) expect(k, "batch", k.shape[0], q.shape[0]);
  expect(k, "head_dim", k.shape[3], q.shape[3]);
  check_not_empty(k, q);
  const int64_t heads_q = q.shape[axes.heads], heads_kv = k.shape[axes.heads];
  if (heads_kv > 0 && heads_q % heads_kv != 0)
    raise_value_error(k.argument, "has " + std::to_string(heads_kv) + " heads, and q has " +
                                      std::to_string(heads_q) + ", which is not a multiple");
  for (int i = 0; i < 4; ++i) {
    if (v.shape[i] != k.shape[i])
      raise_value_error(v.argument, "has shape " + shape_text(v.shape, 4) + ", and " + k.argument + " has " +
                                        shape_text(k.shape, 4));
  }
}

// Of lengths or a page table: a row of `batch` for each of q's.
void check_integers(const Array& array, const Array& q) {
  if (array.dtype != "int32") raise_type_error(array.argument, "is " + array.dtype + ", expected int32");
  check_memory(array, sizeof(int32_t), q.device);
  const int64_t batch = q.shape[0];
  if (array.shape[0] != batch)
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, array.dimensions) +
                                          ", and the batch is " + std::to_string(batch));
  check_not_empty(array, q);
  int64_t stride = 1;
  for (int i = array.dimensions - 1; i >= 0; --i) {
    if (array.shape[i] > 1 && array.strides[i] != stride && !array.empty)
      raise_value_error(array.argument, "is not contiguous: call .contiguous() on it, or copy it");
    stride *= array.shape[i];
  }
}

void check_kv_lengths(const Array& lengths, const Array& q, int64_t seqlen_kv) {
  check_integers(lengths, q);
  if (lengths.device != kCpu) return;  // the values on a GPU cannot be read without waiting for it
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    const int32_t length = static_cast<const int32_t*>(lengths.data)[b];
    if (length < 0 || length > seqlen_kv)
      raise_value_error(lengths.argument, "[" + std::to_string(b) + "] is " + std::to_string(length) +
                                              ", expected 0 to " + std::to_string(seqlen_kv));
  }
}

// `k` is [pages, page_size, heads_kv, head_dim].
PageTable page_table_of(const Array& array, const Array& q, const Array& k) {
  check_integers(array, q);
  const int64_t page_size = k.shape[1], keys = array.shape[1] * page_size;
  if ((page_size & (page_size - 1)) != 0)
    raise_value_error(k.argument,
                      "has pages of " + std::to_string(page_size) + " keys, expected a power of two");
  if (keys > kMaxLength)
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, 2) + ", which is room for " +
                                          std::to_string(keys) + " keys, the limit is 2^30");
  return {static_cast<const int*>(array.data), int(array.shape[1]), int(page_size), int(k.shape[0])};
}

float scale_of(std::optional<double> scale, int64_t head_dim) {
  if (!scale) return 1.0f / std::sqrt(float(head_dim));
  const float value = float(*scale);
  if (!(value > 0.0f && std::isfinite(2.0f * value)))  // kernels fold log2(e) into it
    raise_value_error("scale",
                      "is " + format("%g", *scale) + ", expected a positive number that float32 holds");
  return value;
}

// Without the GIL other threads of Python go on. When Python ends meanwhile, this thread must not ask for it
// any more: before Python 3.14 the thread would be unwound, which a destructor turns into an abort.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { take(); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // With the GIL in between.
  template <typename Do>
  auto with_gil(Do act) {
    take();
    struct Release {
      ~Release() { state = PyEval_SaveThread(); }
      PyThreadState*& state;
    } afterwards{state_};
    return act();
  }

 private:
  void take() {
    while (python_ends()) pause();  // until the process has ended
    PyEval_RestoreThread(state_);
  }

  // Looked up, because Python 3.13 has renamed it, and the stable ABI of 3.12 has neither.
  static bool python_ends() {
    static const auto ends = [] {
      void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
      if (found == nullptr) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
      return reinterpret_cast<int (*)()>(found);
    }();
    return ends() != 0;
  }

  PyThreadState* state_;
};

// Python's main thread handles signals, Ctrl-C among them, when it asks for them: there another thread calls
// the emulator, and this one asks. So that one needs no GIL to come to its end, and whoever holds the GIL may
// fork(), which waits for that.
void run_on_emulator(const AttentionCall& call, std::string_view step, WithoutGil& no_gil) {
  const bool in_main_thread = gettid() == getpid();
  if (!in_main_thread) {
    attention_on_emulator(call, step);
    return;
  }
  std::atomic<bool> cancel = false;
  auto result = std::async(std::launch::async, [&] { attention_on_emulator(call, step, &cancel); });
  while (result.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    try {
      no_gil.with_gil([] {
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
      });
    } catch (...) {
      cancel = true;
      throw;  // when the future has waited for the other thread
    }
  }
  result.get();
}

// `to_gpu`: arrays on the CPU are copied there, and the result back. `allocate` makes an array of so many
// bytes, on the device; it is called with the GIL.
template <typename Allocate>
void run(const AttentionCall& call, int device, void* stream, std::string_view step, bool to_gpu,
         Allocate allocate) {
  WithoutGil no_gil;
  if (device != kCpu) {
    const CurrentDevice current(device);
    queue_attention(call, stream, step, [&](MemoryFor, size_t bytes) {
      return no_gil.with_gil([&] { return allocate(bytes); });
    });
  } else if (to_gpu) {
    flashsteps::attention_from_host(call, step);
  } else {
    run_on_emulator(call, step, no_gil);
  }
}

// The arguments of a call, checked.
struct Arguments {
  Array q, k, v, kv_lengths, page_table;
  Axes axes;
  AttentionCall call;
};

// What the arguments are called.
struct Names {
  const char *k, *v, *kv_lengths;
};
constexpr Names kOfAttention{"k", "v", "kv_lengths"}, kOfKvCache{"k_cache", "v_cache", "cache_seqlens"};

Arguments read_arguments(const Framework& framework, nb::handle q_array, nb::handle k_array,
                         nb::handle v_array, nb::handle kv_lengths_array, bool causal,
                         std::optional<double> scale, bool bshd, const Names& names = kOfAttention,
                         nb::handle page_table_array = nb::none()) {
  Arguments read{.q = framework.read("q", q_array, 4),
                 .k = framework.read(names.k, k_array, 4),
                 .v = framework.read(names.v, v_array, 4),
                 .kv_lengths = {},
                 .page_table = {},
                 .axes = bshd ? Axes{2, 1} : Axes{1, 2},
                 .call = {}};
  auto& [q, k, v, kv_lengths, page_table, axes, call] = read;
  const bool pages = !page_table_array.is_none();
  for (const Array* const array : {&q, &k, &v}) check_tensor(*array, q);
  check_shapes(q, k, v, axes, pages);
  call.dtype = dtype_of(q);
  call.batch = int(q.shape[0]);
  call.num_heads_q = int(q.shape[axes.heads]);
  call.num_heads_kv = int(k.shape[axes.heads]);
  call.seqlen_q = int(q.shape[axes.rows]);
  call.seqlen_kv = int(k.shape[axes.rows]);
  call.head_dim = int(q.shape[3]);
  call.causal = causal;
  call.softmax_scale = scale_of(scale, call.head_dim);
  call.q = view_of(q, axes);
  call.k = view_of(k, axes);
  call.v = view_of(v, axes);
  if (pages) {
    page_table = framework.read("page_table", page_table_array, 2);
    call.page_table = page_table_of(page_table, q, k);
    call.seqlen_kv = call.page_table.max_pages * call.page_table.page_size;
  }
  if (!kv_lengths_array.is_none()) {
    kv_lengths = framework.read(names.kv_lengths, kv_lengths_array, 1);
    check_kv_lengths(kv_lengths, q, call.seqlen_kv);
    call.kv_lengths = static_cast<const int*>(kv_lengths.data);
  }
  if (pages && q.device == kCpu) {
    if (const std::string wrong = wrong_page(call); !wrong.empty()) raise_value_error("page_table", wrong);
  }
  return read;
}

// Runs the call on the framework's current stream, with memory from its allocator.
void run_for(const Framework& framework, nb::handle q_array, const AttentionCall& call, int device,
             std::optional<std::string_view> step, bool to_gpu) {
  // Until the step is queued, which is when the framework may reuse their memory.
  std::vector<nb::object> arrays;
  const auto allocate = [&](size_t bytes) {
    const size_t floats = (bytes + sizeof(float) - 1) / sizeof(float);
    arrays.push_back(framework.python().attr("empty_fp32")(q_array, nb::make_tuple(floats)));
    return framework.read("memory", arrays.back(), 1).data;
  };
  void* const stream = device == kCpu ? nullptr : framework.current_stream(device);
  try {
    run(call, device, stream, step.value_or(""), to_gpu, allocate);
  } catch (const std::invalid_argument& error) {
    raise_value_error("step", error.what());
  }
}

// Makes o and lse, runs the call and returns them.
nb::object result_of(const Framework& framework, Arguments& arguments, std::optional<std::string_view> step,
                     bool return_lse, bool to_gpu, nb::handle q_array) {
  const Array& q = arguments.q;
  AttentionCall& call = arguments.call;
  // By the framework's own allocator, on its current stream: there the memory may be reused in the order of
  // launches.
  static const nb::handle kEmptyLike = interned("empty_like"),
                          kEmptyLikeContiguous = interned("empty_like_contiguous");
  const nb::object o_array =
      framework.python().attr(q.contiguous ? kEmptyLikeContiguous : kEmptyLike)(q_array);
  const Array o = framework.read("o", o_array, 4);
  call.o = view_of(o, arguments.axes);
  nb::object lse_array;
  if (return_lse) {
    const auto lse_shape = nb::make_tuple(call.batch, call.num_heads_q, call.seqlen_q);
    lse_array = framework.python().attr("empty_fp32")(q_array, lse_shape);
    call.lse = static_cast<float*>(framework.read("lse", lse_array, 3).data);
  }
  run_for(framework, q_array, call, q.device, step, to_gpu);
  return return_lse ? nb::make_tuple(o_array, lse_array) : o_array;
}

nb::object attention(nb::handle python_framework, nb::handle q_array, nb::handle k_array, nb::handle v_array,
                     nb::handle kv_lengths_array, bool causal, std::optional<double> scale,
                     std::optional<std::string_view> step, bool bshd, bool return_lse, bool to_gpu) {
  const Framework framework(python_framework);
  Arguments arguments =
      read_arguments(framework, q_array, k_array, v_array, kv_lengths_array, causal, scale, bshd);
  if (to_gpu && arguments.q.device == kCpu) {
    if (const std::string why = missing_gpu(); !why.empty()) throw std::runtime_error("device: " + why);
  }
  return result_of(framework, arguments, step, return_lse, to_gpu, q_array);
}

nb::object attention_with_kvcache(nb::handle python_framework, nb::handle q_array, nb::handle k_array,
                                  nb::handle v_array, nb::handle cache_seqlens_array,
                                  nb::handle page_table_array, bool causal, std::optional<double> scale,
                                  int num_splits, bool return_lse) {
  const Framework framework(python_framework);
  Arguments arguments = read_arguments(framework, q_array, k_array, v_array, cache_seqlens_array, causal,
                                       scale, true, kOfKvCache, page_table_array);
  arguments.call.num_splits = num_splits;
  return result_of(framework, arguments, {}, return_lse, false, q_array);
}

// For flashsteps.distributed, which makes the arrays: merges the attention of q to these keys with an earlier
// result (PartialResult in common/call.h), in place. q's rows are first_row and the following ones of that.
void merge_attention(nb::handle python_framework, nb::handle q_array, nb::handle k_array, nb::handle v_array,
                     nb::handle kv_lengths_array, bool causal, std::optional<double> scale,
                     std::optional<std::string_view> step, nb::handle o_array, nb::handle earlier_o_array,
                     nb::handle earlier_lse_array, int first_row) {
  const Framework framework(python_framework);
  Arguments arguments =
      read_arguments(framework, q_array, k_array, v_array, kv_lengths_array, causal, scale, false);
  const Array& q = arguments.q;
  const Array o = framework.read("o", o_array, 4);
  const Array earlier_o = framework.read("earlier_o", earlier_o_array, 4);
  const Array earlier_lse = framework.read("earlier_lse", earlier_lse_array, 3);
  check_tensor(o, q);
  for (const Array* const array : {&earlier_o, &earlier_lse}) {
    check_memory(*array, sizeof(float), q.device);
    if (array->dtype != "float32" || !(array->contiguous || array->empty))
      raise_type_error(array->argument, "is " + array->dtype + ", expected contiguous float32");
  }
  const int64_t rows = earlier_o.shape[2];
  if (!std::equal(o.shape, o.shape + 4, q.shape) || !std::equal(q.shape, q.shape + 2, earlier_o.shape) ||
      earlier_o.shape[3] != q.shape[3] ||
      !std::equal(earlier_lse.shape, earlier_lse.shape + 3, earlier_o.shape) || first_row < 0 ||
      first_row + q.shape[2] > rows)
    raise_value_error(
        "earlier_o", "has shape " + shape_text(earlier_o.shape, 4) + ", and q has " + shape_text(q.shape, 4));
  AttentionCall& call = arguments.call;
  call.o = view_of(o, arguments.axes);
  call.earlier = {static_cast<float*>(earlier_o.data) + int64_t(first_row) * call.head_dim,
                  static_cast<float*>(earlier_lse.data) + first_row, int(rows)};
  run_for(framework, q_array, call, q.device, step, false);
}

// The checks of attention() and attention_with_kvcache() for arrays that have no memory yet; the scale, and
// the bytes that plan_attention() finds.
nb::tuple plan(nb::handle python_framework, nb::handle q_array, nb::handle k_array, nb::handle v_array,
               nb::handle kv_lengths_array, nb::handle page_table_array, bool causal,
               std::optional<double> scale, std::optional<std::string_view> step, bool bshd, int num_splits,
               bool kvcache, std::optional<int> gpu) {
  Arguments arguments =
      read_arguments(Framework(python_framework), q_array, k_array, v_array, kv_lengths_array, causal, scale,
                     bshd, kvcache ? kOfKvCache : kOfAttention, page_table_array);
  arguments.call.num_splits = num_splits;
  arguments.call.o = arguments.call.q;
  try {
    std::optional<CurrentDevice> current;
    if (gpu) current.emplace(*gpu);
    const size_t memory_bytes = plan_attention(arguments.call, step.value_or(""), gpu.has_value());
    return nb::make_tuple(arguments.call.softmax_scale, memory_bytes);
  } catch (const std::invalid_argument& error) {
    raise_value_error("step", error.what());
  }
}

// Whether o and lse are right, what is wrong with them, what the problem is called, and figures. All arrays
// are on the CPU.
nb::tuple judge(nb::handle python_framework, nb::handle q_array, nb::handle k_array, nb::handle v_array,
                nb::handle kv_lengths_array, bool causal, std::optional<double> scale, bool bshd,
                nb::handle o_array, nb::handle lse_array) {
  const Framework framework(python_framework);
  Arguments arguments =
      read_arguments(framework, q_array, k_array, v_array, kv_lengths_array, causal, scale, bshd);
  const Array o = framework.read("o", o_array, 4), lse = framework.read("lse", lse_array, 3);
  arguments.call.o = view_of(o, arguments.axes);
  arguments.call.lse = static_cast<float*>(lse.data);
  Validation found;
  std::string label;
  try {
    WithoutGil no_gil;
    const Problem problem = problem_of(arguments.call);
    label = problem.label();
    found = judge_call(arguments.call, problem);
  } catch (const std::invalid_argument& error) {
    throw nb::value_error(error.what());
  }
  nb::dict figures;
  figures["nrmse"] = found.nrmse;
  figures["worst_row_nrmse"] = found.worst_row_nrmse;
  figures["max_abs"] = found.max_abs;
  figures["lse_max_abs"] = found.lse_max_abs;
  figures["gate_nrmse"] = gates(arguments.call.dtype).nrmse;
  figures["gate_row"] = gates(arguments.call.dtype).row_nrmse;
  return nb::make_tuple(found.pass, found.message, label, figures);
}

// By the platform's name in JAX.
nb::dict xla_handlers() {
  const auto capsule = [](xla::Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); };
  nb::dict handlers;
  handlers["cpu"] = capsule(xla::attention_on_cpu);
  handlers["CUDA"] = capsule(xla::attention_on_cuda);
  return handlers;
}

nb::list step_descriptions() {
  nb::list all;
  for (const StepDescription& step : steps()) {
    nb::list dtypes;
    for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
      if (step.dtypes.has(dtype)) dtypes.append(kDTypeNames[int(dtype)]);
    }
    nb::list configurations;
    for (const std::string_view configuration : step.configurations) configurations.append(configuration);
    all.append(nb::make_tuple(step.name, step.title, step.removes, step.part, step.purpose, nb::tuple(dtypes),
                              step.alignment_bytes, step.needs_sm, step.needs_sm_exactly,
                              nb::tuple(configurations), step.pages,
                              step.spills.empty() ? nb::none() : nb::cast(step.spills), step.has_cuda));
  }
  return all;
}

nb::dict build_info_record() {
  const BuildInfo& info = build_info();
  const auto text = [](const std::string& value) { return value.empty() ? nb::none() : nb::cast(value); };
  nb::dict build, record;
  build["compiler"] = info.compiler;
  build["flags"] = info.flags;
  build["type"] = info.type;
  build["nvcc"] = text(info.nvcc);
  build["architectures"] = text(info.architectures);
  record["commit"] = text(info.commit);
  record["dirty"] = info.dirty;
  record["build"] = build;
  return record;
}

double peak_tflops(std::string_view dtype, int device) {
  if (const std::string why = flashsteps::missing_gpu(); !why.empty()) throw std::runtime_error(why);
  const auto known = std::find(std::begin(kDTypeNames), std::end(kDTypeNames), dtype);
  return gpu_peak_tflops(device, DType(known - std::begin(kDTypeNames)));
}

}  // namespace
}  // namespace flashsteps::python

NB_MODULE(_core, m) {
  using namespace flashsteps::python;
  m.doc() = "The compiled part of flashsteps. Not for users: see flashsteps.";
  m.def("attention", &attention, "framework"_a, "q"_a, "k"_a, "v"_a, "kv_lengths"_a.none(), "causal"_a,
        "scale"_a.none(), "step"_a.none(), "bshd"_a, "return_lse"_a, "to_gpu"_a,
        "flashsteps.attention for arrays of one framework.");
  m.def("attention_with_kvcache", &attention_with_kvcache, "framework"_a, "q"_a, "k_cache"_a, "v_cache"_a,
        "cache_seqlens"_a.none(), "page_table"_a.none(), "causal"_a, "scale"_a.none(), "num_splits"_a,
        "return_lse"_a, "flashsteps.attention_with_kvcache for arrays of one framework.");
  m.def("merge_attention", &merge_attention, "framework"_a, "q"_a, "k"_a, "v"_a, "kv_lengths"_a.none(),
        "causal"_a, "scale"_a.none(), "step"_a.none(), "o"_a, "earlier_o"_a, "earlier_lse"_a, "first_row"_a,
        "Attention to some of the keys, merged with the result of others: for flashsteps.distributed.");
  m.def(
      "plan", &plan, "framework"_a, "q"_a, "k"_a, "v"_a, "kv_lengths"_a.none(), "page_table"_a.none(),
      "causal"_a, "scale"_a.none(), "step"_a.none(), "bshd"_a, "num_splits"_a, "kvcache"_a, "gpu"_a.none(),
      "Checks a call whose arrays have no memory yet: its scale, and the bytes of workspace that it needs.");
  m.def("judge", &judge, "framework"_a, "q"_a, "k"_a, "v"_a, "kv_lengths"_a.none(), "causal"_a,
        "scale"_a.none(), "bshd"_a, "o"_a, "lse"_a,
        "Whether a result on the CPU is right, and more: for flashsteps.check.");
  m.def("xla_handlers", &xla_handlers, "The handlers of XLA's calls, as jax.ffi registers them.");
  m.def("steps", &step_descriptions,
        "The fields of flashsteps.Step for every step, in the order of the ladder.");
  m.def("build_info", &build_info_record, "flashsteps.build_info.");
  m.def("missing_gpu", &flashsteps::missing_gpu, "Why no GPU can be used; empty when one can.");
  m.def("take_tuning_warning", &flashsteps::take_tuning_warning,
        "Why the file of `flashsteps tune` is ignored, the first time; empty when it is not.");
  m.def("peak_tflops", &peak_tflops, "dtype"_a, "device"_a, "flashsteps.peak_tflops; 0 for an unknown card.");
}
