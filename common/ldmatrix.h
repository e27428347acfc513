// ldmatrix: four 8 x 8 matrices of 16-bit elements from shared memory into registers, laid out as the
// operands of mma.sync. PTX ISA, "Warp-level matrix instructions: ldmatrix". sm_75 and newer.
//
// Called by all 32 lanes of a warp. Lane 8 m + r passes the address of row r of matrix m: 8 elements, 16
// bytes, 16-byte aligned. registers[m] then holds, in lane l, elements 2 (l % 4) and 2 (l % 4) + 1 of row l /
// 4 of matrix m, the first one in the lower half; with _trans, of the transposed matrix. docs/fragments.md
// draws it.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");  // must stay after the barrier that makes the rows complete
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
}

#else  // see common/emulator/ldmatrix.cpp

void ldmatrix_x4(uint32_t (&registers)[4], const void* row, Location at = Location::current());
void ldmatrix_x4_trans(uint32_t (&registers)[4], const void* row, Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
