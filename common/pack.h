// Two floats as two 16-bit elements in one register, or four numbers as four FP8 elements: what a tensor-core
// operand and a 4-byte store take.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Rounded to nearest even; `low` goes into the lower half. Element is __half or __nv_bfloat16.
template <typename Element>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<Element, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

// Rounded to nearest even; beyond 448 to 448. x0 goes into the lowest byte.
__device__ __forceinline__ uint32_t pack4_e4m3(float x0, float x1, float x2, float x3) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({x0, x1}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({x2, x3}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}
__device__ __forceinline__ uint32_t pack4_e4m3(__half2 x01, __half2 x23) {
  const uint32_t low = __nv_cvt_halfraw2_to_fp8x2(x01, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_halfraw2_to_fp8x2(x23, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
