// Element types on the host, as bit patterns. Round to nearest even, as the hardware converts.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/call.h"

namespace flashsteps {

inline float half_to_float(uint16_t h) {
  // Shift exponent and mantissa into place and let a multiply repair the exponent bias: subnormals come out
  // right.
  const float magnitude = std::bit_cast<float>(uint32_t(h & 0x7fff) << 13) * 0x1p112f;
  const uint32_t infinity_or_nan = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | infinity_or_nan |
                              uint32_t(h & 0x8000) << 16);
}

inline uint16_t float_to_half(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7fff;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 rounds at the last bit that fp16 keeps
    return sign | uint16_t(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000);
  }
  const uint32_t rounding = 0xfff + ((magnitude >> 13) & 1);
  return sign | uint16_t((magnitude + rounding - 0x38000000) >> 13);
}

inline float bfloat16_to_float(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

inline uint16_t float_to_bfloat16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float kLargestE4m3 = 448;

// There is no Inf, and both codes whose other bits are all set are NaN.
inline float e4m3_to_float(uint8_t code) {
  const bool is_nan = (code & 0x7f) == 0x7f;
  const float magnitude = is_nan ? NAN : std::bit_cast<float>(uint32_t(code & 0x7f) << 20) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | uint32_t(code & 0x80) << 24);
}

// What is too large becomes the largest number.
inline uint8_t float_to_e4m3(float f) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  const float magnitude = std::abs(f);
  if (std::isnan(f)) return 0x7f;
  if (magnitude >= kLargestE4m3) return sign | 0x7e;
  // The last bit that e4m3 keeps is 2^-9 up to 2^-5, and 2^-3 of the power of two below the magnitude.
  const int step = magnitude < 0x1p-5f ? -9 : std::ilogb(magnitude) - 3;
  const int units = int(std::nearbyint(std::ldexp(magnitude, -step)));  // at most 16, which carries
  return uint8_t(sign | ((step + 9) * 8 + units));
}

inline float load_element(DType dtype, const void* at) {
  if (dtype == DType::kFp32) {
    float f;
    std::memcpy(&f, at, 4);
    return f;
  }
  if (dtype == DType::kE4m3) return e4m3_to_float(*static_cast<const uint8_t*>(at));
  uint16_t h;
  std::memcpy(&h, at, 2);
  return dtype == DType::kFp16 ? half_to_float(h) : bfloat16_to_float(h);
}

inline void load_elements(DType dtype, const void* from, int count, float* to) {
  const size_t bytes = element_bytes(dtype);
  for (int i = 0; i < count; ++i) to[i] = load_element(dtype, static_cast<const char*>(from) + i * bytes);
}

inline void store_element(DType dtype, void* at, float value) {
  if (dtype == DType::kFp32) {
    std::memcpy(at, &value, 4);
    return;
  }
  if (dtype == DType::kE4m3) {
    *static_cast<uint8_t*>(at) = float_to_e4m3(value);
    return;
  }
  const uint16_t h = dtype == DType::kFp16 ? float_to_half(value) : float_to_bfloat16(value);
  std::memcpy(at, &h, 2);
}

inline float rounded(DType dtype, float value) {
  unsigned char bits[4];
  store_element(dtype, bits, value);
  return load_element(dtype, bits);
}

}  // namespace flashsteps
