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
