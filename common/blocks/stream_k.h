// Stream-K: the keys of all tiles of rows on one line, and the piece of it that each CTA has. Spelled out in
// v36_stream_k.
#pragma once

#include "common/attention.h"
#include "common/blocks/divisor.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The line holds one batch after another. A batch has its heads of K and V in order, a head its tiles of
// rows, and a tile units_of_start() units without keys, then one unit for each UNIT keys.
template <int UNIT>
struct Line {
  Divisor num_ctas, tiles_per_batch, tiles_per_head;
  Divisor units_per_tile;  // without kv_lengths

  // The first unit of a CTA: cta * num_units / num_ctas, rounded down. If there are fewer units than CTAs,
  // the last CTAs have none.
  __device__ int begin_of(int cta, int num_units) const {
    if (num_units <= int(num_ctas)) return min(cta, num_units);
    return cta * (num_units / num_ctas) + cta * (num_units % num_ctas) / num_ctas;
  }
  // The CTA whose piece has a unit.
  __device__ int cta_of(int unit, int num_units) const {
    if (num_units <= int(num_ctas)) return unit;
    return int(((unit + 1) * int64_t(int(num_ctas)) - 1) / num_units);
  }
};

// Units of a tile of rows that stand for what its start and end cost: to load Q, to wait for the first keys,
// to merge. Where all sequences are equally long, every CTA has the same share of that.
template <typename Params>
__device__ int units_of_start(const Params& params) {
  return params.kv_lengths != nullptr ? 1 : 0;
}
// Units of a tile of rows that have its keys. Without keys there is one, because a CTA must store O and LSE.
template <int UNIT>
__host__ __device__ int units_of_keys(int kv_len) {
  return kv_len > UNIT ? ceil_div(kv_len, UNIT) : 1;
}
template <int UNIT, typename Params>
__device__ int units_of_tile(const Params& params, int batch) {
  return units_of_start(params) + units_of_keys<UNIT>(params.kv_length(batch));
}

struct Place {
  int batch;
  int tile;  // of rows, of this batch
  int unit;  // of this tile
};
struct Piece {
  int begin, end;
  int num_units;  // of the whole line
  Place place;    // of its first unit
};

// This CTA's piece of the line. All lanes of a warp must call it.
template <int UNIT, typename Params>
__device__ Piece find_piece(const Params& params, const Line<UNIT>& line) {
  const int tiles = int(line.tiles_per_batch), lane_id = threadIdx.x % 32, cta = blockIdx.x;
  if (params.kv_lengths == nullptr) {
    const int num_units = params.batch * tiles * int(line.units_per_tile);
    const int begin = line.begin_of(cta, num_units), tile = begin / line.units_per_tile;
    return {begin,
            line.begin_of(cta + 1, num_units),
            num_units,
            {tile / line.tiles_per_batch, tile % line.tiles_per_batch, begin % line.units_per_tile}};
  }
  // Each lane adds up the units of some batches, and then the lanes add up their sums.
  const int batches_per_lane = ceil_div(params.batch, 32);
  int units = 0;
  for (int i = 0; i < batches_per_lane; ++i)
    if (const int batch = lane_id * batches_per_lane + i; batch < params.batch)
      units += tiles * units_of_tile<UNIT>(params, batch);
  int lane_end = units;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(0xffffffff, lane_end, lanes);
    if (lane_id >= lanes) lane_end += before;
  }
  const int num_units = __shfl_sync(0xffffffff, lane_end, 31);
  const int begin = line.begin_of(cta, num_units), end = line.begin_of(cta + 1, num_units);
  if (begin == end) return {begin, end, num_units, {}};

  // The batch is one of those of the first lane whose units end after `begin`.
  const int lane = __ffs(__ballot_sync(0xffffffff, lane_end > begin)) - 1;
  int batch = lane * batches_per_lane, in_batch = begin - __shfl_sync(0xffffffff, lane_end - units, lane);
  int of_tile = units_of_tile<UNIT>(params, batch);
  while (in_batch >= tiles * of_tile) {
    in_batch -= tiles * of_tile;
    of_tile = units_of_tile<UNIT>(params, ++batch);
  }
  return {begin, end, num_units, {batch, in_batch / of_tile, in_batch % of_tile}};
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
