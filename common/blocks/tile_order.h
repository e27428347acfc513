// In which order tiles of queries are computed: the longest first, by groups of heads whose K and V stay in
// the L2 cache. Spelled out in v14_longest_first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Of L2, for K and V of the heads that are computed at a time. An A100 has 40 MB, an H200 60 MB.
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

// The tile that comes as number `index`, of all heads' and batches' tiles of BLOCK_M rows: in a group first
// the last rows of its heads, which see the most keys under a causal mask, then the rows before those, and so
// on.
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

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
