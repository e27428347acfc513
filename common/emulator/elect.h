// elect.sync without a GPU. Include common/elect.h, which says what it does; warp_operations.cpp is how.
#pragma once

#include "common/emulator/device.h"

namespace emulator {

bool elect_one(Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

inline bool elect_one(emulator::Location at = emulator::Location::current()) {
  return emulator::elect_one(at);
}

}  // namespace on_emulator
}  // namespace flashsteps
