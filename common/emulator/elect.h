// elect.sync without a GPU. Include common/elect.h, which says what it does; warp_operations.cpp is how.
#pragma once

#include "common/emulator/device.h"

namespace flashsteps {
inline namespace on_emulator {

bool elect_one(emulator::Location at = emulator::Location::current());

}  // namespace on_emulator
}  // namespace flashsteps
