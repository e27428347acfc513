// XLA's foreign function interface: how XLA calls a handler, and what a handler may ask of it. It is a C ABI.
// Declared here as far as it is used, so that a module that was built without JAX serves a JAX that comes
// later. The layout is XLA's (xla/ffi/api/c_api.h in https://github.com/openxla/xla, struct XLA_FFI_CallFrame
// and those it points to); XLA accepts handlers of older minor versions, and a minor version only adds to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flashsteps::python::xla {

constexpr int kMajorVersion = 0, kMinorVersion = 3;  // that this was written after: JAX 0.10

struct Error;    // XLA's
struct Context;  // of one execution, XLA's

// Of arrays and attributes, as far as they are used here.
enum class Type : int32_t { kBool = 1, kInt32 = 4, kFp16 = 10, kFp32 = 11, kBf16 = 16, kE4m3 = 20 };

struct Extension {
  static constexpr int32_t kMetadata = 1;  // XLA asks what the handler is, and calls nothing
  size_t struct_size;
  int32_t type;
  Extension* next;
};

// Every struct begins with it.
struct Header {
  size_t struct_size;
  Extension* extensions;
};

struct Version {
  Header header;
  int32_t major, minor;
};

struct Metadata {
  static constexpr uint32_t kCommandBufferCompatible = 1;
  size_t struct_size;
  Version version;  // out
  uint32_t traits;  // out
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  Header header;
  Type type;
  void* data;
  int64_t rank;
  int64_t* dims;  // row-major, without gaps
};

// Arguments or results: all are buffers.
struct Buffers {
  Header header;
  int64_t size;
  int32_t* types;
  Buffer** buffers;
};

struct Span {
  const char* data;
  size_t size;
};

struct Scalar {
  Type type;
  void* value;
};

struct Attributes {
  enum : int32_t { kScalar = 3, kString = 4 };
  Header header;
  int64_t size;
  int32_t* types;
  Span** names;
  void** values;  // to a Scalar or a Span
};

enum class ErrorCode : int32_t { kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13 };

struct ErrorArguments {
  Header header;
  const char* message;
  ErrorCode code;
};

struct StreamArguments {
  Header header;
  Context* context;
  void* stream;  // out: a cudaStream_t
};

struct DeviceArguments {
  Header header;
  Context* context;
  int32_t device;  // out: as CUDA numbers them
};

struct Api {
  Header header;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments* arguments);
  void* unused_1[3];
  Error* (*find_stream)(StreamArguments* arguments);
  void* unused_2[12];
  Error* (*find_device)(DeviceArguments* arguments);
};

struct CallFrame {
  Header header;
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments, results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

// Attention in memory of the CPU, and of an NVIDIA GPU. See xla.cpp.
Error* attention_on_cpu(CallFrame* frame);
Error* attention_on_cuda(CallFrame* frame);

}  // namespace flashsteps::python::xla
