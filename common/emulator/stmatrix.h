// stmatrix without a GPU. Include common/stmatrix.h, which says what these do; ldmatrix.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"

namespace flashsteps {
inline namespace on_emulator {

void stmatrix_x4(void* row, const uint32_t (&registers)[4],
                 emulator::Location at = emulator::Location::current());
void stmatrix_x4_trans(void* row, const uint32_t (&registers)[4],
                       emulator::Location at = emulator::Location::current());

}  // namespace on_emulator
}  // namespace flashsteps
