// elect.sync: one lane of a warp, whichever the hardware picks. PTX ISA, "elect.sync". sm_90 and newer.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Called by all 32 lanes of a warp; true in exactly one of them. The compiler knows that this is one lane,
// which it does not know of `lane_id == 0`: it can keep that lane's addresses in uniform registers.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

#else  // see common/emulator/warp_operations.cpp

bool elect_one(Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
