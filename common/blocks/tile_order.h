// In which order tiles of queries are computed: the longest first, by groups of heads whose K and V stay in
// the L2 cache. Spelled out in v14_longest_first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The part of L2 for K and V of the heads that are computed at the same time. An A100 has 40 MB, an H200 60
// MB.
constexpr int64_t kL2Bytes = 32 << 20;

// On the host: how many heads make up a group. Without a mask all tiles are alike: head after head.
template <int HEAD_DIM, bool CAUSAL, typename Element>
int heads_per_group(const AttentionParams<Element>& params) {
  if (!CAUSAL) return 1;
  const int64_t kv_bytes = 2 * sizeof(Element) * HEAD_DIM * int64_t(params.seqlen_kv);
  return int(std::clamp<int64_t>(kL2Bytes / kv_bytes, 1, params.batch * params.num_heads_q));
}

struct QueryTile {
  int first_query, head, batch;
};

// Tile number `index` of the tiles of BLOCK_M rows of all heads and batches. In a group the last rows of its
// heads come first, which see the most keys under a causal mask; then the rows before those, and so on.
template <int BLOCK_M, typename Element>
__device__ QueryTile query_tile(const AttentionParams<Element>& params, int index, int heads_per_group) {
  const int num_m_tiles = ceil_div(params.seqlen_q, BLOCK_M);
  const int group_head = index / (heads_per_group * num_m_tiles) * heads_per_group;
  const int num_heads =
      min(heads_per_group, params.batch * params.num_heads_q - group_head);  // of this group
  const int in_group = index % (heads_per_group * num_m_tiles);
  const int head = group_head + in_group % num_heads;
  return {.first_query = (num_m_tiles - 1 - in_group / num_heads) * BLOCK_M,
          .head = head % params.num_heads_q,
          .batch = head / params.num_heads_q};
}

// The same order for CTAs that take tiles as they become free. The last group is larger, because it decides
// how evenly the CTAs finish: in a larger group the long first tiles are a smaller part of the work.
struct TileOrder {
  int group_size, last_group_size;  // heads
};

// On the host.
template <int HEAD_DIM, bool CAUSAL, typename Element>
TileOrder tile_order(const AttentionParams<Element>& params) {
  const int num_heads = params.batch * params.num_heads_q;
  if (!CAUSAL) return {1, 1};
  const int64_t kv_bytes = 2 * sizeof(Element) * HEAD_DIM * int64_t(params.seqlen_kv);
  const int s = params.seqlen_kv;
  const auto heads_in = [&](int64_t megabytes) {
    return int(std::clamp<int64_t>((megabytes << 20) / kv_bytes, 1, num_heads));
  };
  const int group_size = heads_in(s <= 1024 ? 8 : 32);
  const int last = heads_in(s <= 512 ? 16 : s <= 1024 ? 32 : s <= 8192 ? 64 : 128) / group_size * group_size;
  return {group_size, std::min(num_heads, num_heads % group_size + last)};
}

template <int BLOCK_M, typename Element>
__device__ QueryTile query_tile(const AttentionParams<Element>& params, int index, const TileOrder& order) {
  const int num_m_tiles = ceil_div(params.seqlen_q, BLOCK_M);
  const int num_heads = params.batch * params.num_heads_q;
  const int last_group_head = num_heads - order.last_group_size;
  const bool is_last = index >= last_group_head * num_m_tiles;
  const int group_size = is_last ? order.last_group_size : order.group_size;
  const int group_head = is_last ? last_group_head : index / (group_size * num_m_tiles) * group_size;
  const int in_group = index - group_head * num_m_tiles;
  const int head = group_head + in_group % group_size;
  return {.first_query = (num_m_tiles - 1 - in_group / group_size) * BLOCK_M,
          .head = head % params.num_heads_q,
          .batch = head / params.num_heads_q};
}

// Tile number `index` of num_tiles, with the number of its batch's keys. If there is no such tile, `batch` is
// kNoMore.
struct Work {
  int first_query, head, batch, kv_len;
};
constexpr int kNoMore = -1;

template <int BLOCK_M, typename Element>
__device__ Work work_of(const AttentionParams<Element>& params, int index, const TileOrder& order,
                        int num_tiles) {
  if (index >= num_tiles) return {0, 0, kNoMore, 0};
  const QueryTile tile = query_tile<BLOCK_M>(params, index, order);
  return {tile.first_query, tile.head, tile.batch, params.kv_length(tile.batch)};
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
