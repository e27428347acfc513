// Which keys a tile of queries sees. Spelled out in v02_smem_tiles; with this a mask is exact, and costs
// nothing in the tiles that every row sees completely.
#pragma once

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

struct KeyRange {
  int kv_len;        // of this batch: what lies beyond is padding
  int end;           // no row of the tile sees a key at or beyond this one
  int unmasked_end;  // every row of the tile sees all keys before this one

  __device__ int num_tiles(int block_n) const { return ceil_div(end, block_n); }
  // The first key of a tile. The last tile ends with the last key, so that what lies beyond, which may be
  // NaN, is not loaded; it repeats keys of the previous tile. Spelled out in v16_producer_warpgroup.
  __device__ int first_key(int kv_tile, int block_n) const {
    return min(kv_tile * block_n, kv_len - block_n);
  }
  // Does some row not see all of these keys?
  __device__ bool needs_mask(int first_key, int block_n) const { return first_key + block_n > unmasked_end; }
};

// The keys that the query rows first_query .. first_query + block_m - 1 see, without rows beyond the last
// one.
template <bool CAUSAL, typename Element, typename Cache>
__device__ KeyRange key_range_within(const AttentionParams<Element, Cache>& params, int kv_len,
                                     int first_query, int block_m) {
  const int last_query = min(first_query + block_m, params.seqlen_q) - 1;
  return {.kv_len = kv_len,
          .end = params.template visible_keys<CAUSAL>(last_query, kv_len),
          .unmasked_end = params.template visible_keys<CAUSAL>(first_query, kv_len)};
}
template <bool CAUSAL, typename Element, typename Cache>
__device__ KeyRange key_range(const AttentionParams<Element, Cache>& params, int batch, int first_query,
                              int block_m) {
  return key_range_within<CAUSAL>(params, params.kv_length(batch), first_query, block_m);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
