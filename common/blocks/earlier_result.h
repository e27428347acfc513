// Merging a tile of queries with an earlier result over other keys, in FP32: AttentionCall::earlier. For
// steps/v25_clean_loop/variants.md#merging, which several GPUs use (docs/several_gpus.md).
#pragma once

#include "common/blocks/epilogue.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// finish_rows, which also merges the log-sum-exps of the two results and stores them in place of the earlier
// ones. Afterwards acc_o / row_sum is this call's weighted share of the result, and `kept` the weight of the
// earlier one.
template <typename Element, int M_TILES>
__device__ void merge_rows(const AttentionParams<Element>& params, int batch, int head, int query,
                           int lane_id, const float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2],
                           float (&kept)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = query + m * kAccumulatorRows + r * 8;
      float* const lse = params.earlier.lse + params.earlier_row(batch, head, row);
      const float before = row < params.seqlen_q ? *lse : -INFINITY;
      row_sum[m][r] = quad_reduce_sum(row_sum[m][r]);  // now all lanes of the row have read
      const float now = fast_lse_of(row_base[m][r], row_sum[m][r]);
      kept[m][r] = before == -INFINITY ? 0.0f : 1.0f;
      if (now == -INFINITY) continue;  // no key: -inf - -inf would be NaN, and the share of sum 0 is 0
      const float weight = 1.0f / (1.0f + expf(before - now));
      kept[m][r] = 1.0f - weight;
      row_sum[m][r] = weight == 0.0f ? 0.0f : row_sum[m][r] / weight;
      if (lane_id % 4 == 0 && row < params.seqlen_q)
        *lse = fmaxf(before, now) + log1pf(expf(-fabsf(before - now)));
    }
  }
}

// Adds the earlier result times `kept` to acc_o / row_sum, and stores the sum in place of the earlier result.
// Afterwards acc_o is that sum, and row_sum is 1. `query` and `col` are those of the lane's first element.
template <typename Element, int M_TILES, int N_TILES>
__device__ void merge_o(const AttentionParams<Element>& params, int batch, int head, int query, int col,
                        float (&acc_o)[M_TILES][N_TILES][4], float (&row_sum)[M_TILES][2],
                        const float (&kept)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = query + m * kAccumulatorRows + r * 8;
      const float scale = fast_inverse_of(row_sum[m][r]);
      row_sum[m][r] = 1.0f;
      if (row >= params.seqlen_q) continue;
      constexpr int HEAD_DIM = N_TILES * kAccumulatorCols;
      const int64_t first = params.earlier_row(batch, head, row) * HEAD_DIM + col;
      float2* const earlier = reinterpret_cast<float2*>(params.earlier.o + first);
#pragma unroll
      for (int n = 0; n < N_TILES; ++n) {
        float2& both = earlier[n * kAccumulatorCols / 2];
        float* const o = &acc_o[m][n][r * 2];
        const float2 before = kept[m][r] == 0.0f ? float2{} : both;
        o[0] = fmaf(before.x, kept[m][r], o[0] * scale);
        o[1] = fmaf(before.y, kept[m][r], o[1] * scale);
        both = {o[0], o[1]};
      }
    }
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
