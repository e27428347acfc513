// The backward pass of a tile of keys: which tiles of queries see it, its five products by wgmma, and what
// two warpgroups of 64 keys each do between these. Spelled out in v53_backward_wgmma.
#pragma once

#include "common/blocks/accumulator.h"
#include "common/blocks/backward_rows.h"
#include "common/blocks/operands.h"
#include "common/blocks/uniform.h"
#include "common/exp2.h"
#include "common/named_barrier.h"
#include "common/pack.h"
#include "common/setmaxnreg.h"
#include "common/stmatrix.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "common/unpack.h"
#include "common/vector_copy.h"
#include "common/wgmma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// ---- A CTA: two warpgroups that compute, the consumers, and one for the copies

constexpr int kConsumerWarps = 8, kConsumerThreads = 32 * kConsumerWarps;
constexpr int kWarpgroupN = 64;           // keys per warpgroup: 16 for each of its warps
constexpr int kBlockN = 2 * kWarpgroupN;  // keys per CTA
constexpr int kBackwardThreads = kConsumerThreads + 128;
constexpr int kBackwardRegistersAtLaunch = registers_at_launch(kBackwardThreads, 1);
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

template <typename Element, int HEAD_DIM>
struct BackwardTiles {
  static constexpr int BLOCK_M = backward_block_m(HEAD_DIM);
  using Q = SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128>;  // of Q and dO
  using KV = SwizzledTile<Element, kBlockN, HEAD_DIM, 128>;
  using DS = SwizzledTile<Element, kBlockN, BLOCK_M, 128>;  // a row for each key
};

struct BackwardMaps {
  TensorMap q, k, v, d_o, dk, dv;
};

// On the host.
template <typename Tiles, typename Element>
BackwardMaps make_backward_maps(const BackwardParams<Element>& params) {
  using Q = typename Tiles::Q;
  using KV = typename Tiles::KV;
  return {.q = make_tensor_map<Q>(params.q),
          .k = make_tensor_map<KV>(params.k),
          .v = make_tensor_map<KV>(params.v),
          .d_o = make_tensor_map<Q>(params.d_o),
          .dk = make_tensor_map<KV>(params.dk),
          .dv = make_tensor_map<KV>(params.dv)};
}

// A CTA's work: a tile of keys, and the tiles of queries that see some of it. These are, of each query head
// of the group in turn, the tiles from first_m_tile on.
struct BackwardWork {
  int batch, kv_head, first_key, kv_len;
  int first_m_tile, num_m_tiles;
  int num_steps;     // tiles of queries, of all heads
  int head, m_tile;  // of the current step

  __device__ void advance() {
    if (++m_tile < num_m_tiles) return;
    m_tile = first_m_tile;
    ++head;
  }
};

// Of tile n_tile of a head of K and V, which is counted over all batches. By all lanes of a warp.
template <bool CAUSAL, int BLOCK_M, typename Element>
__device__ BackwardWork work_of_tile(const BackwardParams<Element>& params, int n_tile, int head_index) {
  const int kv_head = uniform(head_index % params.num_heads_kv);
  const int batch = uniform(head_index / params.num_heads_kv);
  const int first_key = uniform(n_tile * kBlockN);
  const int kv_len = uniform(params.kv_length(batch));
  const int num_m_tiles = ceil_div(params.seqlen_q, BLOCK_M);
  const int first_m_tile = uniform(
      first_key < kv_len ? params.template first_query<CAUSAL>(first_key, kv_len) / BLOCK_M : num_m_tiles);
  return {.batch = batch,
          .kv_head = kv_head,
          .first_key = first_key,
          .kv_len = kv_len,
          .first_m_tile = first_m_tile,
          .num_m_tiles = num_m_tiles,
          .num_steps = uniform((num_m_tiles - first_m_tile) * params.group_size()),
          .head = uniform(kv_head * params.group_size()),
          .m_tile = first_m_tile};
}

// Under a causal mask the first keys are seen by the most queries: their CTAs start first.
template <bool CAUSAL, int BLOCK_M, typename Element>
__device__ BackwardWork work_of_cta(const BackwardParams<Element>& params) {
  const int num_n_tiles = ceil_div(params.seqlen_kv, kBlockN);
  return work_of_tile<CAUSAL, BLOCK_M>(params, int(blockIdx.x) % num_n_tiles, int(blockIdx.x) / num_n_tiles);
}

// ---- The products, each started as a group. `row` is the warpgroup's first key in the tile.

// S^T = K Q^T, or dP^T = V dO^T.
template <typename KV, typename Q, int S_TILES>
__device__ __forceinline__ void start_scores(float (&acc)[1][S_TILES][4], const KV& keys, int row,
                                             const Q& queries) {
  const SmemDescriptor a = make_smem_descriptor(keys, row), b = make_smem_descriptor(queries);
  warpgroup_fence_operand(wgmma_accumulator(acc));
  warpgroup_arrive();
#pragma unroll
  for (int d = 0; d < Q::COLS; d += 16)
    wgmma_m64k16<typename Q::Element>(wgmma_accumulator(acc), advance<KV>(a, 0, d), advance<Q>(b, 0, d),
                                      d > 0);
  warpgroup_commit_batch();
}

// P^T, rounded: the A operand of dV.
template <int BLOCK_M>
struct FragP {
  uint32_t of[BLOCK_M / 16][4];
};

// dV += P^T dO. dO has a row per query, and B's N runs along it.
template <typename Q, int D_TILES>
__device__ __forceinline__ void start_dv(float (&acc)[1][D_TILES][4], const FragP<Q::ROWS>& p, const Q& d_o) {
  const SmemDescriptor b = make_smem_descriptor(d_o);
  warpgroup_fence_operand(wgmma_accumulator(acc));
  warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < Q::ROWS / 16; ++i)
    wgmma_m64k16<typename Q::Element, Major::kMN>(wgmma_accumulator(acc), p.of[i], advance<Q>(b, i * 16, 0),
                                                  true);
  warpgroup_commit_batch();
}

// dK += dS^T Q. The tensor cores read a warp's 16 rows of dS^T for this warp alone. So it needs no barrier
// with other warps before it starts.
template <typename DS, typename Q, int D_TILES>
__device__ __forceinline__ void start_dk(float (&acc)[1][D_TILES][4], const DS& ds, int row, const Q& q) {
  const SmemDescriptor a = make_smem_descriptor(ds, row), b = make_smem_descriptor(q);
  warpgroup_fence_operand(wgmma_accumulator(acc));
  warpgroup_arrive();
#pragma unroll
  for (int m = 0; m < Q::ROWS; m += 16)
    wgmma_m64k16<typename Q::Element, Major::kMN>(wgmma_accumulator(acc), advance<DS>(a, 0, m),
                                                  advance<Q>(b, m, 0), true);
  warpgroup_commit_batch();
}

// dQ = dS K, of all keys of the tile. dS has a row per key, too, so A's M runs along it. A warpgroup computes
// its half of the columns at D = 128, of the rows at D = 64.
template <typename DS, typename KV>
__device__ __forceinline__ void start_dq(float (&acc)[1][kDQTiles][4], const DS& ds, const KV& k,
                                         int warpgroup) {
  const SmemDescriptor a = make_smem_descriptor(ds, 0, KV::COLS == 128 ? 0 : warpgroup * 64);
  const SmemDescriptor b = make_smem_descriptor(k, 0, KV::COLS == 128 ? warpgroup * 64 : 0);
  warpgroup_fence_operand(wgmma_accumulator(acc));
  warpgroup_arrive();
#pragma unroll
  for (int n = 0; n < KV::ROWS; n += 16)
    wgmma_m64k16<typename KV::Element, Major::kMN, Major::kMN>(wgmma_accumulator(acc), advance<DS>(a, n, 0),
                                                               advance<KV>(b, n, 0), n > 0);
  warpgroup_commit_batch();
}

// ---- Where this lane's elements are. Computed where they are needed: the loop has no registers to keep
// them.

__device__ inline int own_lane() { return opaque(int(threadIdx.x)) % 32; }
// The first of the warp's 16 keys in the tile.
__device__ inline int own_row() { return opaque(int(threadIdx.x)) / 32 * 16; }
// In a tile with a row for each key, the place of the row whose address this lane passes to stmatrix.
template <typename Tile>
__device__ int own_offset() {
  return Tile::offset_of(own_row() + operand_row(own_lane()), operand_col(own_lane()));
}

// ---- Between the products

// Rows of K and V at or beyond kv_len may hold NaN, and 0 * NaN is NaN. dQ = dS K sums over all keys of the
// tile, and dS = P * (dP - D) of a key has its row of V in dP. By all consumers, when TMA has brought K and
// V. The addresses, too, are computed here, and not before a loop over tiles of keys.
template <typename KV>
__device__ __forceinline__ void clear_padding(KV& k, KV& v, int num_keys) {
  constexpr int CHUNK = 16 / sizeof(typename KV::Element), CHUNKS = KV::COLS / CHUNK;
  for (int i = opaque(int(threadIdx.x)); i < (KV::ROWS - num_keys) * CHUNKS; i += kConsumerThreads) {
    const int offset = KV::offset_of(num_keys + i / CHUNKS, i % CHUNKS * CHUNK);
    store_16_bytes(k.at(offset, 0, 0), uint4{});
    store_16_bytes(v.at(offset, 0, 0), uint4{});
  }
  fence_proxy_async();            // wgmma sees what this thread has written
  bar_sync(1, kConsumerThreads);  // the rows of all threads are zero
}

// Makes a tile zero. By all consumers; a barrier must follow.
template <typename Tile>
__device__ __forceinline__ void clear_tile(Tile& tile) {
  for (int i = threadIdx.x; i < int(sizeof(Tile) / sizeof(uint4)); i += kConsumerThreads)
    store_16_bytes(reinterpret_cast<uint4*>(&tile) + i, uint4{});
  fence_proxy_async();  // wgmma sees what this thread has written
}

// Masks the scores of a warpgroup's keys, which begin at `row` of the tile, with the queries of the current
// step, where there is anything to mask.
template <bool CAUSAL, typename Element, int S_TILES>
__device__ __forceinline__ void mask_transposed(float (&acc_s)[1][S_TILES][4],
                                                const BackwardParams<Element>& params,
                                                const BackwardWork& work, int row) {
  constexpr int BLOCK_M = S_TILES * kAccumulatorCols;
  const int first_query = work.m_tile * BLOCK_M;
  const int last_key = work.first_key + row + kWarpgroupN - 1;
  const bool needs_mask =
      last_key >= work.kv_len || params.template first_query<CAUSAL>(last_key, work.kv_len) > first_query;
  if (!uniform(needs_mask)) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = work.first_key + own_row() + accumulator_row(own_lane()) + r * 8;
    const int first_seen =
        key < work.kv_len ? params.template first_query<CAUSAL>(key, work.kv_len) - first_query : BLOCK_M;
    const int first_column = first_seen - accumulator_col(own_lane());
#pragma unroll
    for (int i = 0; i < 2 * S_TILES; ++i) {
      if (i / 2 * kAccumulatorCols + i % 2 < first_column) acc_s[0][i / 2][r * 2 + i % 2] = -INFINITY;
    }
  }
}

// What a lane needs of LSE or D: of each 16 queries, those of its columns acc_col, acc_col + 1, acc_col + 8
// and acc_col + 9, which are neighbours in memory.
template <int STEPS>
__device__ __forceinline__ void load_of_queries(float4 (&to)[STEPS], const float* from) {
  const int acc_col = accumulator_col(own_lane());
#pragma unroll
  for (int i = 0; i < STEPS; ++i) to[i] = *reinterpret_cast<const float4*>(&from[i * 16 + acc_col * 2]);
}

// P^T = exp2(scale * S^T - LSE), which for FP16 is 2^14 times as much: see kPExponent.
template <typename Element, int S_TILES, int STEPS>
__device__ __forceinline__ FragP<STEPS * 16> make_p_transposed(const float (&acc_s)[1][S_TILES][4],
                                                               const float4 (&lse)[STEPS], float scale) {
  const auto p2 = [scale](const float* s, float lse_0, float lse_1) {
    return pack2<Element>(exp2_approx(fmaf(s[0], scale, -lse_0)), exp2_approx(fmaf(s[1], scale, -lse_1)));
  };
  FragP<STEPS * 16> p;
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const float *left = acc_s[0][2 * i], *right = acc_s[0][2 * i + 1];
    p.of[i][0] = p2(left, lse[i].x, lse[i].y);
    p.of[i][1] = p2(left + 2, lse[i].x, lse[i].y);
    p.of[i][2] = p2(right, lse[i].z, lse[i].w);
    p.of[i][3] = p2(right + 2, lse[i].z, lse[i].w);
  }
  return p;
}

// Makes ptxas finish P before the product that starts next, while one product may be under way: behind this,
// a wait depends on all of P (warpgroup_wait_after). v57_early_loads says why.
template <int BLOCK_M>
__device__ __forceinline__ void finish_p(const FragP<BLOCK_M>& p) {
  uint32_t all = 0;
#pragma unroll
  for (const auto& of_16_queries : p.of)
#pragma unroll
    for (uint32_t pair : of_16_queries) all |= pair;
  warpgroup_wait_after<1>(__uint_as_float(all));  // P is not negative: neither is this number
}

// dS^T = P^T * (dP^T - D), rounded, to shared memory.
template <typename DS, int S_TILES, int STEPS>
__device__ __forceinline__ void write_ds(DS& ds, const FragP<STEPS * 16>& p,
                                         const float (&acc_dp)[1][S_TILES][4], const float4 (&delta)[STEPS]) {
  using Element = typename DS::Element;
  const int offset = own_offset<DS>();
  const auto ds2 = [](uint32_t of_p, const float* dp, float delta_0, float delta_1) {
    const float2 p2 = unpack2<Element>(of_p);
    return pack2<Element>(p2.x * fmaf(dp[0], kUnscaleP<Element>, -delta_0),
                          p2.y * fmaf(dp[1], kUnscaleP<Element>, -delta_1));
  };
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    const float *left = acc_dp[0][2 * i], *right = acc_dp[0][2 * i + 1];
    stmatrix_x4(
        ds.at(offset, 0, i * 16),
        {ds2(p.of[i][0], left, delta[i].x, delta[i].y), ds2(p.of[i][1], left + 2, delta[i].x, delta[i].y),
         ds2(p.of[i][2], right, delta[i].z, delta[i].w), ds2(p.of[i][3], right + 2, delta[i].z, delta[i].w)});
  }
}

// A warpgroup's half of dQ to shared memory, in the order of the workspace. Spelled out in v55_bulk_reduce.
__device__ __forceinline__ void write_dq(float* half, const float (&acc_dq)[1][kDQTiles][4]) {
  const int thread = opaque(int(threadIdx.x)) % 128;
#pragma unroll
  for (int n = 0; n < kDQTiles; ++n) {
    const float(&x)[4] = acc_dq[0][n];
    store_16_bytes(&half[(n * 128 + thread) * 4], {__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                   __float_as_uint(x[2]), __float_as_uint(x[3])});
  }
}

// dK or dV, times `factor` and rounded, to a tile in shared memory.
template <typename KV, int D_TILES>
__device__ __forceinline__ void write_gradient(KV& tile, const float (&acc)[1][D_TILES][4], float factor) {
  using Element = typename KV::Element;
  const int offset = own_offset<KV>();
#pragma unroll
  for (int n = 0; n < D_TILES; n += 2) {
    const float *left = acc[0][n], *right = acc[0][n + 1];
    stmatrix_x4(tile.at(offset, 0, n * kAccumulatorCols),
                {scaled2<Element>(left, factor), scaled2<Element>(left + 2, factor),
                 scaled2<Element>(right, factor), scaled2<Element>(right + 2, factor)});
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
