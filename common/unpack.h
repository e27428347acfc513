// Two elements in a register, in another type: of 16 bits as floats, and of FP8 as FP16, which an operand of
// mma.sync takes.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Element is __half or __nv_bfloat16. The lower half becomes x.
template <typename Element>
__device__ __forceinline__ float2 unpack2(uint32_t bits) {
  if constexpr (std::is_same_v<Element, __half>) {
    __half2 pair;
    memcpy(&pair, &bits, sizeof(bits));
    return __half22float2(pair);
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    // A bfloat16 is the upper half of a float. CUDA's function takes the pair apart first. Where the pair
    // itself is needed, too, as P is, nvcc then puts it together again: two more instructions.
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000)};
  }
}

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
