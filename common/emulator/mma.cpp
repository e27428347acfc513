#include "common/mma.h"

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
    for (int i = 0; i < 4; ++i) {
      const Position at = mma_c_position(lane, i);
      c[at.row][at.col] = arguments.acc[i];
    }
  }
  elements_to_float(a_bits, BF16, a);
  elements_to_float(b_bits, BF16, b);
  multiply_accumulate(a, b, c);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& arguments = *static_cast<const Arguments*>(opaque[lane]);
    for (int i = 0; i < 4; ++i) {
      const Position at = mma_c_position(lane, i);
      arguments.acc[i] = c[at.row][at.col];
    }
  }
  ++cta->counters.mma;
}

}  // namespace

void mma_m16n8k16(float* acc, const uint32_t* a, const uint32_t* b, bool bf16, Location at) {
  Arguments arguments{acc, a, b};
  collective(bf16 ? "mma.m16n8k16 (bf16)" : "mma.m16n8k16 (fp16)", 0xffffffff, &arguments,
             bf16 ? execute<true> : execute<false>, at);
}

}  // namespace emulator
