// On the emulator all of CUDA's vocabulary comes from one place.
#pragma once

#include "common/cuda.h"
