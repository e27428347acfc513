// DLPack's C exchange API: a table of functions that a framework's array type carries, with which its arrays
// are read without calling into Python. Declared here as far as it is used; the layout is DLPack's (1.3,
// include/dlpack/dlpack.h in https://github.com/dmlc/dlpack, struct DLPackExchangeAPI).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace flashsteps::python {

struct ExchangeApi {
  static constexpr uint32_t kMajorVersion = 1;  // a change of it is a change of the layout

  uint32_t major_version, minor_version;
  void* older_api;
  void* unused[3];  // allocate a tensor, make a managed tensor of an array, and an array of a managed tensor
  // What an array is. The tensor's shape and strides belong to the array. Does not wait for the array's
  // contents. 0, or -1 and a Python exception is set. May be null.
  int (*view)(PyObject* array, nanobind::dlpack::dltensor* tensor);
  // The stream that the framework queues on now. As above.
  int (*current_stream)(int32_t device_type, int32_t device, void** stream);
};

}  // namespace flashsteps::python
