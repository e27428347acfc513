// ldmatrix without a GPU. Include common/ldmatrix.h, which says what these do; ldmatrix.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"

namespace emulator {

void ldmatrix_x4(uint32_t* registers, const void* row, bool transposed, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

[[gnu::always_inline]] inline void ldmatrix_x4(uint32_t (&registers)[4], const void* row,
                                               emulator::Location at = emulator::Location::current()) {
  emulator::ldmatrix_x4(registers, row, false, at);
}

[[gnu::always_inline]] inline void ldmatrix_x4_trans(uint32_t (&registers)[4], const void* row,
                                                     emulator::Location at = emulator::Location::current()) {
  emulator::ldmatrix_x4(registers, row, true, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
