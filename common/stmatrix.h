// stmatrix: four 8 x 8 matrices of 16-bit elements from registers into shared memory, the reverse of
// ldmatrix. What an accumulator of mma.sync holds, packed to 16 bits, becomes rows. PTX ISA, "Warp-level
// matrix instructions: stmatrix". sm_90 and newer.
//
// Called by all 32 lanes of a warp. Lane 8 m + r passes the address of row r of matrix m: 8 elements, 16
// bytes, 16-byte aligned. registers[m] of lane l goes to elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of
// matrix m, the lower half to the first one; with _trans, of the transposed matrix. Other lanes see the rows
// after a __syncwarp; TMA also needs a fence_proxy_async.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

__device__ __forceinline__ void stmatrix_x4(void* row, const uint32_t (&registers)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(row))), "r"(registers[0]), "r"(registers[1]),
                 "r"(registers[2]), "r"(registers[3])
               : "memory");
}

__device__ __forceinline__ void stmatrix_x4_trans(void* row, const uint32_t (&registers)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(row))), "r"(registers[0]), "r"(registers[1]),
                 "r"(registers[2]), "r"(registers[3])
               : "memory");
}

#else  // see common/emulator/ldmatrix.cpp

void stmatrix_x4(void* row, const uint32_t (&registers)[4], Location at = Location::current());
void stmatrix_x4_trans(void* row, const uint32_t (&registers)[4], Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
