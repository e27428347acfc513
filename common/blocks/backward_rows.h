// What the backward pass does with rows of queries before and after its products: D and the sums of dQ, in
// the workspace. Spelled out in v53_backward_wgmma.
#pragma once

#include <type_traits>

#include "common/attention.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/operands.h"
#include "common/pack.h"
#include "common/stmatrix.h"
#include "common/swizzle.h"
#include "common/unpack.h"
#include "common/vector_copy.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Queries per tile. A warpgroup has 64 x block_m elements of S and of dP, 64 x D sums of dK and of dV, and
// half of the tile's block_m x D sums of dQ. At either D these are 224 for each thread.
__host__ __device__ constexpr int backward_block_m(int head_dim) { return head_dim == 128 ? 64 : 128; }

// A warpgroup computes half of a tile's dQ: at D = 128 the tile's 64 rows and 64 of the columns, at D = 64
// half of its rows. A thread has kDQTiles * 4 elements.
constexpr int kDQTiles = 8, kDQHalf = 128 * kDQTiles * 4;

// dS is computed from the rounded P. FP16 has 11 bits of a number only from 2^-14 on, and most of P may be
// smaller. So in FP16 P is 2^14 times as large, because LSE, in units of log2, is 14 less. dP - D, before P
// multiplies it, and dV in the end are divided by 2^14.
template <typename Element>
constexpr int kPExponent = std::is_same_v<Element, __half> ? 14 : 0;
template <typename Element>
constexpr float kUnscaleP = 1.0f / (1 << kPExponent<Element>);

// In the workspace, of one tile of queries: the sums of dQ, LSE in units of log2 and less kPExponent, and D
// times kUnscaleP.
template <int HEAD_DIM>
struct BackwardWorkspace {
  static constexpr int BLOCK_M = backward_block_m(HEAD_DIM);
  float *dq, *lse, *delta;

  template <typename Element>
  __device__ BackwardWorkspace(const BackwardParams<Element>& params, int batch, int head, int m_tile) {
    const int num_m_tiles = ceil_div(params.seqlen_q, BLOCK_M);
    const int64_t num_rows = int64_t(params.batch) * params.num_heads_q * num_m_tiles * BLOCK_M;
    const int64_t row = ((int64_t(batch) * params.num_heads_q + head) * num_m_tiles + m_tile) * BLOCK_M;
    float* const all = static_cast<float*>(params.workspace);
    dq = all + row * HEAD_DIM;
    lse = all + num_rows * HEAD_DIM + row;
    delta = lse + num_rows;
  }

  // The order of dQ: as the accumulators have it. Where a thread's elements of columns 8 n to 8 n + 7 of its
  // warpgroup's half are.
  static __device__ int dq_offset(int thread, int n) {
    return thread / 128 * kDQHalf + (n * 128 + thread % 128) * 4;
  }
  // The order of LSE and D: what a lane needs for 16 columns of scores is 16 consecutive bytes. So of 16 rows
  // the order is 0, 1, 8, 9, 2, 3, 10, 11, ...
  static __device__ int row_offset(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
  }
};

inline size_t backward_workspace_bytes(const AttentionCall& call) {
  const int block_m = backward_block_m(call.head_dim);
  const int rows = ceil_div(call.seqlen_q, block_m) * block_m;
  return size_t(call.batch) * call.num_heads_q * rows * (call.head_dim + 2) * sizeof(float);
}

constexpr int kRowsThreads = 256;  // of the kernels below, whose CTAs have a tile of queries each

// By a CTA of the first kernel: D and LSE.
template <int HEAD_DIM, typename Element>
__device__ void prepare_rows(const BackwardParams<Element>& params) {
  constexpr int BLOCK_M = backward_block_m(HEAD_DIM);
  constexpr int LANES = HEAD_DIM / 8;  // of a row: each has 16 bytes
  const int m_tile = blockIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const BackwardWorkspace<HEAD_DIM> workspace(params, batch, head, m_tile);
  const int lane = threadIdx.x % LANES;

  for (int row = threadIdx.x / LANES; row < BLOCK_M; row += kRowsThreads / LANES) {
    const int query = m_tile * BLOCK_M + row;
    // P is exp2(score - LSE). An LSE of inf makes it 0: in a row that sees no key, for which the forward pass
    // has stored -inf, and in rows beyond the last.
    float delta = 0.0f, lse = INFINITY;
    if (query < params.seqlen_q) {
      const Element* const o_row = params.o_head(batch, head) + query * params.o.row_stride;
      const Element* const d_o_row = params.d_o_head(batch, head) + query * params.d_o.row_stride;
      const uint4 o = load_16_bytes(o_row + lane * 8), d_o = load_16_bytes(d_o_row + lane * 8);
      const auto add = [&](uint32_t of_o, uint32_t of_d_o) {
        const float2 x = unpack2<Element>(of_o), y = unpack2<Element>(of_d_o);
        delta += x.x * y.x + x.y * y.y;
      };
      add(o.x, d_o.x);
      add(o.y, d_o.y);
      add(o.z, d_o.z);
      add(o.w, d_o.w);
      const float natural = params.lse_head(batch, head)[query];
      if (natural != -INFINITY) lse = fmaf(natural, kLog2e, -float(kPExponent<Element>));
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) delta += __shfl_xor_sync(0xffffffff, delta, lanes);
    if (lane == 0) {
      workspace.lse[workspace.row_offset(row)] = lse;
      workspace.delta[workspace.row_offset(row)] = delta * kUnscaleP<Element>;
    }
  }
}

// By a CTA of the first kernel, too: sums of 0.
template <int HEAD_DIM, typename Element>
__device__ void clear_dq(const BackwardParams<Element>& params) {
  const BackwardWorkspace<HEAD_DIM> workspace(params, blockIdx.z, blockIdx.y, blockIdx.x);
  for (int i = threadIdx.x; i < workspace.BLOCK_M * HEAD_DIM / 4; i += kRowsThreads)
    store_16_bytes(&workspace.dq[i * 4], uint4{});
}

// By a CTA of the last kernel: dQ, scaled and rounded; zeros if no CTA has added to it. `tile`, a
// SwizzledTile of the tile's size, is in shared memory.
template <int HEAD_DIM, typename Element, typename Tile>
__device__ void round_dq(const BackwardParams<Element>& params, Tile& tile, bool has_sums = true) {
  constexpr int MMA_N = 8;
  const int m_tile = blockIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const BackwardWorkspace<HEAD_DIM> workspace(params, batch, head, m_tile);

  // A thread takes what a thread of the second kernel has added.
  const int warpgroup = threadIdx.x / 128;
  const int lane_id = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 % 4 * 16 + (HEAD_DIM == 128 ? 0 : warpgroup * 64);
  const int first_col = HEAD_DIM == 128 ? warpgroup * 64 : 0;
  const int offset = Tile::offset_of(warp_row + operand_row(lane_id), first_col + operand_col(lane_id));
  const float scale = params.softmax_scale;
#pragma unroll
  for (int n = 0; n < kDQTiles; n += 2) {
    const auto sums = [&](int of) {
      if (!has_sums) return float4{};
      return *reinterpret_cast<const float4*>(&workspace.dq[workspace.dq_offset(threadIdx.x, of)]);
    };
    const float4 left = sums(n), right = sums(n + 1);
    stmatrix_x4(
        tile.at(offset, 0, n * MMA_N),
        {pack2<Element>(left.x * scale, left.y * scale), pack2<Element>(left.z * scale, left.w * scale),
         pack2<Element>(right.x * scale, right.y * scale), pack2<Element>(right.z * scale, right.w * scale)});
  }
  __syncthreads();  // the tile is complete
  const int first_query = m_tile * Tile::ROWS;
  store_rows(tile, 0, min(Tile::ROWS, params.seqlen_q - first_query),
             params.dq_head(batch, head) + first_query * params.dq.row_stride, params.dq.row_stride,
             threadIdx.x, kRowsThreads);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
