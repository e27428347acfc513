// 16-bit conversions on the host, against arithmetic in double.
#include <cmath>
#include <limits>

#include "harness/base/element.h"
#include "harness/base/random.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

namespace {

// Value of a 16-bit float with the given number of exponent and mantissa bits, from its definition.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? NAN : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void check_all(float (*widen)(uint16_t), uint16_t (*narrow)(float), int exponent_bits, int mantissa_bits) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = value_of(uint16_t(bits), exponent_bits, mantissa_bits);
    const float wide = widen(uint16_t(bits));
    if (std::isnan(expected)) {
      wrong += !std::isnan(wide) || !std::isnan(widen(narrow(wide)));
    } else {
      wrong += double(wide) != expected || narrow(wide) != bits;
    }
  }
  CHECK(wrong == 0);
  // Rounding: the nearest representable value, ties to even.
  int misrounded = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    const uint16_t low =
        uint16_t(random_bits(1, 2, i) % ((1u << (exponent_bits + mantissa_bits)) - (2u << mantissa_bits)));
    const double a = value_of(low, exponent_bits, mantissa_bits),
                 b = value_of(low + 1, exponent_bits, mantissa_bits);
    const double fraction = i % 3 == 0 ? 0.5 : double(random_bits(1, 3, i) >> 11) * 0x1p-53;
    const float between = float(a + (b - a) * fraction);
    const double below = between - a, above = b - between;
    const uint16_t nearest = below < above || (below == above && low % 2 == 0) ? low : low + 1;
    misrounded += narrow(between) != nearest || narrow(-between) != (nearest | 0x8000);
  }
  CHECK(misrounded == 0);
}

}  // namespace

TEST_CASE("fp16 and bf16 convert exactly one way and round to nearest even the other") {
  check_all(half_to_float, float_to_half, 5, 10);
  check_all(bfloat16_to_float, float_to_bfloat16, 8, 7);
}

TEST_CASE("out of range becomes infinity") {
  CHECK(float_to_half(65519.0f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(-1e30f) == 0xfc00);
  CHECK(float_to_bfloat16(3.4e38f) == 0x7f80);
  CHECK(float_to_half(1e-9f) == 0);
}
