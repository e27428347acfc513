// On the emulator: the constants of CUDA's math_constants.h that kernels name most.
#pragma once

#include "common/cuda.h"

#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_PI_F 3.141592654f
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.693147181f
#define CUDART_SQRT_TWO_F 1.414213562f
