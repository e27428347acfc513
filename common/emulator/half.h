// __half and __nv_bfloat16: storage types that convert to and from float, as cuda_fp16.h and cuda_bf16.h name
// them.
#pragma once

#include <bit>
#include <cstdint>

#include "common/emulator/vector_types.h"

namespace emulator {

// A few instructions and no branch: this is the inner loop of every scalar kernel. Exponent and mantissa are
// shifted into place and a multiplication repairs the exponent's bias, which also makes subnormals come out
// right.
inline float half_bits_to_float(uint16_t half) {
  const uint32_t shifted = uint32_t(half & 0x7fff) << 13;
  const float magnitude = std::bit_cast<float>(shifted) * 0x1p112f;
  const uint32_t infinity_or_nan = shifted >= 0x0f800000 ? 0x7f800000u : 0u;
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | infinity_or_nan | sign);
}

// Round to nearest even. Every NaN becomes 0x7fff, as on the GPU.
inline uint16_t float_to_half_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // from 65520 on: rounds to infinity
  if (magnitude < 0x38800000) {
    // Subnormal: the last bit of 0.5 + x is 2^-24, the step of fp16's subnormals, so the addition rounds for
    // us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t tie_to_even = (magnitude >> 13) & 1;
  return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + tie_to_even) >> 13));
}

inline float bfloat16_bits_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

// Round to nearest even. Every NaN becomes 0x7fff, as on the GPU.
inline uint16_t float_to_bfloat16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  const uint32_t tie_to_even = (bits >> 16) & 1;
  return uint16_t((bits + 0x7fff + tie_to_even) >> 16);
}

namespace cuda {

// As in CUDA, converts to float by itself; unlike in CUDA, does no arithmetic: sums and products of these
// types would round after every operation on the GPU and not here, so they are refused. Kernels compute in
// float. Inlined always, so that a report about a load names the kernel's line and not this file's.
struct __half {
  uint16_t bits;
  __half() = default;
  [[gnu::always_inline]] explicit __half(float value) : bits(float_to_half_bits(value)) {}
  [[gnu::always_inline]] operator float() const { return half_bits_to_float(bits); }
};

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  [[gnu::always_inline]] explicit __nv_bfloat16(float value) : bits(float_to_bfloat16_bits(value)) {}
  [[gnu::always_inline]] operator float() const { return bfloat16_bits_to_float(bits); }
};

void operator+(__half, __half) = delete;
void operator-(__half, __half) = delete;
void operator*(__half, __half) = delete;
void operator/(__half, __half) = delete;
void operator+(__nv_bfloat16, __nv_bfloat16) = delete;
void operator-(__nv_bfloat16, __nv_bfloat16) = delete;
void operator*(__nv_bfloat16, __nv_bfloat16) = delete;
void operator/(__nv_bfloat16, __nv_bfloat16) = delete;

struct alignas(4) __half2 {
  __half x, y;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
inline float2 __half22float2(__half2 h) { return {float(h.x), float(h.y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(unsigned short bits) { return std::bit_cast<__half>(bits); }

inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return {__nv_bfloat16(f.x), __nv_bfloat16(f.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {float(h.x), float(h.y)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline float __low2float(__nv_bfloat162 h) { return h.x; }
inline float __high2float(__nv_bfloat162 h) { return h.y; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return std::bit_cast<__nv_bfloat16>(bits); }

}  // namespace cuda
}  // namespace emulator
