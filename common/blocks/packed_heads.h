// The query heads that share a head of K and V as rows of one tile: which query of which head a row is, how
// the rows are loaded, and which keys they do not see. Spelled out in v29_packed_heads.
#pragma once

#include "common/blocks/accumulator.h"
#include "common/blocks/key_range.h"
#include "common/cp_async.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The rows of a head of K and V: the queries of all heads that share it. Group is int, or v36's Divisor;
// Cache is the type of K and V.
template <typename Element, typename Group = int, typename Cache = Element>
struct PackedRows {
  const AttentionParams<Element, Cache>& params;
  int kv_head;
  Group group;  // query heads that share it

  __device__ PackedRows(const AttentionParams<Element, Cache>& params, int kv_head)
      : PackedRows(params, kv_head, params.num_heads_q / params.num_heads_kv) {}
  __device__ PackedRows(const AttentionParams<Element, Cache>& params, int kv_head, const Group& group)
      : params(params), kv_head(kv_head), group(group) {}

  __device__ int count() const { return params.seqlen_q * int(group); }
  __device__ int head(int row) const { return kv_head * int(group) + row % group; }
  __device__ int query(int row) const { return row / group; }
};

// On the host: the number of tiles of block_m rows for a head of K and V.
inline int num_packed_tiles(int num_heads_q, int num_heads_kv, int seqlen_q, int block_m) {
  return int(ceil_div(int64_t(seqlen_q) * (num_heads_q / num_heads_kv), int64_t(block_m)));
}

// The keys that some of these rows see.
template <bool CAUSAL, typename Element, typename Group, typename Cache>
__device__ KeyRange key_range(const PackedRows<Element, Group, Cache>& rows, int batch, int first_row,
                              int num_rows) {
  const int first_query = rows.query(first_row);
  const int num_queries = rows.query(first_row + num_rows - 1) - first_query + 1;
  return key_range<CAUSAL>(rows.params, batch, first_query, num_queries);
}

// Scores of keys that a row does not see become -inf. `row` and `key` are those of the lane's first element.
template <bool CAUSAL, int S_TILES, typename Element, typename Group, typename Cache>
__device__ void mask_scores(float (&acc_s)[1][S_TILES][4], const PackedRows<Element, Group, Cache>& rows,
                            int kv_len, int row, int key) {
#pragma unroll
  for (int i = 0; i < S_TILES * 4; ++i) {
    const int query = rows.query(row + i / 2 % 2 * 8);
    if (key + i / 4 * kAccumulatorCols + i % 2 >= rows.params.template visible_keys<CAUSAL>(query, kv_len))
      acc_s[0][i / 4][i % 4] = -INFINITY;
  }
}

// `num_threads` threads start to copy a tile's rows, each row from address_of(row). Rows at or beyond
// num_rows become zero.
template <typename Tile, typename AddressOf>
__device__ void load_rows_async(Tile& tile, int num_rows, int thread, int num_threads, AddressOf address_of) {
  constexpr int CHUNK_COLS = 16 / sizeof(typename Tile::Element);  // 16 bytes
  constexpr int CHUNKS = Tile::COLS / CHUNK_COLS;                  // of a row
#pragma unroll
  for (int i = thread; i < Tile::ROWS * CHUNKS; i += num_threads) {
    const int row = i / CHUNKS, d = i % CHUNKS * CHUNK_COLS;
    cp_async_16_zfill(tile.at(Tile::offset_of(row, d), 0, 0), address_of(row) + d, row < num_rows);
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
