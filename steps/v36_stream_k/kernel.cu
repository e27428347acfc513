// v36: the keys of all tiles of rows lie on one line, and each CTA gets an equal piece of it. However many
// tiles there are and however long each sequence is, no SM has more to do than the others.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "common/atomic_acq_rel.h"
#include "common/blocks/divisor.h"
#include "common/blocks/few_queries.h"
#include "common/blocks/one_launch.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 16;  // rows of a CTA and of each of its warps: what one product has
constexpr int BLOCK_N = 16;  // keys per tile; each warp has tiles of its own
constexpr int NUM_WARPS = 4;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int NUM_STAGES = 3;  // of K and V each: one is computed on while the others are filled
constexpr int CTAS_PER_SM = 2;
constexpr int MERGED_AT_ONCE = 16;         // parts of a row that are loaded at a time
constexpr int UNIT = NUM_WARPS * BLOCK_N;  // keys: a tile for each warp
template <typename Element, int HEAD_DIM>
struct SharedStorage {
  union {
    WarpTiles<Element, BLOCK_N, HEAD_DIM, NUM_WARPS, NUM_STAGES> tiles;
    WarpParts<NUM_WARPS, BLOCK_M, HEAD_DIM> parts;
  };
  bool is_last;  // was this CTA the last one to be counted for a tile of rows?
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// The line. The batches lie on it one behind another, of each batch its heads of K and V, of each head its
// tiles of rows, and of each tile units_of_start() units without keys and then one for each UNIT keys.
struct Line {
  Divisor num_ctas, tiles_per_batch, tiles_per_head;
  Divisor units_per_tile;  // without kv_lengths

  // The first unit of a CTA: cta * num_units / num_ctas, rounded down. If there are fewer units than CTAs,
  // the last CTAs have none.
  __device__ int begin_of(int cta, int num_units) const {
    if (num_units <= int(num_ctas)) return min(cta, num_units);
    return cta * (num_units / num_ctas) + cta * (num_units % num_ctas) / num_ctas;
  }
  // The CTA that has a unit.
  __device__ int cta_of(int unit, int num_units) const {
    if (num_units <= int(num_ctas)) return unit;
    return int(((unit + 1) * int64_t(int(num_ctas)) - 1) / num_units);
  }
};

// Of a tile of rows, without keys. They stand for what its start and end cost: Q, the way of its first keys,
// the merges. Where all sequences are equally long, every CTA has the same share of that.
template <typename Element>
__device__ int units_of_start(const AttentionParams<Element>& params) {
  return params.kv_lengths != nullptr ? 1 : 0;
}
// Of a tile of rows. Without keys there is one, for a CTA that stores O and LSE.
inline __host__ __device__ int units_of_keys(int kv_len) {
  return kv_len > UNIT ? ceil_div(kv_len, UNIT) : 1;
}
template <typename Element>
__device__ int units_of_tile(const AttentionParams<Element>& params, int batch) {
  return units_of_start(params) + units_of_keys(params.kv_length(batch));
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

// This CTA's piece of the line. Called by all lanes of a warp.
template <typename Element>
__device__ Piece find_piece(const AttentionParams<Element>& params, const Line& line) {
  const int tiles = int(line.tiles_per_batch), lane_id = threadIdx.x % 32, cta = blockIdx.x;
  if (params.kv_lengths == nullptr) {
    const int num_units = params.batch * tiles * int(line.units_per_tile);
    const int begin = line.begin_of(cta, num_units), tile = begin / line.units_per_tile;
    return {begin,
            line.begin_of(cta + 1, num_units),
            num_units,
            {tile / line.tiles_per_batch, tile % line.tiles_per_batch, begin % line.units_per_tile}};
  }
  // Each lane adds up some batches, and then the lanes add up what they have.
  const int batches_per_lane = ceil_div(params.batch, 32);
  int units = 0;
  for (int i = 0; i < batches_per_lane; ++i)
    if (const int batch = lane_id * batches_per_lane + i; batch < params.batch)
      units += tiles * units_of_tile(params, batch);
  int lane_end = units;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(0xffffffff, lane_end, lanes);
    if (lane_id >= lanes) lane_end += before;
  }
  const int num_units = __shfl_sync(0xffffffff, lane_end, 31);
  const int begin = line.begin_of(cta, num_units), end = line.begin_of(cta + 1, num_units);
  if (begin == end) return {begin, end, num_units, {}};

  // The first lane that ends behind `begin` has the batch among its own.
  const int lane = __ffs(__ballot_sync(0xffffffff, lane_end > begin)) - 1;
  int batch = lane * batches_per_lane, in_batch = begin - __shfl_sync(0xffffffff, lane_end - units, lane);
  int of_tile = units_of_tile(params, batch);
  while (in_batch >= tiles * of_tile) {
    in_batch -= tiles * of_tile;
    of_tile = units_of_tile(params, ++batch);
  }
  return {begin, end, num_units, {batch, in_batch / of_tile, in_batch % of_tile}};
}

// PAGED: a page table says where K and V are. The kernel without it has none of that in its loop.
template <typename Element, int HEAD_DIM, bool CAUSAL, bool PAGED>
__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM)
    attention_kernel(const AttentionParams<Element> params, const Partials<HEAD_DIM> partials,
                     const Line line, const Divisor group) {
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  // The CTAs first_cta .. last_cta share a tile's keys. Their parts of a row lie BLOCK_M rows apart. No other
  // tile has the same places: its first CTA is this one's last, or a later one.
  const auto place_of_part = [&](int first_cta, int cta, int row) {
    return int64_t(first_cta + cta) * BLOCK_M + row;
  };
  // Counts this CTA; the last one that is counted merges what all have left.
  const auto finish = [&](const RowTile& tile, int first_cta, int last_cta) {
    if (first_cta == last_cta) return;
    // What all threads have written up to the last barrier comes before the count, and what other CTAs left
    // before they were counted is read after it.
    const unsigned last = last_cta - first_cta;
    if (threadIdx.x == 0) shared.is_last = atomic_inc_acq_rel(&params.counters[first_cta], last) == last;
    __syncthreads();  // is_last is there, before the other threads read it
    if (shared.is_last)
      merge_ctas<MERGED_AT_ONCE, NUM_WARPS, BLOCK_M>(
          partials, PackedRows(params, tile.kv_head, group), tile.batch, tile.first_row, tile.num_rows,
          last + 1, [&](int row) { return place_of_part(first_cta, first_cta, row); });
  };

  const Piece piece = find_piece(params, line);
  if (piece.begin == piece.end) return;  // there are fewer units than CTAs
  auto [batch, tile_of_batch, unit_of_tile] = piece.place;
  RowTile unfinished = {};
  int first_cta = 0, last_cta = 0;  // of the unfinished tile: no CTA shares it yet
  for (int unit = piece.begin; unit < piece.end;) {
    const int first_row = tile_of_batch % line.tiles_per_head * BLOCK_M;
    const int kv_head = tile_of_batch / line.tiles_per_head;
    const PackedRows rows(params, kv_head, group);
    const RowTile tile{batch, kv_head, first_row, min(BLOCK_M, rows.count() - first_row)};
    const KeyRange keys = key_range<CAUSAL>(rows, batch, first_row, tile.num_rows);
    const int tile_begin = unit - unit_of_tile, tile_end = tile_begin + units_of_tile(params, batch);
    const int keys_begin = tile_begin + units_of_start(params);
    const int first_unit = max(unit, keys_begin), end_unit = min(piece.end, tile_end);
    unit = end_unit;
    unit_of_tile = 0;
    if (++tile_of_batch == int(line.tiles_per_batch)) tile_of_batch = 0, ++batch;
    if (first_unit >= end_unit) break;  // the piece ends before the tile's first key

    const int first_kv_tile = (first_unit - keys_begin) * NUM_WARPS;
    const int end_kv_tile = min(first_kv_tile + (end_unit - first_unit) * NUM_WARPS, keys.num_tiles(BLOCK_N));
    // While this tile's first keys are on their way, the tile before is finished.
    const WarpResult<HEAD_DIM> result =
        attend_few_queries<CAUSAL, PAGED>(shared.tiles, rows, tile, keys, first_kv_tile, end_kv_tile,
                                          [&] { finish(unfinished, first_cta, last_cta); });

    unfinished = tile;
    first_cta = keys_begin >= piece.begin ? blockIdx.x : line.cta_of(keys_begin, piece.num_units);
    last_cta = tile_end <= piece.end ? blockIdx.x : line.cta_of(tile_end - 1, piece.num_units);
    // Each warp writes its part to shared memory, where K and V were.
    __syncthreads();  // all warps have read their last tiles, which the parts overwrite; no copy is on its
                      // way
    shared.parts.store(threadIdx.x / 32, threadIdx.x % 32, result.acc_o[0], result.row_base[0],
                       result.row_sum[0]);
    __syncthreads();  // all warps' parts are there, before another warp merges them
    merge_warps(shared.parts, partials, rows, tile.batch, first_row, tile.num_rows, first_cta == last_cta,
                [&](int row) { return place_of_part(first_cta, blockIdx.x, row); });
    __syncthreads();  // they are merged, before the next tile's keys overwrite them and the CTA is counted
  }
  finish(unfinished, first_cta, last_cta);
}

// Of an AttentionCall or its AttentionParams: tiles of rows of a head, and of all heads and batches.
int tiles_per_head(const auto& call) {
  return num_packed_tiles(call.num_heads_q, call.num_heads_kv, call.seqlen_q, BLOCK_M);
}
int64_t num_tiles(const auto& call) { return int64_t(tiles_per_head(call)) * call.num_heads_kv * call.batch; }

constexpr int kCtasPerSm[] = {1, 2, 4};  // by configuration
// More parts of a row would cost the CTA that merges them more than their CTAs save.
constexpr int kMaxParts = 64;

int num_ctas(const auto& call) {
  const int64_t tiles = num_tiles(call), room = int64_t(num_sms()) * kCtasPerSm[call.configuration];
  // As many for each tile, or as many tiles for each, where that leaves at most 1 / 16 of the room empty and
  // the sequences are equally long: then fewer tiles are shared.
  const int64_t rounds = ceil_div(tiles, room);
  const int64_t even = tiles <= room ? room / tiles * tiles : tiles % rounds == 0 ? tiles / rounds : 0;
  const int64_t ctas = even * 16 >= room * 15 ? even : room;
  return int(std::min({ctas, tiles * kMaxParts, tiles * units_of_keys(call.seqlen_kv)}));
}

// At D = 128 one CTA requests as many bytes as keep an SM busy, and two are better where there are many
// tiles. At D = 64 it takes two. Twice as many are better where some sequences may be short.
int choose_configuration(const AttentionCall& call) {
  const bool uneven = call.kv_lengths != nullptr && call.batch > 1;
  if (call.head_dim == 64) return uneven ? 2 : 1;
  return uneven || num_tiles(call) > num_sms() ? 1 : 0;
}

std::string refuses(const AttentionCall& call) {
  if (call.num_splits > 0) return "does not split all keys into as many parts";
  const bool fits = num_tiles(call) * (1 + units_of_keys(call.seqlen_kv)) <= std::numeric_limits<int>::max();
  return fits ? "" : "has more than 2^31 - 1 tiles of keys";
}

size_t workspace_bytes(const AttentionCall& call) {
  return size_t(num_ctas(call)) * 2 * BLOCK_M * (sizeof(Softmax) + call.head_dim * sizeof(float));
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const int ctas = num_ctas(params), num_parts = 2 * ctas * BLOCK_M, tiles = tiles_per_head(params);
  const auto kernel = params.page_table.pages != nullptr ? attention_kernel<Element, HEAD_DIM, CAUSAL, true>
                                                         : attention_kernel<Element, HEAD_DIM, CAUSAL, false>;
  auto* const o = static_cast<float(*)[HEAD_DIM]>(params.workspace);
  launch(kernel, dim3(ctas), dim3(NUM_THREADS), sizeof(SharedStorage<Element, HEAD_DIM>), stream, params,
         Partials<HEAD_DIM>{num_parts, reinterpret_cast<Softmax*>(o + num_parts), o},
         Line{Divisor(ctas), Divisor(tiles * params.num_heads_kv), Divisor(tiles),
              Divisor(units_of_keys(params.seqlen_kv))},
         Divisor(params.num_heads_q / params.num_heads_kv));
}

constexpr StepInfo kStep = {
    .title = "Stream-K: one line of all keys, and an equal piece of it for each CTA",
    .removes = "SMs that wait for another one, which has more keys",
    .part = Part::kDecode,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .configurations = {"ctas1", "ctas2", "ctas4"},
    .choose = choose_configuration,
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .pages = true,
    .refuses = refuses,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
