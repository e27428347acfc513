// Which lane holds which element of a matrix: the register layouts of ldmatrix and mma.sync, as functions.
// Source: PTX ISA, "ldmatrix" and "Matrix Fragments for mma.m16n8k16 with floating point type". The drawings
// in docs/ are made from these functions. And the arithmetic of the tensor cores: 16-bit products summed in
// FP32.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/emulator/half.h"

namespace emulator {

struct Position {
  int row, col;
};

// ldmatrix: of each 8 x 8 matrix of 16-bit elements a lane receives one register, two neighbours in a row.
// With .trans it receives what this lane would hold of the transposed matrix.
constexpr Position ldmatrix_position(int lane, int element, bool transposed) {
  const int row = lane / 4;
  const int col = lane % 4 * 2 + element;
  return transposed ? Position{col, row} : Position{row, col};
}

// mma.m16n8k16: C += A B. A quad of lanes holds a row; the lanes of a quad hold two neighbouring columns
// each. A is 16 x 16 (rows x k): 8 elements a lane, two per register. Register r is an 8 x 8 block: rows 0-7
// or 8-15 (r % 2), k 0-7 or 8-15 (r / 2).
constexpr Position mma_a_position(int lane, int element) {
  const int block = element / 2;
  return {lane / 4 + block % 2 * 8, lane % 4 * 2 + element % 2 + block / 2 * 8};
}
// B is 16 x 8 (k x columns): 4 elements a lane. A quad holds a column; register r is k 0-7 or 8-15.
constexpr Position mma_b_position(int lane, int element) {
  return {lane % 4 * 2 + element % 2 + element / 2 * 8, lane / 4};
}
// C is 16 x 8, FP32: 4 elements a lane, two in row lane / 4 and two in the row 8 below.
constexpr Position mma_c_position(int lane, int element) {
  return {lane / 4 + element / 2 * 8, lane % 4 * 2 + element % 2};
}

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
