// The softmax of whole rows that a warp holds in registers. Spelled out in v12_whole_rows (P as operands),
// v13_lazy_rescale (a base that changes only when it must) and v15_integer_max. accumulator.h says what a
// lane holds. `scale` converts scores to units of log2; a row's P is relative to row_base, in these units.
#pragma once

#include <cfloat>

#include "common/blocks/accumulator.h"
#include "common/blocks/key_range.h"
#include "common/exp2.h"
#include "common/pack.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// How far a score may lie above its row's base, in units of log2: P is then at most 2^15, and fp16 holds
// 65,504.
constexpr float kMaxGrowth = 15.0f;

// How far the lane's largest score lies above its row's base. Where all scores of a row are negative, the
// result may be too large, but it is never too small. It compares scores as integers, three at a time, which
// is one instruction on sm_90 and sm_100.
template <int M_TILES, int N_TILES>
__device__ float growth_bound(const float (&acc_s)[M_TILES][N_TILES][4], const float (&row_base)[M_TILES][2],
                              float scale) {
  float growth = -INFINITY;
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int max = 0;  // bits of the largest score from 0 on
#pragma unroll
      for (int n = 0; n < N_TILES; ++n)
        max = __vimax3_s32(max, __float_as_int(acc_s[m][n][r * 2]), __float_as_int(acc_s[m][n][r * 2 + 1]));
      growth = fmaxf(growth, fmaf(__int_as_float(max), scale, -row_base[m][r]));
    }
  }
  return growth;
}

// Scores of keys that a query does not see, or that the previous tile has processed, become -inf. `query` and
// `acc_col` are those of the lane's first element.
template <bool CAUSAL, int BLOCK_N, typename Element, int M_TILES, int S_TILES>
__device__ void mask_tile(float (&acc_s)[M_TILES][S_TILES][4], const AttentionParams<Element>& params,
                          int kv_len, int kv_tile, int query, int acc_col) {
  const int first_key = min(kv_tile * BLOCK_N, kv_len - BLOCK_N);  // as KeyRange::first_key()
  const int repeated = kv_tile * BLOCK_N - first_key;
  mask_scores<CAUSAL>(acc_s, params, kv_len, query, first_key + acc_col);
  if (repeated != 0) mask_first_keys(acc_s, repeated, acc_col);
}

// Makes the largest score that each row has seen its base, and scales its sum to the new base. The caller
// must scale O by row_scale. All lanes of a warp call it. With `largest_p` the base is so much lower: the
// largest P is 2^largest_p.
template <int M_TILES, int S_TILES>
__device__ void change_base(const float (&acc_s)[M_TILES][S_TILES][4], float scale,
                            float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2],
                            float (&row_scale)[M_TILES][2], float largest_p = 0.0f) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float tile_max = quad_reduce_max(lane_max(acc_s[m], r));
      float base = fmaxf(row_base[m][r], __fmul_rd(tile_max, scale) - largest_p);
      if (base == -INFINITY) base = -FLT_MAX;  // no key seen yet: P is 0, and any score outgrows this
      row_scale[m][r] = exp2_approx(row_base[m][r] - base);
      row_base[m][r] = base;
      row_sum[m][r] *= row_scale[m][r];
    }
  }
}

template <int M_TILES, int O_TILES>
__device__ void scale_rows(float (&acc_o)[M_TILES][O_TILES][4], const float (&row_scale)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int i = 0; i < O_TILES * 4; ++i) acc_o[m][i / 4][i % 4] *= row_scale[m][i / 2 % 2];
  }
}

// Changes the base, and scales the sums and O to it.
template <int M_TILES, int S_TILES, int O_TILES>
__device__ void rescale(const float (&acc_s)[M_TILES][S_TILES][4], float scale, float (&row_base)[M_TILES][2],
                        float (&row_sum)[M_TILES][2], float (&acc_o)[M_TILES][O_TILES][4]) {
  float row_scale[M_TILES][2];
  change_base(acc_s, scale, row_base, row_sum, row_scale);
  scale_rows(acc_o, row_scale);
}

// The part of the softmax between S and P: masks scores if necessary, and changes the rows' bases if a score
// has outgrown one of them. acc_s holds the tile's columns from `first_col` on; `query` is the query of the
// lane's first element, `acc_col` its column in acc_s. Spelled out in v17_persistent.
template <bool CAUSAL, int BLOCK_N, typename Element, int M_TILES, int S_TILES, int O_TILES>
__device__ void update_base(float (&acc_s)[M_TILES][S_TILES][4], const AttentionParams<Element>& params,
                            const KeyRange& keys, int kv_tile, int first_col, int query, int acc_col,
                            float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2],
                            float (&acc_o)[M_TILES][O_TILES][4]) {
  const float scale = params.softmax_scale_log2;
  const bool needs_mask = keys.needs_mask(kv_tile * BLOCK_N, BLOCK_N);  // of the whole tile
  const float growth = growth_bound(acc_s, row_base, scale);
  if (!__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) return;
  if (needs_mask) {
    const int first_key = keys.first_key(kv_tile, BLOCK_N) + first_col;
    mask_scores<CAUSAL>(acc_s, params, keys.kv_len, query, first_key + acc_col);
    mask_first_keys(acc_s, kv_tile * BLOCK_N - first_key, acc_col);
  }
  rescale(acc_s, scale, row_base, row_sum, acc_o);
}

// Replaces S by P, not yet rounded, and adds P to row_sum.
template <int M_TILES, int S_TILES>
__device__ void exponentiate(float (&acc_s)[M_TILES][S_TILES][4], float scale,
                             const float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int i = 0; i < S_TILES * 4; ++i) {
      float& s = acc_s[m][i / 4][i % 4];
      s = exp2_approx(fmaf(s, scale, -row_base[m][i / 2 % 2]));
      row_sum[m][i / 2 % 2] += s;
    }
  }
}
// P of a tile, rounded, as A operands.
template <typename Element, int P_STEPS, int M_TILES, int S_TILES>
__device__ void pack_p(uint32_t (&frag_p)[P_STEPS][M_TILES][4], const float (&acc_s)[M_TILES][S_TILES][4]) {
#pragma unroll
  for (int step = 0; step < P_STEPS; ++step) {
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const p = &acc_s[m][step * 2 + i / 2][i % 2 * 2];
        frag_p[step][m][i] = pack2<Element>(p[0], p[1]);
      }
    }
  }
}

// P of the 16 keys of k-step `step` of a tile, rounded: two neighbouring 16 x 8 tiles of S are an A operand.
// Adds P, before it is rounded, to row_sum.
template <typename Element, int M_TILES, int S_TILES>
__device__ void make_p(uint32_t (&frag_p)[M_TILES][4], const float (&acc_s)[M_TILES][S_TILES][4], int step,
                       float scale, const float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2;
      float p[2];
#pragma unroll
      for (int e = 0; e < 2; ++e)
        p[e] = exp2_approx(fmaf(acc_s[m][step * 2 + i / 2][r * 2 + e], scale, -row_base[m][r]));
      row_sum[m][r] += p[0] + p[1];
      frag_p[m][i] = pack2<Element>(p[0], p[1]);
    }
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
