// The accumulators of mma.sync.m16n8k16, as a warp holds them: float acc[M_TILES][N_TILES][4], tiles of 16
// rows and 8 columns. Spelled out in v07_ptx_mma and v08_register_softmax; drawn in docs/fragments.md.
//
// A lane has the elements (row, col), (row, col + 1), (row + 8, col), (row + 8, col + 1) of every tile, with
// row = accumulator_row(lane_id) and col = accumulator_col(lane_id). The four lanes of a quad share their
// rows.
#pragma once

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

constexpr int kAccumulatorRows = 16;  // of a tile
constexpr int kAccumulatorCols = 8;

__device__ inline int accumulator_row(int lane_id) { return lane_id / 4; }
__device__ inline int accumulator_col(int lane_id) { return lane_id % 4 * 2; }

// The same registers, in the order of wgmma's accumulator.
template <int N_TILES>
__device__ float (&wgmma_accumulator(float (&acc)[1][N_TILES][4]))[N_TILES * 4] {
  return *reinterpret_cast<float(*)[N_TILES * 4]>(&acc);
}

// Reductions over the four lanes that share a row; all four get the result. All lanes of a warp call them.
__device__ inline float quad_reduce_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float quad_reduce_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The largest of a lane's scores in row `r` (0: row, 1: row + 8) of a line of tiles, -inf if all are masked.
template <int N_TILES>
__device__ float lane_max(const float (&acc_s)[N_TILES][4], int r) {
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < 2 * N_TILES; ++i) max = fmaxf(max, acc_s[i / 2][r * 2 + i % 2]);
  return max;
}

// Scores of keys that a query does not see become -inf. `query` and `key` are those of the lane's first
// element, acc_s[0][0][0].
template <bool CAUSAL, typename Element, int M_TILES, int N_TILES>
__device__ void mask_scores(float (&acc_s)[M_TILES][N_TILES][4], const AttentionParams<Element>& params,
                            int kv_len, int query, int key) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = query + m * kAccumulatorRows + r * 8;
      const int visible = params.template visible_keys<CAUSAL>(row, kv_len) - key;
#pragma unroll
      for (int i = 0; i < 2 * N_TILES; ++i) {
        if (i / 2 * kAccumulatorCols + i % 2 >= visible) acc_s[m][i / 2][r * 2 + i % 2] = -INFINITY;
      }
    }
  }
}

// Scores of the tile's first `num_keys` keys, which the previous tile has already processed, become -inf.
// `acc_col` is the column of the lane's first element. Spelled out in v16_producer_warpgroup.
template <int M_TILES, int N_TILES>
__device__ void mask_first_keys(float (&acc_s)[M_TILES][N_TILES][4], int num_keys, int acc_col) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int i = 0; i < N_TILES * 4; ++i) {
      if (acc_col + i / 4 * kAccumulatorCols + i % 2 < num_keys) acc_s[m][i / 4][i % 4] = -INFINITY;
    }
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
