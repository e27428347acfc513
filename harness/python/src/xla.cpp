// Attention as XLA calls it: what flashsteps/jax.py puts into a program of JAX. That has checked what is
// known of the arguments before they have contents; whether the step runs on this GPU is only known here.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "harness/device/gpu.h"
#include "harness/include/flashsteps.h"
#include "harness/library/attention.h"
#include "harness/python/src/arguments.h"
#include "harness/python/src/xla_ffi.h"

namespace flashsteps::python::xla {
namespace {

// An error of XLA's, on its way to XLA.
struct Failure {
  Error* error;
};

template <typename Arguments>
Arguments ask(Error* (*function)(Arguments*), Context* context) {
  Arguments arguments{};
  arguments.header.struct_size = sizeof(arguments);
  arguments.context = context;
  if (Error* const error = function(&arguments)) throw Failure{error};
  return arguments;
}

const void* attribute(const Attributes& attributes, std::string_view name, int32_t type) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const Span& found = *attributes.names[i];
    if (std::string_view(found.data, found.size) == name && attributes.types[i] == type)
      return attributes.values[i];
  }
  throw std::logic_error("the call has no attribute '" + std::string(name) + "'");
}

template <typename Value>
Value scalar(const Attributes& attributes, std::string_view name, Type type) {
  const auto* const found = static_cast<const Scalar*>(attribute(attributes, name, Attributes::kScalar));
  if (found->type != type)
    throw std::logic_error("the attribute '" + std::string(name) + "' is of another type");
  Value value;
  std::memcpy(&value, found->value, sizeof(value));
  return value;
}

struct Call {
  AttentionCall attention;
  std::string_view step;
  const Buffer* memory;  // counters, and the workspace behind them; null: there is none
};

// jax.vmap puts dimensions in front, the same ones everywhere. They are batches, too.
Array array_of(const Buffer& buffer, const char* argument, int dimensions, int device) {
  const int64_t more = buffer.rank - dimensions;
  int64_t shape[4];
  std::copy_n(buffer.dims + more, dimensions, shape);
  for (int64_t i = 0; i < more; ++i) shape[0] *= buffer.dims[i];
  const char* const dtype = buffer.type == Type::kFp16    ? "float16"
                            : buffer.type == Type::kBf16  ? "bfloat16"
                            : buffer.type == Type::kE4m3  ? "float8_e4m3fn"
                            : buffer.type == Type::kInt32 ? "int32"
                                                          : "float32";
  return {argument, buffer.data, device, dtype, shape, dimensions, nullptr, dimensions};
}

// `device` is kCpu or a GPU's: which one does not matter here.
Call read(const CallFrame& frame, int device) {
  const Attributes& attributes = frame.attributes;
  const auto& step = *static_cast<const Span*>(attribute(attributes, "step", Attributes::kString));
  const bool pages = scalar<bool>(attributes, "pages", Type::kBool);
  const Buffers &in = frame.arguments, &out = frame.results;
  const auto is_fp8 = [&](int place) { return in.size > place && in.buffers[place]->type == Type::kE4m3; };
  // In FP8 flashsteps/jax.py gives all scales, [batch, heads].
  const bool q_descale = is_fp8(0), kv_descales = is_fp8(1);
  const Options options{.causal = scalar<bool>(attributes, "causal", Type::kBool),
                        .scale = scalar<float>(attributes, "scale", Type::kFp32),
                        .return_lse = scalar<bool>(attributes, "return_lse", Type::kBool),
                        .step = std::string_view(step.data, step.size),
                        .layout = scalar<bool>(attributes, "bshd", Type::kBool) ? "bshd" : "bhsd",
                        .device = {},
                        .num_splits = scalar<int32_t>(attributes, "num_splits", Type::kInt32),
                        .kvcache = kv_descales && !q_descale,
                        .fast = scalar<bool>(attributes, "fast", Type::kBool),
                        .quantize = scalar<bool>(attributes, "quantize", Type::kBool),
                        .backward = scalar<bool>(attributes, "backward", Type::kBool)};
  const bool backward = options.backward, return_lse = options.return_lse;
  const int others = 3 + pages + q_descale + 2 * kv_descales + 3 * backward;
  const int results = backward ? 3 : 1 + return_lse;
  const bool lengths = in.size == others + 1;
  if (in.size != others + lengths || out.size < results)
    throw std::logic_error("the call has not the arguments and results of attention");
  const Arguments arguments =
      read_arguments(options, [&](int place, const char* argument, int dimensions) -> std::optional<Array> {
        const bool there[] = {true,        true,        true,     lengths,  pages,   q_descale,
                              kv_descales, kv_descales, backward, backward, backward};
        if (!there[place]) return {};
        const auto before = std::count(there, there + place, true);
        const bool is_descale = dimensions == kAnyDimensions;
        return array_of(*in.buffers[before], argument, is_descale ? 2 : dimensions, device);
      });
  Call call{arguments.call, *options.step, out.size > results ? out.buffers[results] : nullptr};
  const auto result = [&](int place, const char* name) {
    return view_of(array_of(*out.buffers[place], name, 4, device), arguments.axes);
  };
  if (backward) {
    call.attention.dq = result(0, "dq");
    call.attention.dk = result(1, "dk");
    call.attention.dv = result(2, "dv");
    return call;
  }
  call.attention.o = result(0, "o");
  if (return_lse) call.attention.lse = static_cast<float*>(out.buffers[1]->data);
  return call;
}

class NoMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Of the result that is there for it. XLA aligns its memory to 128 bytes.
void* memory_for(const Call& call, MemoryFor use, size_t bytes) {
  size_t space = 1;
  for (int64_t i = 0; call.memory != nullptr && i < call.memory->rank; ++i)
    space *= size_t(call.memory->dims[i]);
  void* memory = call.memory != nullptr ? call.memory->data : nullptr;
  const size_t before = use == MemoryFor::kWorkspace ? kCounterBytes : 0;
  if (memory == nullptr || std::align(kWorkspaceAlignment, before + bytes, memory, space) == nullptr)
    throw NoMemory("the call has no " + std::string(use == MemoryFor::kWorkspace ? "workspace" : "counters") +
                   " of " + std::to_string(bytes) +
                   " bytes: it was traced for another GPU, or where there is none");
  return static_cast<char*>(memory) + before;
}

void run_on_cpu(const CallFrame&, const Call& call) { attention_on_emulator(call.attention, call.step); }

// On XLA's stream. While XLA captures that into a command buffer, the counters lie in the call's own memory,
// and the graph sets them to zero.
void run_on_cuda(const CallFrame& frame, const Call& call) {
  if (frame.api->header.struct_size < offsetof(Api, find_device) + sizeof(frame.api->find_device))
    throw std::runtime_error("this JAX is too old: its XLA does not tell the device");
  void* const stream = ask<StreamArguments>(frame.api->find_stream, frame.context).stream;
  const CurrentDevice current(ask<DeviceArguments>(frame.api->find_device, frame.context).device);
  const auto queue = [&](const AttentionCall& attention) {
    queue_attention(attention, stream, call.step,
                    [&](MemoryFor use, size_t bytes) { return memory_for(call, use, bytes); });
  };
  try {
    queue(call.attention);
  } catch (const NoMemory& missing) {
    // vmap makes one call of many, for which a step may choose more splits than it did when the memory was
    // planned. Without splits it needs no workspace.
    if (call.attention.num_splits != 0) throw;
    AttentionCall unsplit = call.attention;
    unsplit.num_splits = 1;
    try {
      queue(unsplit);
    } catch (const std::invalid_argument&) {  // a step that cannot do without splits
      throw missing;
    }
  }
}

// True: XLA has asked what the handler is, and called nothing.
bool describe_handler(const CallFrame& frame, uint32_t traits) {
  for (Extension* e = frame.header.extensions; e != nullptr; e = e->next) {
    if (e->type != Extension::kMetadata) continue;
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(e)->metadata;
    metadata.version.major = kMajorVersion;
    metadata.version.minor = std::min<int32_t>(kMinorVersion, frame.api->version.minor);
    metadata.traits = traits;
    return true;
  }
  return false;
}

Error* handle(CallFrame* frame, uint32_t traits, int device, void (*run)(const CallFrame&, const Call&)) {
  const auto error = [&](ErrorCode code, const std::string& message) {
    ErrorArguments arguments{{sizeof(arguments), nullptr}, message.c_str(), code};
    return frame->api->create_error(&arguments);
  };
  if (describe_handler(*frame, traits)) return nullptr;
  try {
    run(*frame, read(*frame, device));
  } catch (const Failure& failure) {
    return failure.error;
  } catch (const std::invalid_argument& refusal) {
    return error(ErrorCode::kInvalidArgument, refusal.what());
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kResourceExhausted, "not enough memory");
  } catch (const std::exception& failure) {
    return error(ErrorCode::kInternal, failure.what());
  }
  return nullptr;
}

}  // namespace

Error* attention_on_cpu(CallFrame* frame) { return handle(frame, 0, kCpu, run_on_cpu); }

Error* attention_on_cuda(CallFrame* frame) {
  return handle(frame, Metadata::kCommandBufferCompatible, 0, run_on_cuda);
}

}  // namespace flashsteps::python::xla
