// flashsteps._core: what the Python package flashsteps asks of the C++ library.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/base/build_info.h"
#include "harness/device/gpu.h"
#include "harness/device/tuning.h"
#include "harness/include/flashsteps.h"
#include "harness/judge/judge.h"
#include "harness/library/attention.h"
#include "harness/python/src/arguments.h"
#include "harness/python/src/emulate.h"
#include "harness/python/src/xla_ffi.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashsteps::python {
namespace {

constexpr const char* kDTypeNames[] = {"fp32", "fp16", "bf16", "e4m3"};  // by DType

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

// Field by field: with the stable ABI, nanobind would copy the whole tuple first.
template <typename... Fields>
bool read_fields(nb::handle named_tuple, std::tuple<Fields...>& fields) {
  Py_ssize_t place = 0;
  const auto read = [&](auto& field) {
    const nb::handle found = PyTuple_GetItem(named_tuple.ptr(), place++);
    return found && nb::try_cast(found, field, false);
  };
  return std::apply([&](auto&... field) { return (read(field) && ...); }, fields);
}

// Options of flashsteps/_frameworks.py: a named tuple. Only where its types are others is checked() asked,
// which takes time.
Options options_of(nb::handle python) {
  std::tuple<bool, std::optional<double>, bool, std::optional<std::string_view>, std::string_view,
             std::optional<std::string_view>, int, bool, bool, bool, bool>
      fields;
  if (!read_fields(python, fields) && !read_fields(python.attr("checked")(), fields)) throw nb::cast_error();
  return std::apply([](auto... field) { return Options{field...}; }, fields);
}

// What every function gets: q, k, v, kv_lengths, page_table and the descales, with None where there is none;
// with Options::backward also d_o, o and lse.
Arguments read_arguments(const Framework& framework, const nb::tuple& arrays, const Options& options) {
  return read_arguments(options,
                        [&](int place, const char* argument, int dimensions) -> std::optional<Array> {
                          const nb::handle array = arrays[place];
                          if (array.is_none()) return {};
                          return framework.read(argument, array, dimensions);
                        });
}

// Runs the call on the framework's current stream, with memory from its allocator. `to_gpu`: arrays on the
// CPU are copied there, and the result back.
void run(const Framework& framework, nb::handle q_array, const AttentionCall& call, int device,
         std::string_view step, bool to_gpu) {
  // Until the step is queued, which is when the framework may reuse their memory.
  std::vector<ManagedMemory> memory;
  std::vector<nb::object> arrays;
  const auto array_of_python = [&](size_t bytes) {
    const size_t floats = (bytes + sizeof(float) - 1) / sizeof(float);
    arrays.push_back(framework.python().attr("empty_fp32")(q_array, nb::make_tuple(floats)));
    return framework.read("memory", arrays.back(), 1).data;
  };
  void* const stream = device == kCpu ? nullptr : framework.current_stream(device);
  try {
    WithoutGil no_gil;
    if (device != kCpu) {
      const CurrentDevice current(device);
      queue_attention(call, stream, step, [&](MemoryFor, size_t bytes) {
        if (ManagedMemory found = framework.allocate(bytes, device))
          return memory.emplace_back(std::move(found))->data();
        return no_gil.with_gil([&] { return array_of_python(bytes); });
      });
    } else if (to_gpu) {
      attention_from_host(call, step);
    } else {
      run_on_emulator(call, step, no_gil);
    }
  } catch (const std::invalid_argument& error) {
    raise_value_error("step", error.what());
  }
}

nb::object attention(nb::handle python_framework, const nb::tuple& arrays, nb::handle python_options) {
  const Framework framework(python_framework);
  const Options options = options_of(python_options);
  Arguments arguments = read_arguments(framework, arrays, options);
  const Array& q = arguments.q;
  AttentionCall& call = arguments.call;
  const bool to_gpu = options.device.has_value();
  if (to_gpu && q.device == kCpu) {
    if (const std::string why = missing_gpu(); !why.empty()) throw std::runtime_error("device: " + why);
  }
  // By the framework's own allocator, on its current stream: there the memory may be reused in the order of
  // launches.
  static const nb::handle kEmptyLike = interned("empty_like"),
                          kEmptyLikeContiguous = interned("empty_like_contiguous"),
                          kBf16Like = interned("bf16_like");
  const auto make = [&](const char* name, nb::handle like, nb::handle array, TensorView& view) {
    nb::object made = framework.python().attr(like)(array);
    view = view_of(framework.read(name, made, 4), arguments.axes);
    return made;
  };
  if (options.backward) {
    const nb::tuple gradients =
        nb::make_tuple(make("dq", kEmptyLike, arrays[0], call.dq), make("dk", kEmptyLike, arrays[1], call.dk),
                       make("dv", kEmptyLike, arrays[2], call.dv));
    run(framework, arrays[0], call, q.device, options.step.value_or(""), to_gpu);
    return gradients;
  }
  const nb::handle like = call.dtype == DType::kE4m3 ? kBf16Like
                          : q.contiguous             ? kEmptyLikeContiguous
                                                     : kEmptyLike;
  const nb::object o = make("o", like, arrays[0], call.o);
  nb::object lse;
  if (options.return_lse) {
    const auto lse_shape = nb::make_tuple(call.batch, call.num_heads_q, call.seqlen_q);
    lse = framework.python().attr("empty_fp32")(arrays[0], lse_shape);
    call.lse = static_cast<float*>(framework.read("lse", lse, 3).data);
  }
  run(framework, arrays[0], call, q.device, options.step.value_or(""), to_gpu);
  return options.return_lse ? nb::make_tuple(o, lse) : o;
}

// For flashsteps.distributed, which makes the arrays: merges the attention of q to these keys with an earlier
// result (PartialResult in common/call.h), in place. q's rows are first_row and the following ones of that.
void merge_attention(nb::handle python_framework, const nb::tuple& arrays, nb::handle python_options,
                     nb::handle o_array, nb::handle earlier_o_array, nb::handle earlier_lse_array,
                     int first_row) {
  const Framework framework(python_framework);
  const Options options = options_of(python_options);
  Arguments arguments = read_arguments(framework, arrays, options);
  const Array earlier_o = framework.read("earlier_o", earlier_o_array, 4);
  const Array earlier_lse = framework.read("earlier_lse", earlier_lse_array, 3);
  AttentionCall& call = arguments.call;
  call.o = view_of(framework.read("o", o_array, 4), arguments.axes);
  call.earlier = {static_cast<float*>(earlier_o.data) + int64_t(first_row) * call.head_dim,
                  static_cast<float*>(earlier_lse.data) + first_row, int(earlier_o.shape[2])};
  run(framework, arrays[0], call, arguments.q.device, options.step.value_or(""), false);
}

// The checks of attention() for arrays that have no memory yet; the scale, and the bytes that
// plan_attention() finds.
nb::tuple plan(nb::handle python_framework, const nb::tuple& arrays, nb::handle python_options,
               std::optional<int> gpu) {
  const Options options = options_of(python_options);
  AttentionCall call = read_arguments(Framework(python_framework), arrays, options).call;
  if (options.backward) {
    call.dq = call.q;
    call.dk = call.k;
    call.dv = call.v;
  } else {
    call.o = call.q;
  }
  try {
    std::optional<CurrentDevice> current;
    if (gpu) current.emplace(*gpu);
    const size_t memory_bytes = plan_attention(call, options.step.value_or(""), gpu.has_value());
    return nb::make_tuple(call.softmax_scale, memory_bytes);
  } catch (const std::invalid_argument& error) {
    raise_value_error("step", error.what());
  }
}

// Whether the outputs are right, what is wrong with them, what the problem is called, and figures. The
// outputs are o, and lse if the call wanted one; or dq, dk and dv, of the shapes and types of q, k and v. All
// arrays are on the CPU, and contiguous.
nb::tuple judge(nb::handle python_framework, const nb::tuple& arrays, nb::handle python_options,
                const nb::tuple& outputs) {
  const Framework framework(python_framework);
  Arguments arguments = read_arguments(framework, arrays, options_of(python_options));
  AttentionCall& call = arguments.call;
  const auto view = [&](const char* name, size_t output) {
    return view_of(framework.read(name, outputs[output], 4), arguments.axes);
  };
  if (call.backward) {
    call.dq = view("dq", 0);
    call.dk = view("dk", 1);
    call.dv = view("dv", 2);
  } else {
    call.o = view("o", 0);
    if (outputs.size() > 1) call.lse = static_cast<float*>(framework.read("lse", outputs[1], 3).data);
  }
  Validation found;
  std::string label;
  {
    WithoutGil no_gil;
    const Problem problem = problem_of(call);
    label = problem.label();
    found = judge_call(call, problem);
  }
  nb::dict figures;
  figures["nrmse"] = found.nrmse;
  figures["worst_row_nrmse"] = found.worst_row_nrmse;
  figures["max_abs"] = found.max_abs;
  if (found.lse_max_abs) figures["lse_max_abs"] = *found.lse_max_abs;
  if (found.quantization_nrmse) figures["quantization_nrmse"] = *found.quantization_nrmse;
  figures["gate_nrmse"] = found.gate_nrmse;
  figures["gate_row"] = found.gate_row;
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
  const auto text = [](std::string_view value) { return value.empty() ? nb::none() : nb::cast(value); };
  nb::list all;
  for (const StepDescription& step : steps()) {
    nb::list dtypes;
    for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32, DType::kE4m3}) {
      if (step.dtypes.has(dtype)) dtypes.append(kDTypeNames[int(dtype)]);
    }
    nb::list configurations;
    for (const std::string_view configuration : step.configurations) configurations.append(configuration);
    all.append(nb::make_tuple(
        step.name, step.title, step.removes, step.part, step.purpose, nb::tuple(dtypes), step.alignment_bytes,
        step.needs_sm, step.needs_sm_exactly, nb::tuple(configurations), step.pages, step.fast, step.no_lse,
        step.fp8_cache, step.quantizes, step.backward, text(step.varies), text(step.spills), step.has_cuda));
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
  m.def("attention", &attention, "framework"_a, "arrays"_a, "options"_a,
        "flashsteps.attention, attention_backward and attention_with_kvcache for arrays of one framework.");
  m.def("merge_attention", &merge_attention, "framework"_a, "arrays"_a, "options"_a, "o"_a, "earlier_o"_a,
        "earlier_lse"_a, "first_row"_a,
        "Attention to some of the keys, merged with the result of others: for flashsteps.distributed.");
  m.def(
      "plan", &plan, "framework"_a, "arrays"_a, "options"_a, "gpu"_a.none(),
      "Checks a call whose arrays have no memory yet: its scale, and the bytes of workspace that it needs.");
  m.def("judge", &judge, "framework"_a, "arrays"_a, "options"_a, "outputs"_a,
        "Whether a result on the CPU is right, and more: for flashsteps.check and check_backward.");
  define_emulate(m);
  m.def("xla_handlers", &xla_handlers, "The handlers of XLA's calls, as jax.ffi registers them.");
  m.def("steps", &step_descriptions,
        "The fields of flashsteps.Step for every step, in the order of the ladder.");
  m.def("build_info", &build_info_record, "flashsteps.build_info.");
  m.def("missing_gpu", &flashsteps::missing_gpu, "Why no GPU can be used; empty when one can.");
  m.def("take_tuning_warning", &flashsteps::take_tuning_warning,
        "Why the file of `flashsteps tune` is ignored, the first time; empty when it is not.");
  m.def("peak_tflops", &peak_tflops, "dtype"_a, "device"_a, "flashsteps.peak_tflops; 0 for an unknown card.");
}
