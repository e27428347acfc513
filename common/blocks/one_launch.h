// Merges the parts of a row in the launch that makes them: first those of a CTA's warps, in shared memory,
// then those of all CTAs that share the row, in the CTA that finishes last. Spelled out in v30_one_launch.
#pragma once

#include <cfloat>

#include "common/blocks/epilogue.h"
#include "common/blocks/packed_heads.h"
#include "common/blocks/split_keys.h"
#include "common/exp2.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

constexpr int kMergedAtOnce = 8;  // parts of a row that are loaded at a time

// A lane's columns of a row of O, not yet divided by the sum of P, and the base of P, in units of log2, and
// its sum. At first the row has seen no key: a base of -FLT_MAX gives it the weight 0, where -INFINITY would
// give NaN.
template <int COLS>
struct RowPart {
  struct alignas(COLS * sizeof(float)) Columns {
    float o[COLS];
  };
  Softmax softmax = {-FLT_MAX, 0.0f};
  Columns columns = {};

  // Adds parts of the same row over other keys, always in the same order, so that every run rounds the same
  // way.
  template <int N>
  __device__ void add(const RowPart (&parts)[N]) {
    float base = softmax.base;
#pragma unroll
    for (const RowPart& part : parts) base = fmaxf(base, part.softmax.base);
    const float kept = exp2_approx(softmax.base - base);
    softmax = {base, softmax.sum * kept};
#pragma unroll
    for (float& o : columns.o) o *= kept;
#pragma unroll
    for (const RowPart& part : parts) {
      const float weight = exp2_approx(part.softmax.base - base);
      softmax.sum += part.softmax.sum * weight;
#pragma unroll
      for (int c = 0; c < COLS; ++c) columns.o[c] += part.columns.o[c] * weight;
    }
  }
};

// What the warps of a CTA pass to each other in shared memory.
template <int NUM_WARPS, int BLOCK_M, int HEAD_DIM>
struct WarpParts {
  static constexpr int PAD = 8;  // floats: the rows that a warp writes at a time then lie in different banks
  float o[NUM_WARPS][BLOCK_M][HEAD_DIM + PAD];
  Softmax softmax[NUM_WARPS][BLOCK_M];
  bool is_last;  // is this the last one of the CTAs that share these rows?

  // Stores the warp's accumulators of its rows; row_sum is the sum of this lane's columns only.
  __device__ void store(int warp_id, int lane_id, const float (&acc_o)[HEAD_DIM / 8][4],
                        const float (&row_base)[2], const float (&row_sum)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = accumulator_row(lane_id) + r * 8;
      const float sum = quad_reduce_sum(row_sum[r]);
      if (lane_id % 4 == 0) softmax[warp_id][row] = {row_base[r], sum};
#pragma unroll
      for (int n = 0; n < HEAD_DIM / 8; ++n)
        *reinterpret_cast<float2*>(&o[warp_id][row][n * kAccumulatorCols + accumulator_col(lane_id)]) =
            make_float2(acc_o[n][r * 2], acc_o[n][r * 2 + 1]);
    }
  }
};

// A warp stores a merged row of O, and its LSE. A lane has COLS columns.
template <int COLS, typename Element, typename Group, typename Cache>
__device__ void store_row(const PackedRows<Element, Group, Cache>& rows, int batch, int row,
                          const RowPart<COLS>& whole, int lane_id) {
  const AttentionParams<Element, Cache>& params = rows.params;
  const int head = rows.head(row), query = rows.query(row);
  const float inverse = inverse_of(whole.softmax.sum);
  Element* const o = params.o_head(batch, head) + query * params.o.row_stride + lane_id * COLS;
#pragma unroll
  for (int c = 0; c < COLS; c += 2)
    *reinterpret_cast<uint32_t*>(&o[c]) =
        pack2<Element>(whole.columns.o[c] * inverse, whole.columns.o[c + 1] * inverse);
  if (lane_id == 0) params.store_lse(batch, head, query, lse_of(whole.softmax.base, whole.softmax.sum));
}

// Merges the parts of the CTA's warps. If the CTA has all keys of the rows, it stores O and LSE; otherwise it
// writes the CTA's part of each row to place_of(row) of `partials`. All threads call it, after a barrier that
// follows the stores of all warps' parts.
template <int NUM_WARPS, int BLOCK_M, int HEAD_DIM, typename Element, typename Group, typename Cache,
          typename PlaceOf>
__device__ void merge_warps(const WarpParts<NUM_WARPS, BLOCK_M, HEAD_DIM>& parts,
                            const Partials<HEAD_DIM>& partials, const PackedRows<Element, Group, Cache>& rows,
                            int batch, int first_row, int num_rows, bool has_all_keys, PlaceOf place_of) {
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  // A warp merges whole rows, one after the other. A lane has HEAD_DIM / 32 columns of each.
  constexpr int COLS = HEAD_DIM / 32;
  using Columns = typename RowPart<COLS>::Columns;
  const int col = lane_id * COLS;
  for (int row = warp_id; row < num_rows; row += NUM_WARPS) {
    RowPart<COLS> of_warps[NUM_WARPS], of_cta;
#pragma unroll
    for (int warp = 0; warp < NUM_WARPS; ++warp)
      of_warps[warp] = {parts.softmax[warp][row],
                        *reinterpret_cast<const Columns*>(&parts.o[warp][row][col])};
    of_cta.add(of_warps);
    if (has_all_keys) {
      store_row(rows, batch, first_row + row, of_cta, lane_id);
      continue;
    }
    const int64_t at = place_of(row);
    if (lane_id == 0) partials.softmax[at] = of_cta.softmax;
    *reinterpret_cast<Columns*>(&partials.o[at][col]) = of_cta.columns;
  }
}

// Merges the parts that num_ctas CTAs have written, loading MERGED_AT_ONCE parts of a row at a time, and
// stores O and LSE. The parts of a row are STRIDE apart, from first_of(row) on. All threads of a CTA of
// NUM_WARPS call it.
template <int MERGED_AT_ONCE, int NUM_WARPS, int STRIDE, int HEAD_DIM, typename Element, typename Group,
          typename Cache, typename FirstOf>
__device__ void merge_ctas(const Partials<HEAD_DIM>& partials, const PackedRows<Element, Group, Cache>& rows,
                           int batch, int first_row, int num_rows, int num_ctas, FirstOf first_of) {
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  constexpr int COLS = HEAD_DIM / 32;
  using Columns = typename RowPart<COLS>::Columns;
  const int col = lane_id * COLS;
  for (int row = warp_id; row < num_rows; row += NUM_WARPS) {
    const int64_t first = first_of(row);
    RowPart<COLS> whole;
    for (int group = 0; group < num_ctas; group += MERGED_AT_ONCE) {
      RowPart<COLS> of_ctas[MERGED_AT_ONCE];
#pragma unroll
      for (int i = 0; i < MERGED_AT_ONCE; ++i) {
        if (group + i < num_ctas)
          of_ctas[i] = {partials.softmax[first + (group + i) * STRIDE],
                        *reinterpret_cast<const Columns*>(&partials.o[first + (group + i) * STRIDE][col])};
      }
      whole.add(of_ctas);
    }
    store_row(rows, batch, first_row + row, whole, lane_id);
  }
}

// Both merges, where the parts of a row lie one after another: the last of the CTAs that share the tile's
// rows merges their parts. `counter` belongs to the tile; this CTA is number `split` of partials.num_parts.
template <int NUM_WARPS, int BLOCK_M, int HEAD_DIM, typename Element>
__device__ void merge_in_one_launch(WarpParts<NUM_WARPS, BLOCK_M, HEAD_DIM>& parts,
                                    const Partials<HEAD_DIM>& partials, const PackedRows<Element>& rows,
                                    int batch, int first_row, int num_rows, int split, unsigned* counter) {
  const int num_splits = partials.num_parts;
  const auto first_of = [&](int row) {
    return partials.first_of(rows.params, batch, rows.head(first_row + row), rows.query(first_row + row));
  };
  merge_warps(parts, partials, rows, batch, first_row, num_rows, num_splits == 1,
              [&](int row) { return first_of(row) + split; });
  if (num_splits == 1) return;

  __syncthreads();  // all warps have written their rows of this CTA's part, before the CTA is counted
  if (threadIdx.x == 0) {
    __threadfence();  // other CTAs, too, see these rows before the count
    // The counter wraps: the last CTA leaves it 0 for the next call.
    const bool is_last = atomicInc(counter, num_splits - 1) == unsigned(num_splits - 1);
    __threadfence();  // what other CTAs left before they were counted is read after the count
    parts.is_last = is_last;
  }
  __syncthreads();  // is_last is set before the other threads read it
  if (parts.is_last)
    merge_ctas<kMergedAtOnce, NUM_WARPS, 1>(partials, rows, batch, first_row, num_rows, num_splits, first_of);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
