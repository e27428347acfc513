// Which element of a tile in shared memory a lane hands to ldmatrix, to load the operands of mma.sync.
// Spelled out in v07_ptx_mma; drawn in docs/fragments.md.
//
// ldmatrix_x4 loads four 8 x 8 matrices, a 16 x 16 block. A (Q, P): in the order of its registers, down, then
// right. V, loaded transposed, the same: the two left matrices are one B operand and the two right ones the
// next. K: a row of K is a column of B, so an operand's two matrices lie side by side: right, then down.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

__device__ inline int operand_row(int lane_id) { return lane_id % 16; }  // of A and V
__device__ inline int operand_col(int lane_id) { return lane_id / 16 * 8; }
__device__ inline int k_operand_row(int lane_id) { return lane_id / 16 * 8 + lane_id % 8; }
__device__ inline int k_operand_col(int lane_id) { return lane_id / 8 % 2 * 8; }

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
