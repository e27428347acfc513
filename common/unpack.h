// FP8 elements as elements in FP16, two in a register: what an operand of mma.sync takes.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The two lower bytes of `bytes`, which are e4m3 numbers, as they are: FP16 has them all. The lower one goes
// into the lower half. One instruction from sm_89 on. Before, CUDA's function takes about ten for each
// element.
__device__ __forceinline__ uint32_t unpack2_e4m3(uint32_t bytes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(bytes), __NV_E4M3);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
