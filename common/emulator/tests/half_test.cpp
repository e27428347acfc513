// Conversions of __half and __nv_bfloat16 against an oracle in double arithmetic.
#include <cmath>
#include <cstdint>
#include <limits>

#include "common/emulator/tests/support.h"

namespace {

// A 16-bit float with this many exponent and mantissa bits, decoded by definition.
double decode(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// Round to nearest even by definition: the multiple of the spacing around x that is nearest.
double round_to(double x, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double spacing = std::ldexp(1.0, std::max(exponent - 1, 1 - bias) - mantissa_bits);
  const double rounded = std::nearbyint(x / spacing) * spacing;
  const double largest = std::ldexp(2 - std::ldexp(1.0, -mantissa_bits), bias);
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, x) : rounded;
}

struct HalfFormat {
  using Type = __half;
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  static Type from_bits(uint16_t bits) { return __ushort_as_half(bits); }
};
struct Bfloat16Format {
  using Type = __nv_bfloat16;
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  static Type from_bits(uint16_t bits) { return __ushort_as_bfloat16(bits); }
};

bool same(float a, double b) {
  if (std::isnan(b)) return std::isnan(a);
  return double(a) == b && std::signbit(a) == std::signbit(b);
}

template <typename Format>
int wrong_patterns() {
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const auto bits = uint16_t(i);
    const auto value = Format::from_bits(bits);
    const float decoded = float(value);
    if (!same(decoded, decode(bits, Format::kExponentBits, Format::kMantissaBits))) ++wrong;
    const typename Format::Type again(decoded);
    const uint16_t expected = std::isnan(decoded) ? 0x7fff : bits;
    if (again.bits != expected) ++wrong;
  }
  return wrong;
}

template <typename Format>
bool rounds_right(float x) {
  const float rounded = float(typename Format::Type(x));
  if (std::isnan(x) || std::isinf(x)) return same(rounded, x);
  return same(rounded, round_to(x, Format::kExponentBits, Format::kMantissaBits));
}

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit pattern converts to float and back", "[half]", HalfFormat, Bfloat16Format) {
  CHECK(wrong_patterns<TestType>() == 0);
}

TEMPLATE_TEST_CASE("floats round to nearest even", "[half]", HalfFormat, Bfloat16Format) {
  SECTION("random bit patterns of every magnitude") {
    uint32_t state = 12345;
    int wrong = 0;
    for (int i = 0; i < 2000000; ++i) {
      state = state * 1664525 + 1013904223;
      const uint32_t scrambled = state ^ (state >> 15) * 0x2c1b3c6d;
      float x;
      std::memcpy(&x, &scrambled, 4);
      if (!rounds_right<TestType>(x)) ++wrong;
    }
    CHECK(wrong == 0);
  }
  SECTION("halfway between neighbours, and next to it") {
    int wrong = 0;
    for (int i = 0; i < 65535; ++i) {
      const float low = float(TestType::from_bits(uint16_t(i)));
      const float high = float(TestType::from_bits(uint16_t(i + 1)));
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = float((double(low) + double(high)) / 2);
      for (const float x : {middle, std::nextafter(middle, INFINITY), std::nextafter(middle, -INFINITY)}) {
        if (!rounds_right<TestType>(x)) ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

// Every operation against its definition: the exact value, rounded once. What double cannot hold exactly is
// computed in long double, whose 64 bits are enough for a sum of three such numbers or a tie-breaking rest.
template <typename Format>
typename Format::Type rounded(long double exact) {
  if (std::isnan(exact)) return typename Format::Type(NAN);
  const bool negative = std::signbit(exact);
  const long double magnitude = std::fabs(exact);
  // The largest pattern whose value is not beyond it, or the next one.
  const bool is_fp16 = Format::kExponentBits == 5;
  const int infinity = is_fp16 ? 0x7c00 : 0x7f80;
  int low = 0, high = infinity;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    const long double value = decode(uint16_t(middle), Format::kExponentBits, Format::kMantissaBits);
    (value <= magnitude ? low : high) = middle;
  }
  const long double below = decode(uint16_t(low), Format::kExponentBits, Format::kMantissaBits);
  // Infinity stands where the next number would.
  const long double above =
      high == infinity ? below + std::ldexp(1.0L, is_fp16 ? 5 : 120)
                       : (long double)(decode(uint16_t(high), Format::kExponentBits, Format::kMantissaBits));
  const long double half_way = below + (above - below) / 2;
  int bits = magnitude < half_way || (magnitude == half_way && low % 2 == 0) ? low : high;
  if (std::isinf(exact)) bits = infinity;
  return Format::from_bits(uint16_t(bits | (negative ? 0x8000 : 0)));
}

template <typename Format>
struct Sample {
  uint32_t state = 99;
  // Any pattern; every second time one with an exponent near that of 1.
  typename Format::Type next(int i) {
    state = state * 1664525 + 1013904223;
    uint16_t bits = uint16_t(state >> 16);
    if (i % 2 == 0) {
      const int one = (1 << (Format::kExponentBits - 1)) - 1;
      const int exponent = one - 4 + int(state >> 8) % 9;
      bits = uint16_t((bits & (0x8000 | ((1 << Format::kMantissaBits) - 1))) | exponent
                                                                                   << Format::kMantissaBits);
    }
    return Format::from_bits(bits);
  }
};

TEMPLATE_TEST_CASE("arithmetic rounds every result once", "[half]", HalfFormat, Bfloat16Format) {
  using T = typename TestType::Type;
  Sample<TestType> sample;
  int wrong[6] = {};
  const auto differ = [](T a, T b) { return a.bits != b.bits; };
  for (int i = 0; i < 200000; ++i) {
    const T a = sample.next(i), b = sample.next(i), c = sample.next(i / 2);
    const long double x = float(a), y = float(b), z = float(c);
    wrong[0] += differ(a + b, rounded<TestType>(x + y));
    wrong[1] += differ(a - b, rounded<TestType>(x - y));
    wrong[2] += differ(a * b, rounded<TestType>(x * y));
    wrong[3] += differ(a / b, rounded<TestType>(x / y));
    wrong[4] += differ(hsqrt(a), rounded<TestType>(std::sqrt(x)));
    // 64 bits hold it exactly where exponents are near each other.
    if (i % 4 == 0) wrong[5] += differ(__hfma(a, b, c), rounded<TestType>(x * y + z));
  }
  for (int i = 0; i < 6; ++i) {
    CAPTURE(i);
    CHECK(wrong[i] == 0);
  }
}

TEST_CASE("a fused multiply-add rounds once", "[half]") {
  // 1 + 2^-8 is halfway between two bf16 numbers, and c, far below double's last bit, decides.
  const __nv_bfloat16 a(1.0f + 0x1p-4f), b(1.0f - 0x1p-4f);  // a * b = 1 - 2^-8: representable
  CHECK(float(__hfma(a, b, __nv_bfloat16(0.0f))) == 1 - 0x1p-8f);
  const __nv_bfloat16 e(1.0f + 0x1p-7f), f(0x1.02p0f);  // 1 + 2^-6 + 2^-14, between 1 + 2^-6 and the next
  CHECK(float(__hfma(e, f, __nv_bfloat16(0.0f))) == 1 + 0x1p-6f);
  const __nv_bfloat16 g(1.5f), h(1.0f + 0x1p-7f);  // 1.5 + 1.5 * 2^-7: halfway
  CHECK(float(__hfma(g, h, __nv_bfloat16(0x1p-100f))) == 1.5f + 0x1p-6f);
  CHECK(float(__hfma(g, h, __nv_bfloat16(-0x1p-100f))) == 1.5f + 0x1p-7f);
  CHECK(float(__hfma(g, h, __nv_bfloat16(0.0f))) == 1.5f + 0x1p-6f);  // to even
  // From a double, or an int, in one step: 1 + 2^-11 is halfway for fp16.
  CHECK(float(__double2half(1 + 0x1p-11 + 0x1p-40)) == 1 + 0x1p-10f);
  CHECK(float(__double2half(1 + 0x1p-11 - 0x1p-40)) == 1.0f);
  CHECK(float(__half(1 + 0x1p-11)) == 1.0f);
  CHECK(float(__nv_bfloat16((1 << 30) + (1 << 22) + 1)) == 0x1.02p30f);
}

TEST_CASE("maxima, comparisons and signs of 16-bit floats", "[half]") {
  const __half nan(NAN), one(1.0f), two(2.0f), zero(0.0f), minus_zero(-0.0f);
  CHECK(__hmax(nan, one).bits == one.bits);
  CHECK(__hmin(one, nan).bits == one.bits);
  CHECK(__hmax(nan, nan).bits == 0x7fff);
  CHECK(__hmax_nan(one, nan).bits == 0x7fff);
  CHECK(__hmin_nan(one, two).bits == one.bits);
  CHECK(__hmax(minus_zero, zero).bits == 0x0000);
  CHECK(__hmin(zero, minus_zero).bits == 0x8000);
  CHECK(__hlt(one, two));
  CHECK_FALSE(__hne(nan, one));
  CHECK(nan != one);
  CHECK_FALSE(nan == nan);
  CHECK((-nan).bits == 0xffff);
  CHECK(__habs(minus_zero).bits == 0);
  CHECK(__hisinf(-one / zero) == -1);
  CHECK(__half2int_rn(__half(2.5f)) == 2);
  CHECK(__half2int_rz(__half(-2.75f)) == -2);
  CHECK(__half2int_rz(nan) == 0);
  CHECK(hrint(__half(3.5f)).bits == __half(4).bits);
  __half2 pair = __hfma2(make_half2(one, two), __float2half2_rn(3), __half2half2(zero));
  CHECK(__hbeq2(__hfma2_sat(pair, make_half2(0.125f, -1), __half2half2(zero)), make_half2(0.375f, 0)));
  CHECK(float(__hfma_sat(one, two, zero)) == 1);
  CHECK(float(__hfma_sat(nan, one, one)) == 0);
  CHECK(float(__float2half_rd(2049)) == 2048);
  CHECK(float(__float2half_rd(-2049)) == -2050);
  CHECK(float(__float2half_rd(65519)) == 65504);
  CHECK(__float2half_rd(-1e-30f).bits == 0x8001);
  pair += __halves2half2(two, one);
  CHECK(float(pair.x) == 5);
  CHECK(float(pair.y) == 7);
  CHECK(float(__low2half(__lowhigh2highlow(pair))) == 7);
  CHECK(__hbeq2(__hmax2(pair, make_half2(6, 6)), make_half2(6, 7)));
  CHECK(float(__hlt2(pair, make_half2(6, 6)).x) == 1);
}

TEST_CASE("the edges of fp16", "[half]") {
  CHECK(__half(65504.0f).bits == 0x7bff);
  CHECK(__half(65519.996f).bits == 0x7bff);
  CHECK(__half(65520.0f).bits == 0x7c00);
  CHECK(__half(-1e30f).bits == 0xfc00);
  CHECK(__half(0x1p-24f).bits == 0x0001);
  CHECK(__half(0x1p-25f).bits == 0x0000);
  CHECK(__half(0x1.8p-25f).bits == 0x0001);
  CHECK(__half(-0.0f).bits == 0x8000);
  CHECK(__half(std::numeric_limits<float>::quiet_NaN()).bits == 0x7fff);
}

TEST_CASE("pairs keep their order", "[half]") {
  const __half2 h = __floats2half2_rn(1.0f, -2.0f);
  CHECK(__low2float(h) == 1.0f);
  CHECK(__high2float(h) == -2.0f);
  CHECK(__half22float2(h).y == -2.0f);
  const __nv_bfloat162 b = __float22bfloat162_rn(make_float2(3.0f, 0.5f));
  CHECK(__low2float(b) == 3.0f);
  CHECK(__bfloat1622float2(b).y == 0.5f);
  uint32_t packed;
  std::memcpy(&packed, &h, 4);
  CHECK(packed == 0xc0003c00u);
}

TEST_CASE("FP8 is rounded to the nearest, and what is too large to the largest") {
  const auto code_of = [](float x) { return int(__nv_fp8_e4m3(x).__x); };
  const auto value_of = [](int code) {  // by definition
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
  };
  for (int code = 0; code < 256; ++code) {
    __nv_fp8_e4m3 x;
    x.__x = uint8_t(code);
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(float(x)));
      continue;
    }
    CHECK(same(float(x), value_of(code)));
    const __half2 pair = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(code | 0x3800), __NV_E4M3);
    CHECK((same(__low2float(pair), value_of(code)) && __high2float(pair) == 1.0f));
    CHECK(code_of(float(x)) == code);
    if ((code & 0x7f) == 0x7e) continue;
    const double next = value_of(code + 1), middle = (value_of(code) + next) / 2;
    CHECK(code_of(float(middle)) == (code % 2 == 0 ? code : code + 1));
    CHECK(code_of(float(middle + (next - middle) * 1e-3)) == code + 1);
    CHECK(code_of(float(middle - (next - middle) * 1e-3)) == code);
  }
  CHECK(code_of(449) == 0x7e);
  CHECK(code_of(-INFINITY) == 0xfe);
  CHECK(code_of(NAN) == 0x7f);

  for (int code = 0; code < 0x7c; ++code) {  // from there on there are no numbers
    const float value = float(std::bit_cast<__nv_fp8_e5m2>(uint8_t(code)));
    CHECK(value == (code < 4 ? std::ldexp(code, -16) : std::ldexp(4 + code % 4, code / 4 - 17)));
    CHECK(int(__nv_fp8_e5m2(-value).__x) == 128 + code);
  }
  CHECK(__nv_fp8x4_e4m3(make_float4(1, -2, 0.5f, 1e9f)).__x == 0x7e30c038);
  CHECK(float4(__nv_fp8x4_e5m2(make_float4(1, 2, 3, 1.1f))).w == 1);
  CHECK(float2(__nv_fp8x2_e5m2(make_float2(1.1f, -1e9f))).y == -57344);
}
