// Arithmetic with 16-bit floats: every operation rounds to 16 bits, as on the GPU. half.h has the types.
//
// Sums, products, quotients and roots are computed in double and rounded once more. A double has more than
// twice as many bits as a 16-bit float, plus two; then rounding twice gives what rounding once does. __hfma
// has no such guarantee: its double is rounded to odd.
//
// nvcc may make one fma, which rounds once, of a product and a sum. The functions that end in _rn forbid it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace emulator {

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

}  // namespace cuda
}  // namespace emulator
