// The arithmetic of the tensor cores: 16-bit products summed in FP32.
#pragma once

#include <cstdint>

#include "common/emulator/half.h"

namespace emulator {

inline float element_to_float(uint16_t bits, bool bf16) {
  return bf16 ? bfloat16_bits_to_float(bits) : half_bits_to_float(bits);
}

// c += a b, one k after the other. The hardware's order and its rounding within a sum are not documented:
// results differ in the last bits and are compared with a tolerance.
template <int COLS>
void multiply_accumulate(const float (&a)[16][16], const float (&b)[16][COLS], float (&c)[16][COLS]) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < COLS; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
}

}  // namespace emulator
