// mma.sync: acc += A B on the tensor cores, FP32 accumulator. Called by all 32 lanes of a warp.
//
// m16n8k16, 16-bit operands. PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type". sm_80 and
// newer. A is 16 x 16, B is 16 x 8, acc is 16 x 8. With r = lane / 4 and c = 2 (lane % 4), a lane holds
//   a[0] = A[r][c, c+1]   a[1] = A[r+8][c, c+1]   a[2] = A[r][c+8, c+9]   a[3] = A[r+8][c+8, c+9]
//   b[0] = B[c, c+1][r]   b[1] = B[c+8, c+9][r]
//   acc[0], acc[1] = acc[r][c, c+1]               acc[2], acc[3] = acc[r+8][c, c+1]
// the first element of a pair in the lower half of the register. docs/fragments.md draws it.
//
// m16n8k32, FP8 operands (e4m3). PTX ISA, "Matrix fragments for mma.m16n8k32". sm_89 and newer. A is 16 x 32,
// B is 32 x 8. With d = 4 (lane % 4), a lane holds
//   a[0] = A[r][d .. d+3]         a[1] = A[r+8][d .. d+3]
//   a[2] = A[r][d+16 .. d+19]     a[3] = A[r+8][d+16 .. d+19]
//   b[0] = B[d .. d+3][r]         b[1] = B[d+16 .. d+19][r]
// the first element in the lowest byte, and acc as above. The sum is not the same on all GPUs. For sm_90
// ptxas makes conversions to FP16 and two m16n8k16 of it, which sum in FP32. For sm_89 and sm_120 it makes
// one instruction, QMMA. On sm_89 that shifts all products and acc to the largest exponent among them, and
// keeps 13 bits behind its leading one (SageAttention2, arXiv 2411.10958); for sm_120 we know no
// measurement. The emulator sums in these 14 bits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Element is __half or __nv_bfloat16.
template <typename Element>
__device__ __forceinline__ void mma_m16n8k16(float (&acc)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<Element, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

__device__ __forceinline__ void mma_m16n8k32_e4m3(float (&acc)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else  // see common/emulator/mma.cpp

template <typename Element>
[[gnu::always_inline]] inline void mma_m16n8k16(float (&acc)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2], Location at = Location::current()) {
  static_assert(std::is_same_v<Element, __half> || std::is_same_v<Element, __nv_bfloat16>);
  emulator::mma_m16n8k16(acc, a, b, std::is_same_v<Element, __nv_bfloat16>, at);
}

[[gnu::always_inline]] inline void mma_m16n8k32_e4m3(float (&acc)[4], const uint32_t (&a)[4],
                                                     const uint32_t (&b)[2],
                                                     Location at = Location::current()) {
  emulator::mma_m16n8k32_e4m3(acc, a, b, at);
}

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
