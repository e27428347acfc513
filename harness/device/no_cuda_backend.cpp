// Stands in for cuda_backend.cpp in a build without the CUDA toolkit.
#include "harness/device/backend.h"
#include "harness/include/flashsteps.h"

namespace flashsteps {

std::unique_ptr<GpuBackend> make_cuda_backend(std::string& why, int) {
  why = missing_gpu();
  return nullptr;
}

}  // namespace flashsteps
