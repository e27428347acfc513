// What the GPU can do: launches of what steps are compared with, see kCeilings in backend.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace flashsteps {

cudaDeviceProp device_properties();  // of the current device

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

// One unit of the GPU at a time, with nothing beside it: of kCeilings what the other functions do not make.
// Each kernel's comment in ceiling_loops.cu says what a launch does. "copy": empty when memory is short.
CeilingLaunch make_ceiling_loop(const std::string& name, cudaStream_t stream);

// Global memory that is only read, so many bytes of it (a multiple of 16), in several ways: with more or
// fewer threads, and loads of each on their way. Which one is the quickest depends on the GPU, and on how
// much there is to read. The ways share a buffer; none when memory is short.
std::vector<CeilingLaunch> make_read_loops(size_t bytes, cudaStream_t stream);
size_t bytes_beyond_l2();  // so many times L2's size that next to nothing of them is still there next time

// Leaves nothing in L2 but clean lines of a buffer of its own: what was there has been replaced, and nobody
// who comes next must wait until modified lines have been written back, as after a kernel that writes.
constexpr int kFlushOfL2 = 4;  // it reads so many times L2's size
std::function<void()> make_l2_flush(cudaStream_t stream);

// "wgmma", and "exp2_beside_wgmma": wgmma_loop.cu. Empty but on compute capability 9.0.
CeilingLaunch make_wgmma_loop(const std::string& name, cudaStream_t stream);

}  // namespace flashsteps
