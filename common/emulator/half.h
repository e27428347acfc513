// __half and __nv_bfloat16, their pairs, arithmetic and conversions, as cuda_fp16.h and cuda_bf16.h name
// them; of cuda_fp8.h, the types and their conversions. Every operation rounds to 16 bits, as on the GPU.
//
// Sums, products, quotients and roots are computed in double and rounded once more. A double has more than
// twice as many bits as a 16-bit float, plus two; then rounding twice gives what rounding once does. __hfma
// has no such guarantee: its double is rounded to odd.
//
// nvcc may make one fma, which rounds once, of a product and a sum. The functions that end in _rn forbid it.
#pragma once

#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

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

// Exponent and mantissa shifted into place, as for fp16. There is no Inf: the largest code is NaN.
constexpr float e4m3_bits_to_float(uint8_t code) {
  const float magnitude = std::bit_cast<float>(uint32_t(code & 0x7f) << 20) * 0x1p120f;
  const uint32_t nan = (code & 0x7f) == 0x7f ? 0x7fffffffu : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | nan | uint32_t(code & 0x80) << 24);
}

// Round to nearest even; what is too large becomes the largest number, 448, as cvt.rn.satfinite does it.
inline uint8_t float_to_e4m3_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  if (magnitude >= 0x43e00000) return uint8_t(sign | 0x7e);  // from 448 on
  if (magnitude < 0x3c800000) {  // subnormal: the last bit of 2^14 + x is 2^-9, their step
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return uint8_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000));
  }
  const uint32_t tie_to_even = (magnitude >> 20) & 1;
  return uint8_t(sign | ((magnitude - 0x3c000000 + 0x7ffff + tie_to_even) >> 20));
}

// Rounded to odd, see fma_to_odd.
inline float float_to_odd(double value) {
  const float nearest = float(value);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (double(nearest) == value || value != value || bits % 2 == 1) return nearest;
  return std::bit_cast<float>(std::fabs(double(nearest)) > std::fabs(value) ? bits - 1 : bits + 1);
}

// a * b + c; the product must be exact in double. Rounded to odd: whatever was lost shows in the last bit, so
// that rounding again, to fewer bits, gives what rounding once would have given.
inline double fma_to_odd(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - product;
  const double lost = (product - (sum - part)) + (c - part);
  const int64_t bits = std::bit_cast<int64_t>(sum);
  if (lost == 0 || bits % 2 != 0) return sum;
  return std::bit_cast<double>((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
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

// What both types can do. Found through their arguments, and with the conversions that CUDA's functions
// allow.
template <typename T>
struct HalfArithmetic {
  friend T __hadd(T a, T b) { return double(float(a)) + double(float(b)); }
  friend T __hsub(T a, T b) { return double(float(a)) - double(float(b)); }
  friend T __hmul(T a, T b) { return double(float(a)) * double(float(b)); }
  friend T __hdiv(T a, T b) { return double(float(a)) / double(float(b)); }
  friend T __hadd_rn(T a, T b) { return __hadd(a, b); }
  friend T __hsub_rn(T a, T b) { return __hsub(a, b); }
  friend T __hmul_rn(T a, T b) { return __hmul(a, b); }
  friend T __hfma(T a, T b, T c) { return fma_to_odd(float(a), float(b), float(c)); }
  friend T __hfma_sat(T a, T b, T c) {  // a NaN becomes 0
    const T sum = __hfma(a, b, c);
    return float(sum) > 0 ? (float(sum) < 1 ? sum : T(1.0f)) : T(0.0f);
  }
  friend T __hneg(T a) { return std::bit_cast<T>(uint16_t(a.bits ^ 0x8000)); }
  friend T __habs(T a) { return std::bit_cast<T>(uint16_t(a.bits & 0x7fff)); }

  friend T operator+(T a) { return a; }
  friend T operator-(T a) { return __hneg(a); }
  friend T operator+(T a, T b) { return __hadd(a, b); }
  friend T operator-(T a, T b) { return __hsub(a, b); }
  friend T operator*(T a, T b) { return __hmul(a, b); }
  friend T operator/(T a, T b) { return __hdiv(a, b); }
  friend T& operator+=(T& a, T b) { return a = __hadd(a, b); }
  friend T& operator-=(T& a, T b) { return a = __hsub(a, b); }
  friend T& operator*=(T& a, T b) { return a = __hmul(a, b); }
  friend T& operator/=(T& a, T b) { return a = __hdiv(a, b); }

  // False if one is a NaN, except operator !=.
  friend bool __heq(T a, T b) { return float(a) == float(b); }
  friend bool __hne(T a, T b) { return float(a) < float(b) || float(a) > float(b); }
  friend bool __hlt(T a, T b) { return float(a) < float(b); }
  friend bool __hle(T a, T b) { return float(a) <= float(b); }
  friend bool __hgt(T a, T b) { return float(a) > float(b); }
  friend bool __hge(T a, T b) { return float(a) >= float(b); }
  friend bool operator==(T a, T b) { return __heq(a, b); }
  friend bool operator!=(T a, T b) { return !__heq(a, b); }
  friend bool operator<(T a, T b) { return __hlt(a, b); }
  friend bool operator<=(T a, T b) { return __hle(a, b); }
  friend bool operator>(T a, T b) { return __hgt(a, b); }
  friend bool operator>=(T a, T b) { return __hge(a, b); }
  friend bool __hisnan(T a) { return std::isnan(float(a)); }
  friend int __hisinf(T a) { return std::isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0; }

  // -0 is less than +0 here. A NaN loses against a number, and wins in those that end in _nan.
  friend T __hmax_nan(T a, T b) { return __hisnan(a) || __hisnan(b) ? T(NAN) : is_less(a, b) ? b : a; }
  friend T __hmin_nan(T a, T b) { return __hisnan(a) || __hisnan(b) ? T(NAN) : is_less(a, b) ? a : b; }
  friend T __hmax(T a, T b) { return __hmax_nan(__hisnan(a) ? b : a, __hisnan(b) ? a : b); }
  friend T __hmin(T a, T b) { return __hmin_nan(__hisnan(a) ? b : a, __hisnan(b) ? a : b); }

  friend T hsqrt(T a) { return std::sqrt(double(float(a))); }
  friend T hrsqrt(T a) { return 1 / std::sqrt(double(float(a))); }
  friend T hrcp(T a) { return 1 / double(float(a)); }
  friend T hexp(T a) { return std::exp(double(float(a))); }
  friend T hexp2(T a) { return std::exp2(double(float(a))); }
  friend T hlog(T a) { return std::log(double(float(a))); }
  friend T hlog2(T a) { return std::log2(double(float(a))); }
  friend T htanh(T a) { return std::tanh(double(float(a))); }
  friend T htrunc(T a) { return std::trunc(float(a)); }
  friend T hfloor(T a) { return std::floor(float(a)); }
  friend T hceil(T a) { return std::ceil(float(a)); }
  friend T hrint(T a) { return std::nearbyint(float(a)); }

 private:
  static bool is_less(T a, T b) {
    return float(a) < float(b) || (float(a) == float(b) && std::signbit(float(a)) && !std::signbit(float(b)));
  }
};

// The same for both elements of a pair.
template <typename T2>
struct PairArithmetic {
  friend T2 __hadd2(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
  friend T2 __hsub2(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
  friend T2 __hmul2(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
  friend T2 __h2div(T2 a, T2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
  friend T2 __hadd2_rn(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
  friend T2 __hsub2_rn(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
  friend T2 __hmul2_rn(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
  friend T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
  friend T2 __hfma2_sat(T2 a, T2 b, T2 c) { return {__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)}; }
  friend T2 __hneg2(T2 a) { return {__hneg(a.x), __hneg(a.y)}; }
  friend T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }

  friend T2 operator-(T2 a) { return __hneg2(a); }
  friend T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }
  friend T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }
  friend T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }
  friend T2 operator/(T2 a, T2 b) { return __h2div(a, b); }
  friend T2& operator+=(T2& a, T2 b) { return a = __hadd2(a, b); }
  friend T2& operator-=(T2& a, T2 b) { return a = __hsub2(a, b); }
  friend T2& operator*=(T2& a, T2 b) { return a = __hmul2(a, b); }
  friend T2& operator/=(T2& a, T2 b) { return a = __h2div(a, b); }

  // 1 or 0 for each element; __hb...: true for both.
  friend T2 __heq2(T2 a, T2 b) { return {__heq(a.x, b.x), __heq(a.y, b.y)}; }
  friend T2 __hne2(T2 a, T2 b) { return {__hne(a.x, b.x), __hne(a.y, b.y)}; }
  friend T2 __hlt2(T2 a, T2 b) { return {__hlt(a.x, b.x), __hlt(a.y, b.y)}; }
  friend T2 __hle2(T2 a, T2 b) { return {__hle(a.x, b.x), __hle(a.y, b.y)}; }
  friend T2 __hgt2(T2 a, T2 b) { return {__hgt(a.x, b.x), __hgt(a.y, b.y)}; }
  friend T2 __hge2(T2 a, T2 b) { return {__hge(a.x, b.x), __hge(a.y, b.y)}; }
  friend bool __hbeq2(T2 a, T2 b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }
  friend bool __hbne2(T2 a, T2 b) { return __hne(a.x, b.x) && __hne(a.y, b.y); }
  friend bool __hblt2(T2 a, T2 b) { return __hlt(a.x, b.x) && __hlt(a.y, b.y); }
  friend bool __hble2(T2 a, T2 b) { return __hle(a.x, b.x) && __hle(a.y, b.y); }
  friend bool __hbgt2(T2 a, T2 b) { return __hgt(a.x, b.x) && __hgt(a.y, b.y); }
  friend bool __hbge2(T2 a, T2 b) { return __hge(a.x, b.x) && __hge(a.y, b.y); }
  friend bool operator==(T2 a, T2 b) { return __hbeq2(a, b); }

  friend T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
  friend T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
  friend T2 __hmax2_nan(T2 a, T2 b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; }
  friend T2 __hmin2_nan(T2 a, T2 b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; }
  friend T2 h2sqrt(T2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }
  friend T2 h2rsqrt(T2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
  friend T2 h2rcp(T2 a) { return {hrcp(a.x), hrcp(a.y)}; }
  friend T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }
  friend T2 h2exp2(T2 a) { return {hexp2(a.x), hexp2(a.y)}; }
  friend T2 h2log(T2 a) { return {hlog(a.x), hlog(a.y)}; }
  friend T2 h2log2(T2 a) { return {hlog2(a.x), hlog2(a.y)}; }
  friend T2 h2trunc(T2 a) { return {htrunc(a.x), htrunc(a.y)}; }
  friend T2 h2floor(T2 a) { return {hfloor(a.x), hfloor(a.y)}; }
  friend T2 h2ceil(T2 a) { return {hceil(a.x), hceil(a.y)}; }
  friend T2 h2rint(T2 a) { return {hrint(a.x), hrint(a.y)}; }
};

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

// Has no arithmetic, and converts from numbers only when it is told to.
struct __nv_fp8_e4m3 {
  uint8_t __x;  // as in CUDA
  __nv_fp8_e4m3() = default;
  [[gnu::always_inline]] explicit __nv_fp8_e4m3(float value) : __x(float_to_e4m3_bits(value)) {}
  [[gnu::always_inline]] explicit operator float() const { return e4m3_bits_to_float(__x); }
};

// E5M2 is the upper half of an FP16 number, rounded to the nearest; what is too large becomes 57344.
inline uint8_t float_to_e5m2_bits(float number) {
  if (number != number) return 0x7f;
  const float clamped = std::fmin(std::fmax(number, -57344.0f), 57344.0f);
  const float step = std::ldexp(1.0f, std::max(std::ilogb(clamped), -14) - 2);
  return uint8_t(__half(std::nearbyint(clamped / step) * step).bits >> 8);
}
struct __nv_fp8_e5m2 {
  uint8_t __x;
  __nv_fp8_e5m2() = default;
  [[gnu::always_inline]] explicit __nv_fp8_e5m2(float value) : __x(float_to_e5m2_bits(value)) {}
  [[gnu::always_inline]] explicit operator float() const { return half_bits_to_float(uint16_t(__x << 8)); }
};

using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned;
// The first of two or four lies in the lowest byte.
#define FLASHSTEPS_FP8_VECTORS(T, T2, T4)                                                              \
  struct T2 {                                                                                          \
    __nv_fp8x2_storage_t __x;                                                                          \
    T2() = default;                                                                                    \
    [[gnu::always_inline]] explicit T2(float2 v) : __x(uint16_t(T(v.x).__x | T(v.y).__x << 8)) {}      \
    [[gnu::always_inline]] explicit operator float2() const { return {at(0), at(8)}; }                 \
                                                                                                       \
   private:                                                                                            \
    float at(int bit) const { return float(std::bit_cast<T>(uint8_t(__x >> bit))); }                   \
  };                                                                                                   \
  struct T4 {                                                                                          \
    __nv_fp8x4_storage_t __x;                                                                          \
    T4() = default;                                                                                    \
    [[gnu::always_inline]] explicit T4(float4 v)                                                       \
        : __x(T2(float2{v.x, v.y}).__x | unsigned(T2(float2{v.z, v.w}).__x) << 16) {}                  \
    [[gnu::always_inline]] explicit operator float4() const { return {at(0), at(8), at(16), at(24)}; } \
                                                                                                       \
   private:                                                                                            \
    float at(int bit) const { return float(std::bit_cast<T>(uint8_t(__x >> bit))); }                   \
  };
FLASHSTEPS_FP8_VECTORS(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3)
FLASHSTEPS_FP8_VECTORS(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2)
#undef FLASHSTEPS_FP8_VECTORS
enum __nv_saturation_t { __NV_SATFINITE };  // what is too large becomes the largest number
enum __nv_fp8_interpretation_t { __NV_E4M3 };

struct __half2_raw {
  unsigned short x, y;
};
struct alignas(4) __half2 : PairArithmetic<__half2> {
  __half x, y;
  __half2() = default;
  [[gnu::always_inline]] __half2(__half2_raw raw) {
    x.bits = raw.x;
    y.bits = raw.y;
  }
  [[gnu::always_inline]] constexpr __half2(__half low, __half high) : x(low), y(high) {}
};
struct alignas(4) __nv_bfloat162 : PairArithmetic<__nv_bfloat162> {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  [[gnu::always_inline]] constexpr __nv_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) : x(low), y(high) {}
};

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

// The largest number of T that is not above x.
template <typename T>
T rounded_down(float x) {
  T nearest = x;
  if (float(nearest) > x)
    nearest.bits = uint16_t(nearest.bits >> 15 != 0 ? nearest.bits + 1 : nearest.bits - 1);
  return nearest;
}

// The functions of cuda_fp16.h and cuda_bf16.h have the same names, but for the type's in them.
// clang-format off
#define FLASHSTEPS_CONVERSIONS(NAME, T, T2)                                                                \
  inline T __float2##NAME(float x) { return x; }                                                           \
  inline T __float2##NAME##_rn(float x) { return x; }                                                      \
  inline T __float2##NAME##_rd(float x) { return rounded_down<T>(x); }                                     \
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

inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return __nv_fp8x2_storage_t(float_to_e4m3_bits(x.x) | float_to_e4m3_bits(x.y) << 8);
}
inline __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2 x, __nv_saturation_t,
                                                       __nv_fp8_interpretation_t) {
  return __nv_fp8x2_storage_t(float_to_e4m3_bits(x.x) | float_to_e4m3_bits(x.y) << 8);
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t) {
  return {__half(e4m3_bits_to_float(uint8_t(x))).bits, __half(e4m3_bits_to_float(uint8_t(x >> 8))).bits};
}

}  // namespace cuda
}  // namespace emulator
