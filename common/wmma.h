// WMMA, CUDA's portable interface to the tensor cores: a warp loads 16 x 16 matrices into fragments and
// multiplies them. CUDA C++ Programming Guide, "Warp matrix functions". Which lane holds which element is
// unspecified. Pointers must be 32-byte aligned, and strides a multiple of 16 bytes.
#pragma once

#include "common/cuda.h"

#ifdef __CUDACC__
#include <mma.h>
namespace flashsteps {
inline namespace on_cuda {
namespace wmma = nvcuda::wmma;
}
}  // namespace flashsteps
#else
#include "common/emulator/wmma.h"
#endif
