// Arithmetic, conversions, bits, and loads and stores with a cache hint. Part of cuda.h.
#pragma once

#include <math.h>

#include <bit>
#include <cfenv>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/emulator/vector_types.h"

// Declared by math.h, too, with nothing to tell a trace that they were called.
#define exp2f traced_exp2f
#define expf traced_expf
// glibc's math.h declares functions of these names without defining them. The C library's are more exact than
// the hardware's, which CUDA's stand for.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf

namespace emulator {

// Through registers, in this order: the compiler may not compute in another rounding mode than the one set.
template <typename T>
[[gnu::always_inline]] inline T keep_order(T x) {
  __asm__ volatile("" : "+r"(x) : : "memory");
  return x;
}
template <typename Operation, typename... T>
auto rounded(int direction, Operation operation, T... x) {
  std::fesetround(direction);
  const auto result = keep_order(operation(keep_order(x)...));
  std::fesetround(FE_TONEAREST);
  return result;
}

}  // namespace emulator

namespace emulator::cuda {

inline float traced_exp2f(float x, Location at = Location::current()) { return exp2_in_kernel(x, at); }
inline float traced_expf(float x, Location at = Location::current()) { return exp_in_kernel(x, at); }

// Of two integers, or of two floating-point numbers. A NaN loses against a number, as in CUDA.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  static_assert(std::is_floating_point_v<A> == std::is_floating_point_v<B>,
                "CUDA has no min of an integer and a floating-point number: convert one");
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
  return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  static_assert(std::is_floating_point_v<A> == std::is_floating_point_v<B>,
                "CUDA has no max of an integer and a floating-point number: convert one");
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
  return T(a) < T(b) ? T(b) : T(a);
}

inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline unsigned __vimax3_s16x2(unsigned a, unsigned b, unsigned c) {
  const auto largest = [&](int shift) {
    return uint32_t(uint16_t(std::max({int16_t(a >> shift), int16_t(b >> shift), int16_t(c >> shift)})))
           << shift;
  };
  return largest(16) | largest(0);
}
inline unsigned __vimin3_s16x2(unsigned a, unsigned b, unsigned c) {
  const auto least = [&](int shift) {
    return uint32_t(uint16_t(std::min({int16_t(a >> shift), int16_t(b >> shift), int16_t(c >> shift)})))
           << shift;
  };
  return least(16) | least(0);
}
inline unsigned umin(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }

// Templates, so that a C library that has them (C23) is preferred and not ambiguous.
template <typename T>
T rsqrtf(T x) {
  return 1.0f / std::sqrt(x);
}
template <typename T>
T rsqrt(T x) {
  return 1 / std::sqrt(x);
}
inline float fdividef(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // a NaN becomes 0

// Rounded to nearest, down, up, towards zero.
#define FLASHSTEPS_ROUNDED(T, RN, RD, RU, RZ, PARAMETERS, RESULT, ...)     \
  inline T RN PARAMETERS { return RESULT; }                                \
  inline T RD PARAMETERS { return rounded(FE_DOWNWARD, RN, __VA_ARGS__); } \
  inline T RU PARAMETERS { return rounded(FE_UPWARD, RN, __VA_ARGS__); }   \
  inline T RZ PARAMETERS { return rounded(FE_TOWARDZERO, RN, __VA_ARGS__); }
FLASHSTEPS_ROUNDED(float, __fadd_rn, __fadd_rd, __fadd_ru, __fadd_rz, (float a, float b), a + b, a, b)
FLASHSTEPS_ROUNDED(float, __fsub_rn, __fsub_rd, __fsub_ru, __fsub_rz, (float a, float b), a - b, a, b)
FLASHSTEPS_ROUNDED(float, __fdiv_rn, __fdiv_rd, __fdiv_ru, __fdiv_rz, (float a, float b), a / b, a, b)
FLASHSTEPS_ROUNDED(float, __fmaf_rn, __fmaf_rd, __fmaf_ru, __fmaf_rz, (float a, float b, float c),
                   std::fma(a, b, c), a, b, c)
FLASHSTEPS_ROUNDED(float, __frcp_rn, __frcp_rd, __frcp_ru, __frcp_rz, (float x), 1 / x, x)
FLASHSTEPS_ROUNDED(float, __fsqrt_rn, __fsqrt_rd, __fsqrt_ru, __fsqrt_rz, (float x), std::sqrt(x), x)
FLASHSTEPS_ROUNDED(double, __dadd_rn, __dadd_rd, __dadd_ru, __dadd_rz, (double a, double b), a + b, a, b)
FLASHSTEPS_ROUNDED(double, __dsub_rn, __dsub_rd, __dsub_ru, __dsub_rz, (double a, double b), a - b, a, b)
FLASHSTEPS_ROUNDED(double, __dmul_rn, __dmul_rd, __dmul_ru, __dmul_rz, (double a, double b), a* b, a, b)
FLASHSTEPS_ROUNDED(double, __ddiv_rn, __ddiv_rd, __ddiv_ru, __ddiv_rz, (double a, double b), a / b, a, b)
FLASHSTEPS_ROUNDED(double, __fma_rn, __fma_rd, __fma_ru, __fma_rz, (double a, double b, double c),
                   std::fma(a, b, c), a, b, c)
FLASHSTEPS_ROUNDED(double, __drcp_rn, __drcp_rd, __drcp_ru, __drcp_rz, (double x), 1 / x, x)
FLASHSTEPS_ROUNDED(double, __dsqrt_rn, __dsqrt_rd, __dsqrt_ru, __dsqrt_rz, (double x), std::sqrt(x), x)
#undef FLASHSTEPS_ROUNDED
// A product of floats is exact in double precision, which is faster.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmul_rd(float a, float b) {
  const float nearest = float(double(a) * b);
  return nearest > double(a) * b ? std::nextafter(nearest, -INFINITY) : nearest;
}
inline float __fmul_ru(float a, float b) { return -__fmul_rd(-a, b); }
inline float __fmul_rz(float a, float b) {
  return std::signbit(a) == std::signbit(b) ? __fmul_rd(a, b) : __fmul_ru(a, b);
}
inline float __frsqrt_rn(float x) { return float(1 / std::sqrt(double(x))); }

// ---- Conversions

inline int __float2int_rn(float x) { return float_to_int(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return float_to_int(x); }
inline int __float2int_rd(float x) { return float_to_int(std::floor(x)); }
inline int __float2int_ru(float x) { return float_to_int(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return float_to_unsigned(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return float_to_unsigned(x); }
inline unsigned __float2uint_rd(float x) { return float_to_unsigned(std::floor(x)); }
inline unsigned __float2uint_ru(float x) { return float_to_unsigned(std::ceil(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// ---- Bits

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __clzll(long long x) { return std::countl_zero(uint64_t(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
// Bytes 0-3 are those of x, 4-7 those of y. Each hex digit of the selector picks one.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
// Of the 64 bits high:low, shifted by 0 to 31, the upper (l) or lower (r) half.
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)(__int128(a) * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)(a)*b >> 64);
}
// Of the lower 24 bits of each, the lower 32 bits.
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline int __mul24(int a, int b) {
  return int(unsigned(int(unsigned(a) << 8) >> 8) * unsigned(int(unsigned(b) << 8) >> 8));
}
// The sum of c and of the products of four bytes.
inline int __dp4a(int a, int b, int c) {
  for (int bit = 0; bit < 32; bit += 8) c = int(unsigned(c) + unsigned(int8_t(a >> bit) * int8_t(b >> bit)));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int bit = 0; bit < 32; bit += 8) c += (a >> bit & 0xff) * (b >> bit & 0xff);
  return c;
}
inline int __dp4a(char4 a, char4 b, int c) { return __dp4a(std::bit_cast<int>(a), std::bit_cast<int>(b), c); }
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
  return __dp4a(std::bit_cast<unsigned>(a), std::bit_cast<unsigned>(b), c);
}
// |a - b| + c
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
inline unsigned __sad(int a, int b, unsigned c) {
  return (a < b ? unsigned(b) - unsigned(a) : unsigned(a) - unsigned(b)) + c;
}

// ---- Loads and stores with a hint, which the emulator has no cache to give to

// Inlined always, so that a report names the kernel's line.
#define FLASHSTEPS_LOAD(NAME)                           \
  template <typename T>                                 \
  [[gnu::always_inline]] inline T NAME(const T* from) { \
    return *from;                                       \
  }
FLASHSTEPS_LOAD(__ldg)
FLASHSTEPS_LOAD(__ldca)
FLASHSTEPS_LOAD(__ldcg)
FLASHSTEPS_LOAD(__ldcs)
FLASHSTEPS_LOAD(__ldlu)
#undef FLASHSTEPS_LOAD

#define FLASHSTEPS_STORE(NAME)                                                    \
  template <typename T>                                                           \
  [[gnu::always_inline]] inline void NAME(T* to, std::type_identity_t<T> value) { \
    *to = value;                                                                  \
  }
FLASHSTEPS_STORE(__stwb)
FLASHSTEPS_STORE(__stcg)
FLASHSTEPS_STORE(__stcs)
FLASHSTEPS_STORE(__stwt)
#undef FLASHSTEPS_STORE

}  // namespace emulator::cuda
