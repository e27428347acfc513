// Which element of a tile in shared memory a lane passes to ldmatrix, to load the operands of mma.sync.
// Spelled out in v07_ptx_mma; drawn in docs/fragments.md.
//
// ldmatrix_x4 loads four 8 x 8 matrices, a 16 x 16 block. A (Q, P): in the order of its registers, first
// down, then right. V, loaded transposed, in the same order: the two left matrices are one B operand and the
// two right ones the next. K: a row of K is a column of B, so the two matrices of an operand lie side by
// side: first right, then down.
#pragma once

#include "common/cuda.h"
#include "common/ldmatrix.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

__device__ inline int operand_row(int lane_id) { return lane_id % 16; }  // of A and V
__device__ inline int operand_col(int lane_id) { return lane_id / 16 * 8; }
__device__ inline int k_operand_row(int lane_id) { return lane_id / 16 * 8 + lane_id % 8; }
__device__ inline int k_operand_col(int lane_id) { return lane_id / 8 % 2 * 8; }

// Loads all A operands of a warp's rows of Q. `offset` is the place in the tile of the first row that this
// lane passes to ldmatrix: Tile::offset_of(operand_row(lane_id), operand_col(lane_id)).
template <typename Tile, int K_STEPS, int M_TILES>
__device__ void load_q(uint32_t (&frag_q)[K_STEPS][M_TILES][4], Tile& tile, int offset) {
#pragma unroll
  for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(frag_q[step][m], tile.at(offset, m * 16, step * 16));
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
