// The keys of a tile of queries, divided among parts that are computed independently of each other: which
// keys belong to which part, and where its result lies in the workspace. Spelled out in v28_split_keys.
#pragma once

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

struct TileRange {
  int begin, end;
};
// The tiles of one part, of num_tiles in all. Every part has the same number, and the first parts have one
// more if the division leaves a remainder.
__device__ inline TileRange tiles_of_part(int num_tiles, int part, int num_parts) {
  const int tiles_per_part = num_tiles / num_parts, remainder = num_tiles % num_parts;
  const int begin = part * tiles_per_part + min(part, remainder);
  return {begin, begin + tiles_per_part + (part < remainder ? 1 : 0)};
}

// The result of a part for one query row: the base that P is relative to, in units of log2, and the sum of P.
// For a part without keys the sum is 0, and nothing else is written.
struct Softmax {
  float base, sum;
};

// The results of all parts: for each row of O num_parts of them, one after another.
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

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
