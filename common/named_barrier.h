// Named barriers: __syncthreads for some of a CTA's warps. PTX ISA, "bar, barrier". All GPUs.
#pragma once

#include "common/cuda.h"

#ifndef __CUDACC__
#include "common/emulator/named_barrier.h"
#else

namespace flashsteps {
inline namespace on_cuda {

// Waits until `num_threads` threads, a multiple of 32, have come to barrier `id`, and orders their memory
// accesses. All lanes of a warp call it together. There are barriers 0 to 15; __syncthreads uses 0.
__device__ __forceinline__ void bar_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(num_threads) : "memory");
}

// Arrives there and does not wait: others may go on, and see what this warp has done, while it does something
// else. `num_threads` counts those that wait and those that do not.
__device__ __forceinline__ void bar_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(num_threads) : "memory");
}

}  // namespace on_cuda
}  // namespace flashsteps

#endif
