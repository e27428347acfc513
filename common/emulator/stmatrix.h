// stmatrix without a GPU. Include common/stmatrix.h, which says what these do; ldmatrix.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"

namespace emulator {

void stmatrix_x4(void* row, const uint32_t* registers, bool transposed, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

[[gnu::always_inline]] inline void stmatrix_x4(void* row, const uint32_t (&registers)[4],
                                               emulator::Location at = emulator::Location::current()) {
  emulator::stmatrix_x4(row, registers, false, at);
}

[[gnu::always_inline]] inline void stmatrix_x4_trans(void* row, const uint32_t (&registers)[4],
                                                     emulator::Location at = emulator::Location::current()) {
  emulator::stmatrix_x4(row, registers, true, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
