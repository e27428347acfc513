// The CUDA vocabulary: the real one under nvcc, the emulator's otherwise. No translation unit sees both.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#define FLASHSTEPS_BACKEND on_cuda
#else
#include "common/emulator/cuda.h"
#define FLASHSTEPS_BACKEND on_emulator
#endif

// Everything in common/ that a kernel calls lives in `flashsteps::FLASHSTEPS_BACKEND` (an inline namespace),
// so that the linker can never merge the two backends' versions of an inline function.
namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

template <typename Integer>
__host__ __device__ constexpr Integer ceil_div(Integer a, Integer b) {
  return (a + b - 1) / b;
}

constexpr float kLog2e = 1.4426950408889634f;  // exp(x) = exp2(x * kLog2e): the hardware has exp2 only
constexpr float kLn2 = 0.6931471805599453f;

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
