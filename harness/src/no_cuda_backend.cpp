// Stands in for cuda_backend.cpp in a build without the CUDA toolkit.
#include "harness/src/backend.h"

namespace flashsteps {

std::unique_ptr<Backend> make_cuda_backend(std::string& why) {
  why = "this program was built without the CUDA toolkit";
  return nullptr;
}

}  // namespace flashsteps
