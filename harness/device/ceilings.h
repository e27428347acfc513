// Launches of what steps are compared with: see kCeilings in backend.h.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace flashsteps {

struct CeilingLaunch {
  std::string what;           // for people
  std::string unit;           // as the results file has it
  double work = 0;            // of a launch, in that unit
  std::function<void()> run;  // puts one launch on the stream; empty where the device does not have this
};

// The vendor's matrix product, when it is there: cuBLAS is opened at run time, never linked. C = A B in bf16
// with FP32 accumulation, all 8192 x 8192; owns the matrices, filled with N(0, 1): on zeros a GPU draws less
// power and clocks higher than any real product would. Empty when there is no cuBLAS, or not enough memory.
CeilingLaunch make_cublas_matmul(cudaStream_t stream);

// One unit of the GPU at a time, with nothing beside it: every other name in kCeilings. Each kernel's comment
// in ceiling_loops.cu says what a launch does. Of global memory: empty when memory is short.
CeilingLaunch make_ceiling_loop(const std::string& name, cudaStream_t stream);
CeilingLaunch make_wgmma_loop(cudaStream_t stream);  // wgmma_loop.cu; empty but on compute capability 9.0

}  // namespace flashsteps
