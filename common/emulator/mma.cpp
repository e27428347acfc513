#include "common/mma.h"

#include <bit>
#include <cstring>

#include "common/emulator/core.h"
#include "common/emulator/fragments.h"

namespace emulator {
namespace {

struct Arguments {
  float* acc;
  const uint32_t* a;
  const uint32_t* b;
};

// Element i of a fragment of 16-bit elements, two per register, the lower half first.
uint16_t element(const uint32_t* registers, int i) { return uint16_t(registers[i / 2] >> (16 * (i % 2))); }

// C, which every product has in the same places.
void collect_accumulators(void* const* opaque, float (&c)[16][8]) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Position at = mma_c_position(lane, i);
      c[at.row][at.col] = static_cast<const Arguments*>(opaque[lane])->acc[i];
    }
  }
}
void return_accumulators(void* const* opaque, const float (&c)[16][8]) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Position at = mma_c_position(lane, i);
      static_cast<const Arguments*>(opaque[lane])->acc[i] = c[at.row][at.col];
    }
  }
}

template <bool BF16>
void execute(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  uint16_t a_bits[16][16], b_bits[16][8];
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& arguments = *static_cast<const Arguments*>(opaque[lane]);
    for (int i = 0; i < 8; i += 2) {
      const Position at = mma_a_position(lane, i);  // i + 1 is its neighbour
      std::memcpy(&a_bits[at.row][at.col], &arguments.a[i / 2], sizeof(uint32_t));
    }
    for (int i = 0; i < 4; ++i) {
      const Position at = mma_b_position(lane, i);
      b_bits[at.row][at.col] = element(arguments.b, i);
    }
  }
  elements_to_float(a_bits, BF16, a);
  elements_to_float(b_bits, BF16, b);
  collect_accumulators(opaque, c);
  multiply_accumulate(a, b, c);
  return_accumulators(opaque, c);
  ++cta->counters.mma;
}

// For sm_90 ptxas converts the operands to FP16 and makes two products of 16 of them, whose sums are in FP32.
// On sm_89 the tensor cores sum like wgmma, in 14 bits. A kernel must be right with both, so it gets the
// less exact one here.
void execute_e4m3(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  uint8_t a[16][32], b[32][8];
  float c[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& arguments = *static_cast<const Arguments*>(opaque[lane]);
    for (int i = 0; i < 16; i += 4) {
      const Position at = mma_a_byte_position(lane, i);  // the next three are its neighbours
      std::memcpy(&a[at.row][at.col], &arguments.a[i / 4], sizeof(uint32_t));
    }
    for (int i = 0; i < 8; ++i) {
      const Position at = mma_b_byte_position(lane, i);
      b[at.row][at.col] = uint8_t(arguments.b[i / 4] >> (8 * (i % 4)));
    }
  }
  collect_accumulators(opaque, c);
  multiply_accumulate(E4m3Operand(a), E4m3Operand(b), c, /*fp16_sums=*/false);
  return_accumulators(opaque, c);
  cta->counters.mma += 2;  // it has the FLOPs of two, and sm_90 executes two
}

// ---- For inline PTX

// Of TF32, A is 16 x 8: where the 16-bit product has a pair, this one has an element.
void execute_tf32(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  float a[16][8], b[8][8], c[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& arguments = *static_cast<const Arguments*>(opaque[lane]);
    const int row = lane / 4, k = lane % 4;
    for (int i = 0; i < 4; ++i) a[row + i % 2 * 8][k + i / 2 * 4] = tf32_bits_to_float(arguments.a[i]);
    for (int i = 0; i < 2; ++i) b[k + i * 4][row] = tf32_bits_to_float(arguments.b[i]);
  }
  collect_accumulators(opaque, c);
  multiply_accumulate(a, b, c);
  return_accumulators(opaque, c);
  ++cta->counters.mma;
}

struct IntegerArguments {
  int32_t* acc;
  const uint32_t* a;
  const uint32_t* b;
  bool a_is_signed, b_is_signed;
};

// Sums wrap around.
void execute_integers(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  const auto value = [](const uint32_t* registers, int i, bool is_signed) {
    const auto byte = uint8_t(registers[i / 4] >> (8 * (i % 4)));
    return is_signed ? int(int8_t(byte)) : int(byte);
  };
  int a[16][32], b[32][8], c[16][8] = {};
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& its = *static_cast<const IntegerArguments*>(opaque[lane]);
    for (int i = 0; i < 16; ++i) {
      const Position at = mma_a_byte_position(lane, i);
      a[at.row][at.col] = value(its.a, i, its.a_is_signed);
    }
    for (int i = 0; i < 8; ++i) {
      const Position at = mma_b_byte_position(lane, i);
      b[at.row][at.col] = value(its.b, i, its.b_is_signed);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 32; ++k) {
      for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const Position at = mma_c_position(lane, i);
      int32_t& acc = static_cast<const IntegerArguments*>(opaque[lane])->acc[i];
      acc = int32_t(uint32_t(acc) + uint32_t(c[at.row][at.col]));
    }
  }
  cta->counters.mma += 2;
}

}  // namespace

void mma_m16n8k8_tf32(float* acc, const uint32_t* a, const uint32_t* b, Location at) {
  Arguments arguments{acc, a, b};
  collective("mma.m16n8k8 (tf32)", 0xffffffff, &arguments, execute_tf32, at);
}

void mma_m16n8k32_integers(int32_t* acc, const uint32_t* a, const uint32_t* b, bool a_is_signed,
                           bool b_is_signed, Location at) {
  IntegerArguments arguments{acc, a, b, a_is_signed, b_is_signed};
  collective("mma.m16n8k32 (integers)", 0xffffffff, &arguments, execute_integers, at);
}

void mma_m16n8k16(float* acc, const uint32_t* a, const uint32_t* b, bool bf16, Location at) {
  Arguments arguments{acc, a, b};
  collective(bf16 ? "mma.m16n8k16 (bf16)" : "mma.m16n8k16 (fp16)", 0xffffffff, &arguments,
             bf16 ? execute<true> : execute<false>, at);
}

void mma_m16n8k32_e4m3(float* acc, const uint32_t* a, const uint32_t* b, Location at) {
  Arguments arguments{acc, a, b};
  collective("mma.m16n8k32 (e4m3)", 0xffffffff, &arguments, execute_e4m3, at);
}

}  // namespace emulator
