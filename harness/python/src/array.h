// What an argument of flashsteps.attention is, whichever framework it comes from.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "harness/python/src/exchange_api.h"

namespace flashsteps::python {

constexpr int kCpu = -1;

// Exceptions whose text begins with the argument's name.
[[noreturn]] void raise_type_error(std::string_view argument, const std::string& text);
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
};

// A name for attr(), which would make a string of it in every call.
nanobind::handle interned(const char* name);

// One of flashsteps/_frameworks.py, for one call.
class Framework {
 public:
  explicit Framework(nanobind::handle python);

  // Refuses an array that has not `dimensions` (at most 4) of them, or no memory for what it holds.
  Array read(const char* argument, nanobind::handle array, int dimensions) const;
  void* current_stream(int device) const;
  nanobind::handle python() const { return python_; }

 private:
  nanobind::handle python_;
  const ExchangeApi* exchange_ = nullptr;  // null: the framework has none that is understood here
};

void* data_of(const nanobind::dlpack::dltensor& tensor);
std::string device_text(int device);
std::string shape_text(const int64_t* shape, int dimensions);

}  // namespace flashsteps::python
