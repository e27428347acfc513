// The keys of a tile of queries, divided among warps that do not wait for each other: which keys each one
// has, and what it leaves in the workspace for a second kernel that merges it. Spelled out in v28_split_keys.
#pragma once

#include "common/blocks/epilogue.h"
#include "common/exp2.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

struct TileRange {
  int begin, end;
};
// The tiles of one part, if num_parts parts share num_tiles tiles: all have equally many, but if the division
// leaves a remainder, the first parts have one more.
__device__ inline TileRange tiles_of_part(int num_tiles, int part, int num_parts) {
  const int tiles_per_part = num_tiles / num_parts, remainder = num_tiles % num_parts;
  const int begin = part * tiles_per_part + min(part, remainder);
  return {begin, begin + tiles_per_part + (part < remainder ? 1 : 0)};
}

// What a part leaves of one query row: the sum of P, and the base that P is relative to, in units of log2.
// A part without keys leaves the sum 0 and no O.
struct Softmax {
  float base, sum;
};

// What all parts leave: num_parts results for each row of O, one after another.
template <int HEAD_DIM>
struct Partials {
  int num_parts;
  Softmax* softmax;      // [batch][heads_q][seqlen_q][num_parts]
  float (*o)[HEAD_DIM];  // likewise: O, not yet divided by the sum

  template <typename Element>
  __device__ int64_t first_of(const AttentionParams<Element>& params, int batch, int head, int query) const {
    return ((int64_t(batch) * params.num_heads_q + head) * params.seqlen_q + query) * num_parts;
  }
};

// On the host: how many bytes they need, and where they lie in the workspace.
inline size_t bytes_of_partials(const AttentionCall& call, int num_parts) {
  const size_t rows = size_t(call.batch) * call.num_heads_q * call.seqlen_q;
  return rows * num_parts * (sizeof(Softmax) + call.head_dim * sizeof(float));
}
template <int HEAD_DIM, typename Element>
Partials<HEAD_DIM> make_partials(const AttentionParams<Element>& params, int num_parts) {
  const int64_t rows = int64_t(params.batch) * params.num_heads_q * params.seqlen_q;
  auto* const o = static_cast<float(*)[HEAD_DIM]>(params.workspace);
  return {num_parts, reinterpret_cast<Softmax*>(o + rows * num_parts), o};
}

// A lane leaves its elements of one of its two rows of accumulators, the upper (r = 0) or the lower one, as
// they are. `at` is the part's place, row_sum the sum of the whole row. A part without keys leaves no O.
template <int HEAD_DIM>
__device__ void store_part(const Partials<HEAD_DIM>& partials, int64_t at,
                           const float (&acc_o)[HEAD_DIM / 8][4], int r, float row_base, float row_sum,
                           bool has_keys, int lane_id) {
  if (lane_id % 4 == 0) partials.softmax[at] = {row_base, row_sum};
  if (!has_keys) return;
#pragma unroll
  for (int n = 0; n < HEAD_DIM / 8; ++n)
    *reinterpret_cast<float2*>(&partials.o[at][n * kAccumulatorCols + accumulator_col(lane_id)]) =
        make_float2(acc_o[n][r * 2], acc_o[n][r * 2 + 1]);
}

// A warp merges the parts of a row and stores O and LSE. Each lane has HEAD_DIM / 32 columns. The kernel must
// leave it registers for the parts that it loads at a time: __launch_bounds__(threads, 4).
constexpr int kMergedAtOnce = 8;
template <typename Element, int HEAD_DIM>
__device__ void merge_row(const AttentionParams<Element>& params, const Partials<HEAD_DIM>& partials,
                          int batch, int head, int query, int lane_id) {
  constexpr int COLS = HEAD_DIM / 32;
  const int64_t first = partials.first_of(params, batch, head, query);
  const Softmax* const softmax = partials.softmax + first;
  // The largest base of all parts becomes the base of the whole row. Each lane looks at some of the parts.
  float base = -INFINITY;
  for (int part = lane_id; part < partials.num_parts; part += 32)
    if (softmax[part].sum > 0.0f) base = fmaxf(base, softmax[part].base);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) base = fmaxf(base, __shfl_xor_sync(0xffffffff, base, lanes));

  // In the order of the keys, so that all runs round alike. A group of parts is loaded at a time. A part
  // whose sum is 0 has left no O.
  struct alignas(COLS * sizeof(float)) Columns {
    float o[COLS];
  };
  float sum = 0.0f, o[COLS] = {};
  for (int group = 0; group < partials.num_parts; group += kMergedAtOnce) {
    Softmax left[kMergedAtOnce] = {};
    Columns columns[kMergedAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kMergedAtOnce; ++i) {
      if (group + i >= partials.num_parts) continue;
      left[i] = softmax[group + i];
      columns[i] = *reinterpret_cast<const Columns*>(&partials.o[first + group + i][lane_id * COLS]);
    }
#pragma unroll
    for (int i = 0; i < kMergedAtOnce; ++i) {
      const float weight = left[i].sum == 0.0f ? 0.0f : exp2_approx(left[i].base - base);
      sum += left[i].sum * weight;
#pragma unroll
      for (int c = 0; c < COLS; ++c) o[c] += left[i].sum == 0.0f ? 0.0f : columns[i].o[c] * weight;
    }
  }
  const float inverse = inverse_of(sum);
  Element* const to = params.o_head(batch, head) + query * params.o.row_stride + lane_id * COLS;
#pragma unroll
  for (int i = 0; i < COLS; i += 2)
    *reinterpret_cast<uint32_t*>(&to[i]) = pack2<Element>(o[i] * inverse, o[i + 1] * inverse);
  if (lane_id == 0) params.store_lse(batch, head, query, lse_of(base, sum));
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
