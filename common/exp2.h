// exp2 as the hardware computes it. PTX ISA, "ex2": relative error at most 2^-22; with .ftz subnormal inputs
// and results become 0. exp2f() adds a comparison and two multiplications around the same instruction, so
// that results below 2^-126 come out right: softmax has no use for them. Of two FP16 (sm_75): relative error
// at most 2^-9.9, and results below 2^-14 are rounded to multiples of 2^-24.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ __half2 exp2_approx(__half2 x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  asm("ex2.approx.f16x2 %0, %0;" : "+r"(bits));
  memcpy(&x, &bits, sizeof(bits));
  return x;
}
#else
inline float exp2_approx(float x, Location at = Location::current()) {
  const float y = emulator::exp2_in_kernel(x, at);
  return y < 0x1p-126f ? 0.0f : y;
}
inline __half2 exp2_approx(__half2 x, Location at = Location::current()) {
  return {emulator::exp2_in_kernel(x.x, at), emulator::exp2_in_kernel(x.y, at)};
}
#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
