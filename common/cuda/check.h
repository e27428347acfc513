// CUDA_CHECK(call): the one way that the harness checks the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "common/device_error.h"

namespace flashsteps {

// "cudaErrorIllegalAddress (an illegal memory access was encountered)"
inline std::string describe_error(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
}

// CUDA writes 13000 for 13.0.
inline std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

inline void check_cuda(cudaError_t error, const char* expression, const char* file, int line) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next check_launch() must not find
  const char* const slash = std::strrchr(file, '/');
  throw DeviceError(describe_error(error) + " from " + expression + ", " + (slash ? slash + 1 : file) + ":" +
                    std::to_string(line));
}

}  // namespace flashsteps

#define CUDA_CHECK(expression) ::flashsteps::check_cuda((expression), #expression, __FILE__, __LINE__)
