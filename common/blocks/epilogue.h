// From accumulators to the result: O divided by the sum of its row, and the row's log-sum-exp. Spelled out in
// v07_ptx_mma (O) and v09_direct_rescale (the sums of lanes are added up in the end).
#pragma once

#include "common/blocks/accumulator.h"
#include "common/pack.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// A row that sees no key has row_sum 0: its output is zero, and its LSE log(0) = -inf. `row_max` is in units
// of log2.
__device__ inline float inverse_of(float row_sum) { return row_sum == 0.0f ? 0.0f : 1.0f / row_sum; }
__device__ inline float lse_of(float row_max, float row_sum) {
  return row_sum == 0.0f ? -INFINITY : row_max * kLn2 + logf(row_sum);
}

// Rounds a warp's acc_o / row_sum and puts it into a tile in shared memory, a SwizzledTile. row_sum[m][r] is
// the whole row's; `offset` is where the tile has the lane's first element, acc_o[0][0][0].
template <typename Tile, int M_TILES, int N_TILES>
__device__ void store_normalised(Tile& tile, int offset, const float (&acc_o)[M_TILES][N_TILES][4],
                                 const float (&row_sum)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = inverse_of(row_sum[m][r]);
#pragma unroll
      for (int n = 0; n < N_TILES; ++n) {
        const float* const o = &acc_o[m][n][r * 2];
        *reinterpret_cast<uint32_t*>(tile.at(offset, m * kAccumulatorRows + r * 8, n * kAccumulatorCols)) =
            pack2<typename Tile::Element>(o[0] * scale, o[1] * scale);
      }
    }
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
