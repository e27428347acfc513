// Which lane holds which element of a matrix: the register layouts of ldmatrix and mma.sync, as functions.
// Source: PTX ISA, "ldmatrix", "Matrix Fragments for mma.m16n8k16 with floating point type" and "Matrix
// Fragments for mma.m16n8k32". The drawings in docs/ are made from these functions. And the arithmetic of the
// tensor cores: 16-bit products summed in FP32, and FP8 products summed in 14 bits.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

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

// mma.m16n8k32: A is 16 x 32 and B is 32 x 8, of bytes. Where the 16-bit product has an element, this one has
// two neighbours along k. C is the same.
constexpr Position mma_a_byte_position(int lane, int byte) {
  const Position pair = mma_a_position(lane, byte / 2);
  return {pair.row, pair.col * 2 + byte % 2};
}
constexpr Position mma_b_byte_position(int lane, int byte) {
  const Position pair = mma_b_position(lane, byte / 2);
  return {pair.row * 2 + byte % 2, pair.col};
}

// A number of TF32 is a float of which the hardware reads 19 bits.
inline float tf32_bits_to_float(uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000); }

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
template <int K, int COLS>
void multiply_accumulate(const float (&a)[16][K], const float (&b)[K][COLS], float (&c)[16][COLS]) {
  typedef float Four __attribute__((vector_size(16)));
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < COLS; col += 4) {
      Four sum, of_b;
      std::memcpy(&sum, &c[row][col], sizeof(Four));
      for (int k = 0; k < K; ++k) {
        std::memcpy(&of_b, &b[k][col], sizeof(Four));
        sum += a[row][k] * of_b;
      }
      std::memcpy(&c[row][col], &sum, sizeof(Four));
    }
  }
}

// A number of e4m3, of which wgmma also sees the exponent.
struct E4m3Number {
  float value;  // 0 for a NaN
  float power;  // 2^exponent, which for subnormals is that of the smallest normal number; 0 for 0
};
constexpr std::array<E4m3Number, 256> kE4m3Numbers = [] {
  std::array<E4m3Number, 256> all{};
  for (unsigned code = 0; code < 256; ++code) {
    const float value = e4m3_bits_to_float(uint8_t(code));
    const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7f800000);
    if (value == value && value != 0.0f) all[code] = {value, power < 0x1p-6f ? 0x1p-6f : power};
  }
  return all;
}();

// An FP8 operand.
template <int ROWS, int COLS>
struct E4m3Operand {
  float value[ROWS][COLS], power[ROWS][COLS];  // of E4m3Number
  bool row_has_nan[ROWS] = {}, col_has_nan[COLS] = {};

  explicit E4m3Operand(const uint8_t (&codes)[ROWS][COLS]) {
    for (int row = 0; row < ROWS; ++row) {
      for (int col = 0; col < COLS; ++col) {
        const uint8_t code = codes[row][col];
        value[row][col] = kE4m3Numbers[code].value;
        power[row][col] = kE4m3Numbers[code].power;
        if ((code & 0x7f) == 0x7f) row_has_nan[row] = col_has_nan[col] = true;
      }
    }
  }
};

// c += a b of 32 products, as wgmma computes it on Hopper, and mma.sync on sm_89. All products and c are
// summed in one fixed-point number. Its unit is 2^-13 of the largest power of two among them, where a
// product's is the product of its factors' powers; what is smaller is cut off. c then keeps 13 bits after its
// first, and the rest is cut off, too. With fp16_sums c is a number of FP16, and the sum is rounded to the
// nearest of them in place of that.
//
// Source: measurements, as NVIDIA documents nothing of this. DeepSeek-V3 (arXiv 2412.19437, 3.3.2 and 3.5.2)
// and SageAttention2 (arXiv 2411.10958) found the 13 bits, and that the rest is cut off. Here wgmma was
// measured, to the last bit, and mma.sync on no GPU that sums like this.
template <int COLS>
void multiply_accumulate(const E4m3Operand<16, 32>& a, const E4m3Operand<32, COLS>& b, float (&c)[16][COLS],
                         bool fp16_sums) {
  typedef float Floats __attribute__((vector_size(16)));
  typedef int32_t Integers __attribute__((vector_size(16)));
  typedef uint32_t Unsigned __attribute__((vector_size(16)));
  const auto load = [](const float* from) {
    Floats four;
    std::memcpy(&four, from, sizeof four);
    return four;
  };
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < COLS; col += 4) {
      const Floats before = load(&c[row][col]);
      Floats largest = Floats(Unsigned(before) & 0x7f800000);
      for (int k = 0; k < 32; ++k) {
        const Floats power = a.power[row][k] * load(&b.power[k][col]);
        largest = power > largest ? power : largest;
      }
      const Floats per_unit = Floats(((2 * 127u + 13) << 23) - Unsigned(largest));  // 2^13 / largest
      Integers units = __builtin_convertvector(before * per_unit, Integers);        // towards zero
      for (int k = 0; k < 32; ++k)
        units += __builtin_convertvector(a.value[row][k] * load(&b.value[k][col]) * per_unit, Integers);
      const Floats sum = __builtin_convertvector(units, Floats) * (largest * 0x1p-13f);
      const Floats kept = Floats(Unsigned(sum) & 0xfffffc00);
      for (int i = 0; i < 4; ++i) {
        float& element = c[row][col + i];
        if (a.row_has_nan[row] || b.col_has_nan[col + i]) element = std::numeric_limits<float>::quiet_NaN();
        if (std::isfinite(element) && largest[i] != 0.0f)
          element = fp16_sums ? half_bits_to_float(float_to_half_bits(sum[i])) : kept[i];
      }
    }
  }
}

}  // namespace emulator
