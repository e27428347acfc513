// The arguments of flashsteps.attention and attention_with_kvcache, whichever framework they come from, and
// the call that they ask for.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/call.h"

namespace flashsteps::python {

constexpr int kCpu = -1;
constexpr int kAnyDimensions = -1;

// An error whose text begins with the argument's name, which nanobind makes a ValueError.
[[noreturn]] void raise_value_error(std::string_view argument, const std::string& text);

struct Array {
  const char* argument;  // its name in flashsteps.attention
  void* data;
  int device;         // of CUDA, or kCpu
  std::string dtype;  // "float16"
  int dimensions;
  int64_t shape[4], strides[4];  // in elements
  bool contiguous;               // in the order of the axes
  bool empty;                    // an axis has extent 0; there may be no data
  nanobind::object owner;        // keeps data alive while this lives, where the argument itself does not

  // Refuses an array that has not `dimensions` (at most 4, or kAnyDimensions: up to 4) of them. strides null:
  // it is contiguous.
  Array(const char* argument, void* data, int device, std::string dtype, const int64_t* shape, int found,
        const int64_t* strides, int dimensions);
};

// DLPack's C exchange API: a table of functions that a framework's array type carries, with which its arrays
// are read and made without calling into Python. Declared here as far as it is used; the layout is DLPack's
// (1.3, include/dlpack/dlpack.h in https://github.com/dmlc/dlpack, struct DLPackExchangeAPI).
struct ExchangeApi {
  static constexpr uint32_t kMajorVersion = 1;  // a change of it is a change of the layout

  // A tensor that whoever has it releases.
  struct ManagedTensor {
    uint32_t major_version, minor_version;
    void* owner;
    void (*release)(ManagedTensor* self);
    uint64_t flags;
    nanobind::dlpack::dltensor tensor;

    void* data() const { return static_cast<char*>(tensor.data) + tensor.byte_offset; }
  };
  using OnError = void (*)(void* context, const char* kind, const char* message);

  uint32_t major_version, minor_version;
  void* older_api;
  // A tensor of the prototype's type, shape and device, by the framework's allocator. 0, or -1 after a call
  // of on_error. Needs no GIL. May be null.
  int (*allocate)(nanobind::dlpack::dltensor* prototype, ManagedTensor** tensor, void* context,
                  OnError on_error);
  void* unused[2];  // make a managed tensor of an array, and an array of a managed tensor
  // What an array is. The tensor's shape and strides belong to the array. Does not wait for the array's
  // contents. 0, or -1 and a Python exception is set. May be null.
  int (*view)(PyObject* array, nanobind::dlpack::dltensor* tensor);
  // The stream that the framework queues on now. As above.
  int (*current_stream)(int32_t device_type, int32_t device, void** stream);
};

struct ReleaseTensor {
  void operator()(ExchangeApi::ManagedTensor* tensor) const {
    if (tensor->release != nullptr) tensor->release(tensor);
  }
};
using ManagedMemory = std::unique_ptr<ExchangeApi::ManagedTensor, ReleaseTensor>;

// A name for attr(), which would make a string of it in every call.
nanobind::handle interned(const char* name);

// One of flashsteps/_frameworks.py, for one call.
class Framework {
 public:
  explicit Framework(nanobind::handle python);

  // Refuses what the Array does, and one that has no memory for what it holds.
  Array read(const char* argument, nanobind::handle array, int dimensions) const;
  void* current_stream(int device) const;
  // On a GPU, by the framework's allocator, for use on its current stream. Needs no GIL. Null where the
  // framework cannot do that without Python, or refuses: its function in Python then says why.
  ManagedMemory allocate(size_t bytes, int device) const;
  nanobind::handle python() const { return python_; }

 private:
  nanobind::handle python_;
  const ExchangeApi* exchange_ = nullptr;  // null: the framework has none that is understood here
};

// Options of flashsteps/_frameworks.py.
struct Options {
  bool causal;
  std::optional<double> scale;
  bool return_lse;
  std::optional<std::string_view> step;
  std::string_view layout = "bhsd";
  std::optional<std::string_view> device;
  int num_splits = 0;
  bool kvcache = false;
  bool fast = false;
  bool quantize = false;
  bool backward = false;
};

// Where the heads and the rows are in a shape.
struct Axes {
  int heads, rows;
};

TensorView view_of(const Array& array, Axes axes);

// The arrays, which must live as long as the call, and the call, which has no results yet: no o and lse, or,
// where these are arguments, no dq, dk and dv. Everything has been checked but whether a step can run such a
// call: the library knows that, and says it before anything is launched.
struct Arguments {
  Array q, k, v;
  std::optional<Array> kv_lengths, page_table, q_descale, k_descale, v_descale, d_o, o, lse;
  Axes axes;
  AttentionCall call;
};
// `read` finds the array at a place of (q, k, v, kv_lengths, page_table, q_descale, k_descale, v_descale,
// d_o, o, lse), where there is one; the last three with Options::backward.
using ReadArray = std::function<std::optional<Array>(int place, const char* argument, int dimensions)>;
Arguments read_arguments(const Options& options, const ReadArray& read);

}  // namespace flashsteps::python
