// The arithmetic of the tensor cores: 16-bit products summed in FP32.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/emulator/half.h"

namespace emulator {

template <int ROWS, int COLS>
void elements_to_float(const uint16_t (&bits)[ROWS][COLS], bool bf16, float (&elements)[ROWS][COLS]) {
  for (int row = 0; row < ROWS; ++row) {
    if (bf16) {
      for (int col = 0; col < COLS; ++col) elements[row][col] = bfloat16_bits_to_float(bits[row][col]);
    } else {
      for (int col = 0; col < COLS; ++col) elements[row][col] = half_bits_to_float(bits[row][col]);
    }
  }
}

// c += a b, one k after the other. The hardware's order and its rounding within a sum are not documented:
// results differ in the last bits and are compared with a tolerance.
template <int COLS>
void multiply_accumulate(const float (&a)[16][16], const float (&b)[16][COLS], float (&c)[16][COLS]) {
  typedef float Four __attribute__((vector_size(16)));
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < COLS; col += 4) {
      Four sum, of_b;
      std::memcpy(&sum, &c[row][col], sizeof(Four));
      for (int k = 0; k < 16; ++k) {
        std::memcpy(&of_b, &b[k][col], sizeof(Four));
        sum += a[row][k] * of_b;
      }
      std::memcpy(&c[row][col], &sum, sizeof(Four));
    }
  }
}

}  // namespace emulator
