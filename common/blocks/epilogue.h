// From accumulators to the result: O divided by the sum of its row, and the row's log-sum-exp. Spelled out in
// v06_vectorized_loads (rows of 16 bytes), v07_ptx_mma (O), v09_direct_rescale (the sums of lanes are added
// after the loop) and v12_whole_rows (a warp finishes its own rows).
#pragma once

#include "common/blocks/accumulator.h"
#include "common/pack.h"
#include "common/stmatrix.h"
#include "common/vector_copy.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// A row that sees no key has row_sum 0: its output is zero, and its LSE log(0) = -inf. `row_max` is in units
// of log2.
__device__ inline float inverse_of(float row_sum) { return row_sum == 0.0f ? 0.0f : 1.0f / row_sum; }
__device__ inline float lse_of(float row_max, float row_sum) {
  return row_sum == 0.0f ? -INFINITY : row_max * kLn2 + logf(row_sum);
}
// lse_of with the hardware's logarithm, which is one instruction, where logf has a branch and a polynomial.
// The logarithm's error is at most 2 units in the last place, and for sums up to 2 at most 2^-22.
__device__ inline float fast_lse_of(float row_base, float row_sum) {
  return row_sum == 0.0f ? -INFINITY : (row_base + __log2f(row_sum)) * kLn2;
}
// inverse_of within 2 units in the last place, without a branch; for sums below 2^126.
__device__ inline float fast_inverse_of(float row_sum) {
  return row_sum == 0.0f ? 0.0f : __fdividef(1.0f, row_sum);
}

// Two neighbouring elements of O, rounded.
template <typename Element>
__device__ uint32_t scaled2(const float* o, float scale) {
  return pack2<Element>(o[0] * scale, o[1] * scale);
}

// Replaces each lane's row_sum by the whole row's, and stores the log-sum-exp of the warp's rows below
// seqlen_q. `query` is the query of the lane's first element, acc_s[0][0][0]; a row's P is relative to
// row_base.
template <typename Element, int M_TILES>
__device__ void finish_rows(const AttentionParams<Element>& params, int batch, int head, int query,
                            int lane_id, const float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = query + m * kAccumulatorRows + r * 8;
      row_sum[m][r] = quad_reduce_sum(row_sum[m][r]);
      if (lane_id % 4 == 0 && row < params.seqlen_q)
        params.store_lse(batch, head, row, fast_lse_of(row_base[m][r], row_sum[m][r]));
    }
  }
}

// Rounds a warp's acc_o / row_sum and stores it in a SwizzledTile in shared memory. row_sum[m][r] is the
// whole row's; `offset` is the place of the lane's first element, acc_o[0][0][0], in the tile.
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
        *reinterpret_cast<uint32_t*>(tile.at(offset, m * kAccumulatorRows + r * 8, n * kAccumulatorCols)) =
            scaled2<typename Tile::Element>(&acc_o[m][n][r * 2], scale);
      }
    }
  }
}

// The same with stmatrix, spelled out in v19_stmatrix. `offset` is the place of the row whose address this
// lane passes, offset_of(operand_row(lane_id), operand_col(lane_id)), as for ldmatrix.
template <typename Tile, int M_TILES, int N_TILES>
__device__ void stmatrix_normalised(Tile& tile, int offset, const float (&acc_o)[M_TILES][N_TILES][4],
                                    const float (&row_sum)[M_TILES][2]) {
  using Element = typename Tile::Element;
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
    const float top = fast_inverse_of(row_sum[m][0]), bottom = fast_inverse_of(row_sum[m][1]);
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
      const float *left = acc_o[m][n], *right = acc_o[m][n + 1];
      stmatrix_x4(tile.at(offset, m * kAccumulatorRows, n * kAccumulatorCols),
                  {scaled2<Element>(left, top), scaled2<Element>(left + 2, bottom),
                   scaled2<Element>(right, top), scaled2<Element>(right + 2, bottom)});
    }
  }
}

// Copies rows first_row .. first_row + num_rows - 1 of a SwizzledTile to global memory, the first of them to
// `to`. `num_threads` threads call it, each with its number; each moves 16 bytes at a time.
template <typename Tile>
__device__ void store_rows(Tile& tile, int first_row, int num_rows, typename Tile::Element* to,
                           int64_t row_stride, int thread, int num_threads) {
  constexpr int CHUNK = 16 / sizeof(typename Tile::Element);  // elements
  constexpr int CHUNKS = Tile::COLS / CHUNK;                  // of a row
  for (int i = thread; i < num_rows * CHUNKS; i += num_threads) {
    const int row = i / CHUNKS;
    const int d = i % CHUNKS * CHUNK;
    store_16_bytes(&to[row * row_stride + d],
                   load_16_bytes(tile.at(Tile::offset_of(first_row + row, d), 0, 0)));
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
