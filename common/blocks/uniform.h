// What ptxas should know, or should not know, about a value. Spelled out in v23_store_warp.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The same value. The vote or the reduction tells ptxas that it is the same in all lanes of a warp, so ptxas
// computes what follows from it once for the warp, in uniform registers. wgmma takes its descriptors from
// these; any other value must be moved there (R2UR) between the products.
__device__ inline bool uniform(bool condition) { return __any_sync(0xffffffff, condition) != 0; }
__device__ inline int uniform(int value) { return int(__reduce_or_sync(0xffffffff, unsigned(value))); }

// The same value, but the compiler knows nothing about it. So it computes nothing from it before a loop, to
// be kept in registers that the loop needs.
__device__ inline int opaque(int value) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
