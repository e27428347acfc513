// Attention as XLA calls it: what flashsteps/jax.py puts into a program of JAX. That has checked
// the arguments; whether the step runs on this GPU is only known here.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "common/interface.h"
#include "harness/device/gpu.h"
#include "harness/include/flashsteps.h"
#include "harness/library/attention.h"
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

Call read(const CallFrame& frame) {
  const Buffers &in = frame.arguments, &out = frame.results;
  const bool bshd = scalar<bool>(frame.attributes, "bshd", Type::kBool);
  const bool return_lse = scalar<bool>(frame.attributes, "return_lse", Type::kBool);
  const bool pages = scalar<bool>(frame.attributes, "pages", Type::kBool);
  if (in.size < 3 + pages || in.size > 4 + pages || out.size < 1 + return_lse)
    throw std::logic_error("the call has not the arguments and results of attention");
  Call call{};
  AttentionCall& a = call.attention;
  // jax.vmap puts dimensions in front, the same ones everywhere. They are batches, too.
  const Buffer &q = *in.buffers[0], &k = *in.buffers[1];
  const int64_t *const q_dims = q.dims + q.rank - 4, *const k_dims = k.dims + k.rank - 4;
  int64_t batch = 1;
  for (const int64_t* dim = q.dims; dim <= q_dims; ++dim) batch *= *dim;
  const int heads = bshd ? 2 : 1, rows = bshd ? 1 : 2;
  if (batch > 1 << 30)
    throw std::invalid_argument("the batch is " + std::to_string(batch) + ", the limit is 2^30");
  a.dtype = q.type == Type::kFp16 ? DType::kFp16 : q.type == Type::kBf16 ? DType::kBf16 : DType::kFp32;
  a.batch = int(batch);
  a.num_heads_q = int(q_dims[heads]);
  a.num_heads_kv = int(k_dims[heads]);
  a.seqlen_q = int(q_dims[rows]);
  a.seqlen_kv = int(k_dims[rows]);
  a.head_dim = int(q_dims[3]);
  a.causal = scalar<bool>(frame.attributes, "causal", Type::kBool);
  a.softmax_scale = scalar<float>(frame.attributes, "scale", Type::kFp32);
  a.num_splits = scalar<int32_t>(frame.attributes, "num_splits", Type::kInt32);
  const auto view = [&](const Buffer& buffer, int num_heads, int num_rows) {
    return (bshd ? bshd_view : bhsd_view)(buffer.data, num_heads, num_rows, a.head_dim);
  };
  a.q = view(q, a.num_heads_q, a.seqlen_q);
  a.k = view(k, a.num_heads_kv, a.seqlen_kv);
  a.v = view(*in.buffers[2], a.num_heads_kv, a.seqlen_kv);
  a.o = view(*out.buffers[0], a.num_heads_q, a.seqlen_q);
  if (return_lse) a.lse = static_cast<float*>(out.buffers[1]->data);
  if (in.size == 4 + pages) a.kv_lengths = static_cast<const int*>(in.buffers[3]->data);
  if (pages) {
    const Buffer& table = *in.buffers[in.size - 1];
    a.page_table = {static_cast<const int*>(table.data), int(table.dims[table.rank - 1]), a.seqlen_kv,
                    int(k_dims[0])};
    const int64_t keys = int64_t(a.seqlen_kv) * a.page_table.max_pages;
    if (keys > 1 << 30) throw std::invalid_argument("sequence lengths are limited to 2^30");
    a.seqlen_kv = int(keys);
  }
  const auto& step = *static_cast<const Span*>(attribute(frame.attributes, "step", Attributes::kString));
  call.step = {step.data, step.size};
  if (out.size > 1 + return_lse) call.memory = out.buffers[1 + return_lse];
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

Error* handle(CallFrame* frame, uint32_t traits, void (*run)(const CallFrame&, const Call&)) {
  const auto error = [&](ErrorCode code, const std::string& message) {
    ErrorArguments arguments{{sizeof(arguments), nullptr}, message.c_str(), code};
    return frame->api->create_error(&arguments);
  };
  if (describe_handler(*frame, traits)) return nullptr;
  try {
    run(*frame, read(*frame));
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

Error* attention_on_cpu(CallFrame* frame) { return handle(frame, 0, run_on_cpu); }

Error* attention_on_cuda(CallFrame* frame) {
  return handle(frame, Metadata::kCommandBufferCompatible, run_on_cuda);
}

}  // namespace flashsteps::python::xla
