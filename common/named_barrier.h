// Named barriers: __syncthreads for some of a CTA's warps. PTX ISA, "bar, barrier". All GPUs.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Waits until `num_threads` threads, a multiple of 32, have arrived at barrier `id`, and orders their memory
// accesses. All lanes of a warp call it together. There are barriers 0 to 15; __syncthreads uses 0.
__device__ __forceinline__ void bar_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(num_threads) : "memory");
}

// Arrives at barrier `id` and does not wait. Threads that wait there see what this warp has done, which can
// meanwhile do something else. `num_threads` counts the threads that wait and those that only arrive.
__device__ __forceinline__ void bar_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(num_threads) : "memory");
}

#else  // see common/emulator/rendezvous.cpp

void bar_sync(int id, int num_threads, Location at = Location::current());
void bar_arrive(int id, int num_threads, Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
