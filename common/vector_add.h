// Four floats added to global memory in one instruction (RED.128). Each of the four additions is atomic, and
// the thread gets no old values. PTX ISA, "red". sm_90 and newer. The address must be a multiple of 16.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

__device__ __forceinline__ void atomic_add_4(float* to, const float (&values)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "f"(values[0]), "f"(values[1]), "f"(values[2]),
                 "f"(values[3])
               : "memory");
}

#else  // see common/emulator/atomics.cpp

void atomic_add_4(float* to, const float (&values)[4], Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
