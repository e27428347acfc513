#include "harness/python/src/array.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace flashsteps::python {
namespace {

// Device types of DLPack.
enum : int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

int device_number(std::string_view argument, int dlpack_type, int dlpack_id) {
  switch (dlpack_type) {
    case kDlCpu:
    case kDlCudaHost:
      return kCpu;
    case kDlCuda:
    case kDlCudaManaged:
      return dlpack_id;
    default:
      raise_value_error(argument, "is neither on the CPU nor on an NVIDIA GPU (DLPack's device type " +
                                      std::to_string(dlpack_type) + ")");
  }
}

// NumPy's name of a DLPack type.
std::string dtype_text(nb::dlpack::dtype dtype) {
  constexpr const char* kKinds[] = {"int",    "uint",   "float",
                                    "opaque", "bfloat", "complex"};  // by DLPack's code
  const std::string bits = std::to_string(dtype.bits);
  if (dtype.lanes != 1) return "a vector type";
  if (dtype.code == uint8_t(nb::dlpack::dtype_code::Bool)) return "bool";
  if (dtype.code < std::size(kKinds)) return kKinds[dtype.code] + bits;
  return "DLPack's type " + std::to_string(dtype.code) + " of " + bits + " bits";
}

void check_dimensions(const Array& array, const int64_t* shape, int found, int expected) {
  if (found != expected)
    raise_value_error(array.argument, "has shape " + shape_text(shape, found) + ", expected " +
                                          std::to_string(expected) + " dimensions");
}

Array read_tensor(const char* argument, const nb::dlpack::dltensor& tensor, int dimensions) {
  Array array{};
  array.argument = argument;
  check_dimensions(array, tensor.shape, tensor.ndim, dimensions);
  array.data = data_of(tensor);
  array.dtype = dtype_text(tensor.dtype);
  array.device = device_number(argument, tensor.device.device_type, tensor.device.device_id);
  int64_t contiguous = 1;
  array.contiguous = true;
  for (int i = dimensions - 1; i >= 0; --i) {
    array.shape[i] = tensor.shape[i];
    array.strides[i] = tensor.strides != nullptr ? tensor.strides[i] : contiguous;
    array.contiguous &= array.strides[i] == contiguous;
    contiguous *= tensor.shape[i];
  }
  return array;
}

// What a framework's describe() in _frameworks.py returns.
using Description =
    std::tuple<uintptr_t, std::vector<int64_t>, std::vector<int64_t>, std::string, int, nb::object>;

Array read_description(const char* argument, const Description& description, int dimensions) {
  const auto& [address, shape, strides, dtype, device, owner] = description;
  Array array{};
  array.argument = argument;
  check_dimensions(array, shape.data(), int(shape.size()), dimensions);
  std::copy(shape.begin(), shape.end(), array.shape);
  std::copy(strides.begin(), strides.end(), array.strides);
  array.data = reinterpret_cast<void*>(address);
  array.dtype = dtype;
  array.device = device;
  array.owner = owner;
  return array;
}

}  // namespace

void raise_type_error(std::string_view argument, const std::string& text) {
  throw nb::type_error((std::string(argument) + ": " + text).c_str());
}

void raise_value_error(std::string_view argument, const std::string& text) {
  throw nb::value_error((std::string(argument) + ": " + text).c_str());
}

nb::handle interned(const char* name) { return PyUnicode_InternFromString(name); }

void* data_of(const nb::dlpack::dltensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

std::string device_text(int device) {
  return device == kCpu ? "on the CPU" : "on cuda:" + std::to_string(device);
}

std::string shape_text(const int64_t* shape, int dimensions) {
  std::string text = "[";
  for (int i = 0; i < dimensions; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Framework::Framework(nb::handle python) : python_(python) {
  static const nb::handle kExchangeApi = interned("exchange_api");
  const nb::object capsule = python.attr(kExchangeApi);
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return;
  const auto* const api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  if (api->major_version == ExchangeApi::kMajorVersion && api->view != nullptr) exchange_ = api;
}

Array Framework::read(const char* argument, nb::handle object, int dimensions) const {
  Array array;
  if (exchange_ != nullptr) {
    nb::dlpack::dltensor tensor;
    if (exchange_->view(object.ptr(), &tensor) != 0) {
      nb::python_error error;
      const std::string text = nb::str(error.value()).c_str();  // PyTorch adds a trace, in more lines
      nb::raise_from(error, PyExc_ValueError, "%s: its memory is not accessible: %s", argument,
                     text.substr(0, text.find('\n')).c_str());
    }
    array = read_tensor(argument, tensor, dimensions);
  } else {
    const nb::object description = python_.attr("describe")(argument, object);
    array = read_description(argument, nb::cast<Description>(description), dimensions);
  }
  array.dimensions = dimensions;
  array.empty = std::count(array.shape, array.shape + dimensions, 0) > 0;
  if (array.data == nullptr && !array.empty) raise_value_error(argument, "has no memory: its address is 0");
  return array;
}

void* Framework::current_stream(int device) const {
  if (exchange_ == nullptr)
    return reinterpret_cast<void*>(nb::cast<uintptr_t>(python_.attr("current_stream")(device)));
  void* stream = nullptr;
  if (exchange_->current_stream(kDlCuda, device, &stream) != 0) throw nb::python_error();
  return stream;
}

}  // namespace flashsteps::python
