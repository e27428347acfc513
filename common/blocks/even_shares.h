// Stream-K for tiles of rows of any kind: the keys of all tiles lie on one line, and each CTA gets an equal
// piece of it. Spelled out in v36_stream_k; the bundles, and that no share is tiny, are new in
// v37_even_shares.
//
// The line holds one batch after another. A batch has its heads in order, a head its bundles of tiles of
// rows, and a bundle `start` units without keys, then one unit for each tile of keys. The tiles of a bundle
// are computed abreast: by as many CTAs, a slot of the GPU, which meet the same keys at the same time. So
// memory is read once for all of them.
//
// Where two pieces meet within a bundle, but next to its edge, they meet at its edge: a tile less is shared.
// A short bundle is not shared at all. To share a tile costs as much as some units.
#pragma once

#include <algorithm>

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

constexpr int kLargestMargin = 2;  // units, of Line::margin()
constexpr int kNeverShared = 4;    // units of a bundle that is not shared

struct Line {
  int heads;         // of a batch
  int tile_queries;  // queries of a tile of rows
  int block_n;       // keys of a tile
  int tiles;         // of rows, of a head
  int abreast;       // tiles of a bundle
  int bundles;       // of a head
  int start;         // units that stand for what a bundle's start and end cost
  int slots;         // pieces of the line
  int head_units;    // of a head, if all batches have as many keys

  __device__ int slot() const { return blockIdx.x / abreast; }  // of this CTA
  __device__ int rank() const { return blockIdx.x % abreast; }  // and its number in the slot

  // The first unit of a slot's piece. If there are fewer units than slots, the last slots have none.
  __device__ int begin_of(int slot, int num_units) const {
    if (num_units <= slots) return min(slot, num_units);
    return int(unsigned(slot) * unsigned(num_units) / unsigned(slots));
  }
  // How near to a bundle's edge two pieces do not meet: about half a piece. Between the unit without keys and
  // the first one with keys they never meet.
  __device__ int margin(int num_units) const {
    return max(start, min(kLargestMargin, (num_units + slots / 2) / (2 * slots)));
  }
  // The slot whose piece has a unit.
  __device__ int slot_of(int unit, int num_units) const {
    if (num_units <= slots) return unit;
    return int((unsigned(unit + 1) * unsigned(slots) - 1) / unsigned(num_units));
  }
};
constexpr int64_t kMaxLine = 1 << 22;  // units: begin_of() and slot_of() multiply them by at most 512 slots

// Tiles of keys that a tile of rows sees; at least one, because a CTA must store O and LSE.
template <bool CAUSAL, typename Element>
__host__ __device__ int key_tiles(const AttentionParams<Element>& params, const Line& line, int kv_len,
                                  int tile) {
  const int end_query = min((tile + 1) * line.tile_queries, params.seqlen_q);
  const int end = CAUSAL ? min(max(end_query + kv_len - params.seqlen_q, 0), kv_len) : kv_len;
  return max(1, ceil_div(end, line.block_n));
}
// Of a bundle there are as many units as its last tile needs, which sees the most keys.
template <bool CAUSAL, typename Element>
__host__ __device__ int units_of_bundle(const AttentionParams<Element>& params, const Line& line, int kv_len,
                                        int bundle) {
  const int last_tile = min((bundle + 1) * line.abreast, line.tiles) - 1;
  return line.start + key_tiles<CAUSAL>(params, line, kv_len, last_tile);
}
template <bool CAUSAL, typename Element>
__host__ __device__ int units_of_head(const AttentionParams<Element>& params, const Line& line, int kv_len) {
  if (!CAUSAL) return line.bundles * units_of_bundle<CAUSAL>(params, line, kv_len, 0);
  int units = 0;
  for (int bundle = 0; bundle < line.bundles; ++bundle)
    units += units_of_bundle<CAUSAL>(params, line, kv_len, bundle);
  return units;
}

// Things in a row, of which thing number i has units_of(i) units. All lanes of a warp call it: each adds up
// the units of some things, and then the lanes add up their sums.
template <typename UnitsOf>
struct UnitCounter {
  const int num_things, per_lane;
  const UnitsOf units_of;
  int lane_units = 0, lane_end;  // of this lane's things; up to their end

  __device__ UnitCounter(int num_things, UnitsOf units)
      : num_things(num_things), per_lane((num_things + 31) / 32), units_of(units) {
    const int lane_id = threadIdx.x % 32;
    for (int i = lane_id * per_lane; i < min((lane_id + 1) * per_lane, num_things); ++i)
      lane_units += units_of(i);
    lane_end = lane_units;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int before = __shfl_up_sync(0xffffffff, lane_end, lanes);
      if (lane_id >= lanes) lane_end += before;
    }
  }
  __device__ int all() const { return __shfl_sync(0xffffffff, lane_end, 31); }
  // The thing that has unit `unit`, which becomes the unit's number in it.
  __device__ int find(int& unit) const {
    const int lane = __ffs(__ballot_sync(0xffffffff, lane_end > unit)) - 1;
    unit -= __shfl_sync(0xffffffff, lane_end - lane_units, lane);
    int thing = lane * per_lane;
    for (int units = units_of(thing); unit >= units; units = units_of(++thing)) unit -= units;
    return thing;
  }
};

struct Piece {
  int begin, end;                 // on the line
  int num_units, margin;          // of the whole line
  int batch, head, bundle, unit;  // where it begins
};

// The piece of this CTA's slot. All lanes of a warp call it.
template <bool CAUSAL, typename Element>
__device__ Piece find_piece(const AttentionParams<Element>& params, const Line& line) {
  Piece piece{};
  const auto find_head = [&](int head_units) {
    piece.head = piece.unit / head_units;
    piece.unit %= head_units;
  };
  if (params.kv_lengths == nullptr) {
    const int batch_units = line.heads * line.head_units;
    piece.num_units = params.batch * batch_units;
    piece.begin = line.begin_of(line.slot(), piece.num_units);
    piece.batch = piece.begin / batch_units;
    piece.unit = piece.begin % batch_units;
    find_head(line.head_units);
  } else {
    const UnitCounter batches(params.batch, [&](int batch) {
      return line.heads * units_of_head<CAUSAL>(params, line, params.kv_length(batch));
    });
    piece.num_units = batches.all();
    piece.unit = piece.begin = line.begin_of(line.slot(), piece.num_units);
    if (piece.begin == piece.num_units) return piece;  // with piece.end = 0
    piece.batch = batches.find(piece.unit);
    find_head(units_of_head<CAUSAL>(params, line, params.kv_length(piece.batch)));
  }
  piece.end = line.begin_of(line.slot() + 1, piece.num_units);
  piece.margin = line.margin(piece.num_units);
  if (line.bundles > 1 && piece.begin < piece.end) {
    const UnitCounter bundles(line.bundles, [&](int bundle) {
      return units_of_bundle<CAUSAL>(params, line, params.kv_length(piece.batch), bundle);
    });
    piece.bundle = bundles.find(piece.unit);
  }
  return piece;
}

// What a CTA does with a tile of rows.
struct Share {
  int batch;  // kNoMore: there are no more
  int head, tile, kv_len;
  int begin, end;             // its tiles of keys
  int first_slot, last_slot;  // that have some of the tile's keys
  bool is_last;               // of the CTA

  __device__ int num_parts() const { return last_slot - first_slot + 1; }
};

// A CTA's shares, one after the other.
template <bool CAUSAL, typename Element>
class Shares {
 public:
  __device__ Shares(const AttentionParams<Element>& params, const Line& line, const Piece& piece)
      : params_(params), line_(line), piece_(piece), unit_(piece.begin) {}

  // False if there is no other one.
  __device__ bool next(Share& share) {
    while (unit_ < piece_.end) {
      const int kv_len = params_.kv_length(piece_.batch), tile = piece_.bundle * line_.abreast + line_.rank();
      const int bundle_begin = unit_ - piece_.unit, keys_begin = bundle_begin + line_.start;
      const int units = units_of_bundle<CAUSAL>(params_, line_, kv_len, piece_.bundle);
      const int bundle_end = bundle_begin + units, end = min(piece_.end, bundle_end);
      const int num_keys = tile < line_.tiles ? key_tiles<CAUSAL>(params_, line_, kv_len, tile) : 0;

      // The slots that keep a share of the bundle, and which of them have keys of this tile.
      const int margin = units <= kNeverShared ? kNeverShared : piece_.margin;
      const int before = min(margin, units / 2), after = min(margin, (units - 1) / 2);
      const int first = line_.slot_of(bundle_begin + before, piece_.num_units);
      const int last = line_.slot_of(bundle_end - 1 - after, piece_.num_units);
      const int of_last_key = line_.slot_of(keys_begin + max(num_keys, 1) - 1, piece_.num_units);
      const int slot = line_.slot();
      share = {piece_.batch,
               piece_.head,
               tile,
               kv_len,
               slot == first ? 0 : unit_ - keys_begin,
               slot == last ? num_keys : min(num_keys, end - keys_begin),
               first,
               max(first, min(last, of_last_key)),
               piece_.end - end <= piece_.margin};
      advance(end);
      if (first <= slot && slot <= last && share.begin < share.end) return true;
    }
    return false;
  }

 private:
  __device__ void advance(int unit) {
    unit_ = unit;
    piece_.unit = 0;
    if (++piece_.bundle < line_.bundles) return;
    piece_.bundle = 0;
    if (++piece_.head < line_.heads) return;
    piece_.head = 0;
    ++piece_.batch;
  }

  const AttentionParams<Element>& params_;
  const Line& line_;
  Piece piece_;  // from unit_ on
  int unit_;
};

// On the host: are there so few keys that no tile is shared? Then no CTA leaves a part.
inline bool shares_nothing(const Line& line, int seqlen_kv) {
  return line.start + ceil_div(std::max(seqlen_kv, 1), line.block_n) <= kNeverShared;
}

// On the host: how many slots share num_bundles bundles, if there is room for that many. Equally many slots
// for each bundle, or equally many bundles for each slot, where that leaves at most 1 / 16 of the room empty:
// fewer tiles are shared then.
inline int choose_slots(int64_t num_bundles, int room) {
  const int64_t rounds = ceil_div(num_bundles, int64_t(room));
  const int64_t even = num_bundles <= room         ? room / num_bundles * num_bundles
                       : num_bundles % rounds == 0 ? num_bundles / rounds
                                                   : 0;
  return int(even * 16 >= room * 15 ? even : room);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
