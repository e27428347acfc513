// The two products of a tile of keys, by a warp that owns whole rows. Spelled out in v12_whole_rows, with the
// layout of SwizzledTile from v11_cp_async on. accumulator.h says what a lane holds, and operands.h how it
// finds its operands.
#pragma once

#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/mma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

template <int M_TILES, int N_TILES>
__device__ void clear(float (&acc)[M_TILES][N_TILES][4]) {
#pragma unroll
  for (int i = 0; i < M_TILES * N_TILES * 4; ++i) acc[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] = 0.0f;
}

// S += Q K^T for the keys in rows first_row .. first_row + 8 * N_TILES - 1 of a tile of K. frag_q holds all
// of the warp's Q (load_q), or has room for 16 columns of it, which are then loaded from q as they are
// needed. The offsets are the places in the tiles of the first rows that this lane passes to ldmatrix:
// Q::offset_of(operand_row(lane_id), operand_col(lane_id)) and KV::offset_of(k_operand_row(lane_id),
// k_operand_col(lane_id)).
template <typename Element, typename Q, typename KV, int FRAGMENTS, int M_TILES, int N_TILES>
__device__ void mma_qk(float (&acc_s)[M_TILES][N_TILES][4], uint32_t (&frag_q)[FRAGMENTS][M_TILES][4], Q& q,
                       int q_offset, KV& k, int k_offset, int first_row) {
  constexpr int K_STEPS = Q::COLS / 16;
#pragma unroll
  for (int step = 0; step < K_STEPS; ++step) {
    auto& a = frag_q[FRAGMENTS == K_STEPS ? step : 0];
    if constexpr (FRAGMENTS != K_STEPS) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(a[m], q.at(q_offset, m * 16, step * 16));
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
      uint32_t frag_k[4];  // two B operands
      ldmatrix_x4(frag_k, k.at(k_offset, first_row + n * 8, step * 16));
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        mma_m16n8k16<Element>(acc_s[m][n], a[m], {frag_k[0], frag_k[1]});
        mma_m16n8k16<Element>(acc_s[m][n + 1], a[m], {frag_k[2], frag_k[3]});
      }
    }
  }
}

// O += P V for the same keys of a tile of V; P is made from S, 16 keys at a time. `offset` is as above, with
// operand_row and operand_col.
template <typename Element, typename KV, int M_TILES, int S_TILES, int O_TILES>
__device__ void mma_pv(float (&acc_o)[M_TILES][O_TILES][4], const float (&acc_s)[M_TILES][S_TILES][4],
                       float scale, const float (&row_base)[M_TILES][2], float (&row_sum)[M_TILES][2], KV& v,
                       int offset, int first_row) {
#pragma unroll
  for (int step = 0; step < S_TILES / 2; ++step) {
    uint32_t frag_p[M_TILES][4];
    make_p<Element>(frag_p, acc_s, step, scale, row_base, row_sum);
#pragma unroll
    for (int n = 0; n < O_TILES; n += 2) {
      uint32_t frag_v[4];  // two B operands
      ldmatrix_x4_trans(frag_v, v.at(offset, first_row + step * 16, n * 8));
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        mma_m16n8k16<Element>(acc_o[m][n], frag_p[m], {frag_v[0], frag_v[1]});
        mma_m16n8k16<Element>(acc_o[m][n + 1], frag_p[m], {frag_v[2], frag_v[3]});
      }
    }
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
