// ldmatrix without a GPU. Include common/ldmatrix.h, which says what these do; ldmatrix.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"

namespace flashsteps {
inline namespace on_emulator {

void ldmatrix_x4(uint32_t (&registers)[4], const void* row,
                 emulator::Location at = emulator::Location::current());
void ldmatrix_x4_trans(uint32_t (&registers)[4], const void* row,
                       emulator::Location at = emulator::Location::current());

}  // namespace on_emulator
}  // namespace flashsteps
