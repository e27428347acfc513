// Atomic operations and a load that order the memory accesses before and after them, for all threads of the
// GPU. CUDA's atomicInc() orders nothing, so it needs a __threadfence() on either side. PTX ISA, "atom",
// "ld", "Memory consistency model". sm_70 and newer.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Sets *counter to 0 if it is at least `limit`, and otherwise adds 1; returns the old value. Everything that
// happens before this call (after a __syncthreads(), also what the CTA's other threads have done) is visible
// to the threads that call this later for the same counter. After the call, this thread sees what happened
// before their earlier calls.
__device__ __forceinline__ unsigned atomic_inc_acq_rel(unsigned* counter, unsigned limit) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter)), "r"(limit)
               : "memory");
  return before;
}

// The same with an addition.
__device__ __forceinline__ unsigned atomic_add_acq_rel(unsigned* counter, unsigned value) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter)), "r"(value)
               : "memory");
  return before;
}

// The counter's value. After the call, this thread sees what happened before the calls above that it
// includes.
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return value;
}

#else  // see common/emulator/atomics.cpp

unsigned atomic_inc_acq_rel(unsigned* counter, unsigned limit, Location at = Location::current());
unsigned atomic_add_acq_rel(unsigned* counter, unsigned value, Location at = Location::current());
unsigned load_acquire(const unsigned* counter, Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
