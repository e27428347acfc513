// 16 bytes in one instruction (LDG.128, STG.128, LDS.128, STS.128), the most that a lane can move on GPUs up
// to sm_90. The address must be a multiple of 16.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

__device__ __forceinline__ uint4 load_16_bytes(const void* from) { return *static_cast<const uint4*>(from); }

__device__ __forceinline__ void store_16_bytes(void* to, uint4 value) { *static_cast<uint4*>(to) = value; }

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
