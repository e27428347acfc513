// An atomic operation that orders what stands before and behind it, for all threads of the GPU. CUDA's
// atomicInc() orders nothing, and needs a __threadfence() on either side. PTX ISA, "atom", "Memory
// consistency model". sm_70 and newer.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// *counter becomes 0 if it is at least `limit`, else it grows by 1; returns what it was. What this thread has
// read and written, and what it knows of others (behind a __syncthreads(), what the whole CTA has), comes
// before; and all that is so ordered before an earlier call for the same counter comes before what this
// thread does next.
__device__ __forceinline__ unsigned atomic_inc_acq_rel(unsigned* counter, unsigned limit) {
#ifdef __CUDACC__
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter)), "r"(limit)
               : "memory");
  return before;
#else
  __threadfence();
  const unsigned before = atomicInc(counter, limit);
  __threadfence();
  return before;
#endif
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
