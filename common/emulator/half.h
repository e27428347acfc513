// __half and __nv_bfloat16, their pairs and conversions, as cuda_fp16.h and cuda_bf16.h name them.
#pragma once

#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/emulator/half_arithmetic.h"
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

// Rounded to odd, see fma_to_odd.
inline float float_to_odd(double value) {
  const float nearest = float(value);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (double(nearest) == value || value != value || bits % 2 == 1) return nearest;
  return std::bit_cast<float>(std::fabs(double(nearest)) > std::fabs(value) ? bits - 1 : bits + 1);
}

// As the hardware converts: what does not fit becomes the nearest that does, a NaN 0.
inline int float_to_int(float value) {
  if (value != value) return 0;
  if (value < -0x1p31f) return INT_MIN;
  return value < 0x1p31f ? int(value) : INT_MAX;
}
inline unsigned float_to_unsigned(float value) {
  if (!(value > 0)) return 0;
  return value < 0x1p32f ? unsigned(value) : UINT_MAX;
}

namespace cuda {

// Any but float itself.
template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, float>;

// Convert from numbers and to float by themselves, as in CUDA. Inlined always, so that a report about a load
// names the kernel's line and not this file's.
struct __half : HalfArithmetic<__half> {
  uint16_t bits;
  __half() = default;
  [[gnu::always_inline]] __half(float value) : bits(float_to_half_bits(value)) {}
  template <Number T>
  [[gnu::always_inline]] __half(T value) : bits(float_to_half_bits(float_to_odd(double(value)))) {}
  [[gnu::always_inline]] operator float() const { return half_bits_to_float(bits); }
};

struct __nv_bfloat16 : HalfArithmetic<__nv_bfloat16> {
  uint16_t bits;
  __nv_bfloat16() = default;
  [[gnu::always_inline]] __nv_bfloat16(float value) : bits(float_to_bfloat16_bits(value)) {}
  template <Number T>
  [[gnu::always_inline]] __nv_bfloat16(T value) : bits(float_to_bfloat16_bits(float_to_odd(double(value)))) {}
  [[gnu::always_inline]] operator float() const { return bfloat16_bits_to_float(bits); }
};

struct alignas(4) __half2 : PairArithmetic<__half2> {
  __half x, y;
  __half2() = default;
  [[gnu::always_inline]] __half2(__half low, __half high) : x(low), y(high) {}
};
struct alignas(4) __nv_bfloat162 : PairArithmetic<__nv_bfloat162> {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  [[gnu::always_inline]] __nv_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) : x(low), y(high) {}
};

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

// The functions of cuda_fp16.h and cuda_bf16.h have the same names, but for the type's in them.
// clang-format off
#define FLASHSTEPS_CONVERSIONS(NAME, T, T2)                                                                \
  inline T __float2##NAME(float x) { return x; }                                                           \
  inline T __float2##NAME##_rn(float x) { return x; }                                                      \
  inline T __double2##NAME(double x) { return x; }                                                         \
  inline T __int2##NAME##_rn(int x) { return x; }                                                          \
  inline T __uint2##NAME##_rn(unsigned x) { return x; }                                                    \
  inline float __##NAME##2float(T x) { return x; }                                                         \
  inline int __##NAME##2int_rn(T x) { return float_to_int(std::nearbyint(float(x))); }                     \
  inline int __##NAME##2int_rz(T x) { return float_to_int(float(x)); }                                     \
  inline short __##NAME##_as_short(T x) { return short(x.bits); }                                          \
  inline unsigned short __##NAME##_as_ushort(T x) { return x.bits; }                                       \
  inline T __short_as_##NAME(short bits) { return std::bit_cast<T>(bits); }                                \
  inline T __ushort_as_##NAME(unsigned short bits) { return std::bit_cast<T>(bits); }                      \
  inline T2 __float2##NAME##2_rn(float x) { return {x, x}; }                                               \
  inline T2 __floats2##NAME##2_rn(float low, float high) { return {low, high}; }                           \
  inline T2 __float22##NAME##2_rn(float2 x) { return {x.x, x.y}; }                                         \
  inline float2 __##NAME##22float2(T2 x) { return {x.x, x.y}; }                                            \
  inline T2 __##NAME##2##NAME##2(T x) { return {x, x}; }                                                   \
  inline T2 __halves2##NAME##2(T low, T high) { return {low, high}; }                                      \
  inline T2 make_##NAME##2(T low, T high) { return {low, high}; }                                          \
  inline T __low2##NAME(T2 x) { return x.x; }                                                              \
  inline T __high2##NAME(T2 x) { return x.y; }                                                             \
  inline float __low2float(T2 x) { return x.x; }                                                           \
  inline float __high2float(T2 x) { return x.y; }                                                          \
  inline T2 __low2##NAME##2(T2 x) { return {x.x, x.x}; }                                                   \
  inline T2 __high2##NAME##2(T2 x) { return {x.y, x.y}; }                                                  \
  inline T2 __lows2##NAME##2(T2 a, T2 b) { return {a.x, b.x}; }                                            \
  inline T2 __highs2##NAME##2(T2 a, T2 b) { return {a.y, b.y}; }                                           \
  inline T2 __lowhigh2highlow(T2 x) { return {x.y, x.x}; }
// clang-format on
FLASHSTEPS_CONVERSIONS(half, __half, __half2)
FLASHSTEPS_CONVERSIONS(bfloat16, __nv_bfloat16, __nv_bfloat162)
#undef FLASHSTEPS_CONVERSIONS

}  // namespace cuda
}  // namespace emulator
