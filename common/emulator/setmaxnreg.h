// setmaxnreg without a GPU, where registers are no matter: only accounts are kept. Include
// common/setmaxnreg.h, which says what it does; setmaxnreg.cpp is how.
#pragma once

#include "common/emulator/device.h"

namespace emulator {

void set_max_registers(bool increase, int registers, int at_launch, Location at);

}  // namespace emulator
