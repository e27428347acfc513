// Operands for kernels that only keep a unit busy. On zeros a GPU draws less power and clocks higher than any
// real kernel would.
#pragma once

#include <cstdint>

namespace flashsteps {

// Two bf16 of +-[1, 2) with random signs and mantissas.
__device__ inline uint32_t random_pair(uint32_t seed) {
  seed = (seed ^ (seed >> 16)) * 0x7feb352du;
  seed = (seed ^ (seed >> 15)) * 0x846ca68bu;
  return ((seed ^ (seed >> 16)) & 0x807f807fu) | 0x3f803f80u;
}

// A number of +-[1, 2), likewise.
__device__ inline float random_number(uint32_t seed) {
  return __uint_as_float(random_pair(seed) & 0xffff0000u);
}

}  // namespace flashsteps
