// Brings what will be read soon from memory to the L2 cache. PTX ISA, "prefetch". On the emulator nothing
// happens.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The cache lines, of 128 bytes, in which BYTES bytes from a multiple of 16 on begin. It reads nothing, so it
// needs no order with other threads' or kernels' writes: these go to L2 as well.
template <int BYTES>
__device__ __forceinline__ void prefetch_l2([[maybe_unused]] const void* from) {
#ifdef __CUDACC__
#pragma unroll
  for (int i = 0; i < BYTES; i += 128)
    asm volatile("prefetch.global.L2 [%0];" : : "l"(static_cast<const char*>(from) + i));
#endif
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
