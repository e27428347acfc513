// On the emulator: nvcuda::wmma as far as common/wmma.h has it.
#pragma once

#include "common/wmma.h"

namespace nvcuda {
namespace wmma = emulator::cuda::wmma;
}
