// The CUDA vocabulary for the host compiler: what kernels find when there is no nvcc. Include common/cuda.h.
// docs/cuda_on_the_emulator.md lists what there is, what there is not, and what to use instead.
//
// All of it lives in emulator::cuda: no function or type defined here can share a linker symbol with the real
// one of the same name in an object that nvcc made.
#pragma once

#include <cstdint>

#include "common/emulator/atomics.h"
#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/emulator/intrinsics.h"
#ifndef FLASHSTEPS_CUDA_PROGRAM  // which has what steps must not use: cuda_program.h
#include "common/emulator/unsupported.h"
#endif
#include "common/emulator/vector_types.h"
#include "common/emulator/warp.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
// A CTA never leaves its host thread, so what its threads share is exactly what is local to that host thread.
// Without constinit gcc gives an array of classes a hidden flag, "constructed already", which the threads
// would read and write without a barrier. (clang makes none, and takes no uninitialised class for constinit.)
#ifdef __clang__
#define __shared__ thread_local
#else
#define __shared__ constinit thread_local
#endif

// Of program data that kernels only read. Nothing can write it but its initialiser: see unsupported.h.
#define __constant__
#define __maxnreg__(...)

namespace emulator::cuda {

// Constant for the thread that looks, hence const: neither hooked nor reloaded after every call. The
// scheduler sets them when it switches threads. (blockDim and gridDim are dim3 in CUDA; gcc takes no class
// that has constructors for constant.)
extern constinit thread_local const uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern constinit thread_local const uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern constinit thread_local const uint3 blockDim __attribute__((tls_model("initial-exec")));
extern constinit thread_local const uint3 gridDim __attribute__((tls_model("initial-exec")));
constexpr int warpSize = 32;

inline void __syncthreads(Location at = Location::current()) { syncthreads(at); }
inline int __syncthreads_count(int predicate, Location at = Location::current()) {
  return syncthreads_tally("__syncthreads_count", predicate != 0, at).yes;
}
inline int __syncthreads_or(int predicate, Location at = Location::current()) {
  return syncthreads_tally("__syncthreads_or", predicate != 0, at).yes != 0;
}
inline int __syncthreads_and(int predicate, Location at = Location::current()) {
  const Tally tally = syncthreads_tally("__syncthreads_and", predicate != 0, at);
  return tally.yes == tally.voters;
}
inline void __syncwarp(unsigned mask = 0xffffffff, Location at = Location::current()) { syncwarp(mask, at); }

// Nothing to do: the threads of a CTA take turns on one host thread and see each other's writes at once.
inline void __threadfence_block() {}
inline void __threadfence() { thread_fence(); }
inline void __threadfence_system() { thread_fence(); }

inline void __nanosleep(unsigned) { nap(); }
// A count, not a time. The C library may have clock(), which is preferred to a template.
inline long long clock64() { return ticks(); }
template <typename = void>
long clock() {
  return ticks();
}
[[noreturn]] inline void __trap(Location at = Location::current()) { trap(at); }

}  // namespace emulator::cuda

using namespace emulator::cuda;
