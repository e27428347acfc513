// Few queries: one tile of rows, and for each warp of a CTA its own tiles of keys, which it copies,
// multiplies and adds up without waiting for the others. Spelled out in v31_in_turn (stages of a warp's own),
// v33_paged and v34_short_path.
#pragma once

#include "common/blocks/one_launch.h"
#include "common/blocks/products.h"
#include "common/swizzle.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// In shared memory: of each warp NUM_STAGES tiles of K and V.
template <typename Element, int BLOCK_N, int HEAD_DIM, int NUM_WARPS, int NUM_STAGES>
struct WarpTiles {
  using Tile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;
  Tile k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
};

// A tile of the packed rows of a head of K and V.
struct RowTile {
  int batch, kv_head, first_row, num_rows;
};

// What a warp has of such a tile: O, not yet divided by the sum of P, and of P the base and this lane's part
// of the sum.
template <int HEAD_DIM>
struct WarpResult {
  float row_base[1][2] = {{-INFINITY, -INFINITY}};
  float row_sum[1][2] = {};
  float acc_o[1][HEAD_DIM / 8][4] = {};
};

// All threads call it, and no thread may still use `shared`. The CTA computes on the tiles of keys first_tile
// .. end - 1, of which a warp takes every NUM_WARPS-th. Calls meanwhile() while the first ones are on their
// way. When it returns, other warps may still read `shared`.
template <bool CAUSAL, bool PAGED, typename Element, int BLOCK_N, int HEAD_DIM, int NUM_WARPS, int NUM_STAGES,
          typename Group, typename Meanwhile>
__device__ WarpResult<HEAD_DIM> attend_few_queries(
    WarpTiles<Element, BLOCK_N, HEAD_DIM, NUM_WARPS, NUM_STAGES>& shared,
    const PackedRows<Element, Group>& rows, const RowTile& tile, const KeyRange& keys, int first_tile,
    int end, Meanwhile meanwhile) {
  constexpr int K_STEPS = HEAD_DIM / 16;
  const auto [batch, kv_head, first_row, num_rows] = tile;
  const AttentionParams<Element>& params = rows.params;
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  auto& q = shared.v[0][NUM_STAGES - 1];  // free until the loop fills it
  using Q = std::remove_reference_t<decltype(q)>;
  const int q_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));  // as of V
  const int k_offset = Q::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const float scale = params.softmax_scale_log2;
  auto& k = shared.k[warp_id];
  auto& v = shared.v[warp_id];
  const int begin = first_tile + warp_id;
  const auto stage_of = [&](int kv_tile) { return (kv_tile - first_tile) / NUM_WARPS % NUM_STAGES; };
  // The page of a tile's key number lane_id % BLOCK_N. Entries behind the last key's may be garbage: that
  // key's page stands for them.
  const auto look_up = [&](int kv_tile) {
    const int key = kv_tile * BLOCK_N + lane_id % BLOCK_N;
    return PAGED && begin < end ? params.page_of(batch, min(key, keys.kv_len - 1)) : batch;
  };
  const auto load_kv_async = [&](int kv_tile, int page) {
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
    const auto load_async = [&](auto& to, const View<const Element>& from) {
      if (!PAGED || params.page_table.page_size >= BLOCK_N) {  // the tile is one piece, in one page
        const int in_block = PAGED ? params.row_in_page(first_key) : first_key;
        const Element* const first = from.head(page, kv_head) + in_block * from.row_stride;
        load_rows_async(to, keys.kv_len - first_key, lane_id, 32,
                        [&](int row) { return first + row * from.row_stride; });
      } else {
        load_rows_async(to, keys.kv_len - first_key, lane_id, 32, [&](int row) {
          const int page_of_row = __shfl_sync(0xffffffff, page, row);
          return from.head(page_of_row, kv_head) + params.row_in_page(first_key + row) * from.row_stride;
        });
      }
    };
    load_async(k[stage], params.k);
    load_async(v[stage], params.v);
  };

  int pages[NUM_STAGES];  // of the first tiles: their entries are on the way at a time
#pragma unroll
  for (int i = 0; i < NUM_STAGES; ++i) pages[i] = look_up(begin + i * NUM_WARPS);

  load_rows_async(q, num_rows, threadIdx.x, 32 * NUM_WARPS, [&](int row) {
    return params.q_head(batch, rows.head(first_row + row)) +
           rows.query(first_row + row) * params.q.row_stride;
  });
  cp_async_commit();
#pragma unroll
  for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
    const int kv_tile = begin + stage * NUM_WARPS;
    if (kv_tile < end) load_kv_async(kv_tile, pages[stage]);
    cp_async_commit();
  }
  meanwhile();
  cp_async_wait<NUM_STAGES - 1>();  // this thread's part of Q is there; K and V may still be on their way
  __syncthreads();                  // every thread's is
  uint32_t frag_q[K_STEPS][1][4];
  load_q(frag_q, q, q_offset);
  __syncthreads();  // all warps have read Q: warp 0 fills its place. From here on, none waits for another

  WarpResult<HEAD_DIM> result;
  auto& [row_base, row_sum, acc_o] = result;
  int next_page = pages[NUM_STAGES - 1];
  for (int kv_tile = begin; kv_tile < end; kv_tile += NUM_WARPS) {
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
    cp_async_wait<NUM_STAGES - 2>();  // this lane's part of K and V is there
    __syncwarp();  // every lane's is; and all lanes are done with the stage that is filled next
    const int next = kv_tile + (NUM_STAGES - 1) * NUM_WARPS;
    if (next < end) load_kv_async(next, next_page);
    cp_async_commit();
    next_page = look_up(next + NUM_WARPS);  // it comes while the warp computes

    float acc_s[1][BLOCK_N / 8][4] = {};
    mma_qk<Element>(acc_s, frag_q, q, q_offset, k[stage], k_offset, 0);
    const bool needs_mask = keys.needs_mask(first_key, BLOCK_N);
    const float growth = growth_bound(acc_s, row_base, scale);
    if (__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) {
      if (needs_mask)
        mask_scores<CAUSAL>(acc_s, rows, keys.kv_len, first_row + accumulator_row(lane_id),
                            first_key + accumulator_col(lane_id));
      rescale(acc_s, scale, row_base, row_sum, acc_o);
    }
    mma_pv<Element>(acc_o, acc_s, scale, row_base, row_sum, v[stage], q_offset, 0);
  }
  return result;
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
