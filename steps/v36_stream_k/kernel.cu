// v36: the keys of all tiles of rows lie on one line, and each CTA gets an equal piece of it. However many
// tiles there are and however long each sequence is, no SM has more to do than the others.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "common/atomic_acq_rel.h"
#include "common/blocks/one_launch.h"
#include "common/blocks/packed_heads.h"
#include "common/blocks/products.h"
#include "common/cp_async.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 16;  // rows of a CTA and of each of its warps: the rows of one product
constexpr int BLOCK_N = 16;  // keys per tile; each warp has its own tiles
constexpr int NUM_WARPS = 4;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int NUM_STAGES = 3;  // of K and V each: one is computed on while the others are filled
constexpr int CTAS_PER_SM = 2;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int MERGED_AT_ONCE = 16;         // parts of a row that are loaded at a time
constexpr int UNIT = NUM_WARPS * BLOCK_N;  // keys: one tile for each warp

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  struct Tiles {
    SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128> k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
  };
  union {
    Tiles tiles;
    WarpParts<NUM_WARPS, BLOCK_M, HEAD_DIM> parts;
  };
  bool is_last;  // was this CTA the last one to be counted for a tile of rows?
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// Division by a number that the host knows. A GPU has no instruction that divides integers: where the
// compiler does not know the divisor, it takes about 20 instructions, most of which wait for the one before.
class Divisor {
 public:
  // On the host; value >= 1.
  explicit Divisor(int value)
      : value_(value),
        shift_(std::bit_width(unsigned(value) - 1)),
        factor_(uint32_t(((uint64_t(1) << (31 + shift_)) + value - 1) / value)) {}

  __device__ explicit operator int() const { return value_; }

  // For n >= 0: n * factor_ / 2^(31 + shift_), rounded down. Because factor_ was rounded up, this is too
  // large before it is rounded down, but by less than 1 / value_, so it does not reach the next integer.
  friend __device__ int operator/(int n, const Divisor& by) {
    return int(__umulhi(2u * unsigned(n), by.factor_) >> by.shift_);
  }
  friend __device__ int operator%(int n, const Divisor& by) { return n - n / by * by.value_; }

 private:
  int value_;
  int shift_;        // the smallest with 2^shift_ >= value_
  uint32_t factor_;  // 2^(31 + shift_) / value_, rounded up
};

// Where the keys are.

// The line holds one batch after another. A batch has its heads of K and V in order, a head its tiles of
// rows, and a tile units_of_start() units without keys, then one unit for each UNIT keys.
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
template <typename Element>
__device__ int units_of_start(const AttentionParams<Element>& params) {
  return params.kv_lengths != nullptr ? 1 : 0;
}
// Units of a tile of rows that have its keys. Without keys there is one, because a CTA must store O and LSE.
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

// This CTA's piece of the line. All lanes of a warp must call it.
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
  // Each lane adds up the units of some batches, and then the lanes add up their sums.
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

  // The batch is one of those of the first lane whose units end after `begin`.
  const int lane = __ffs(__ballot_sync(0xffffffff, lane_end > begin)) - 1;
  int batch = lane * batches_per_lane, in_batch = begin - __shfl_sync(0xffffffff, lane_end - units, lane);
  int of_tile = units_of_tile(params, batch);
  while (in_batch >= tiles * of_tile) {
    in_batch -= tiles * of_tile;
    of_tile = units_of_tile(params, ++batch);
  }
  return {begin, end, num_units, {batch, in_batch / of_tile, in_batch % of_tile}};
}

// What a CTA does with a tile of the packed rows of a head of K and V.

struct RowTile {
  int batch, kv_head, first_row, num_rows;
};

// All threads of the CTA call load(), compute() and leave(). PAGED: a page table says where K and V are.
// Without PAGED the loop has no code for pages.
template <typename Element, int HEAD_DIM, bool CAUSAL, bool PAGED>
struct Attend {
  static constexpr int K_STEPS = HEAD_DIM / MMA_K;
  static constexpr int S_TILES = BLOCK_N / MMA_N;
  static constexpr int O_TILES = HEAD_DIM / MMA_N;
  using Q = SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128>;

  SharedStorage<Element, HEAD_DIM>& shared;
  const PackedRows<Element, Divisor>& rows;
  const RowTile& tile;
  const KeyRange& keys;
  int first_tile, end;  // the CTA's tiles of keys are first_tile .. end - 1; a warp takes every NUM_WARPS-th

  int next_page = 0;                                // of the tile of keys that is requested next
  float row_base[1][2] = {{-INFINITY, -INFINITY}};  // of the lane's two rows
  float row_sum[1][2] = {};                         // of this lane's columns only
  float acc_o[1][O_TILES][4] = {};

  // Not members: the compiler unrolls the copies' loops only where it sees that a lane's number is below 32.
  __device__ static int warp_id() { return threadIdx.x / 32; }
  __device__ static int lane_id() { return threadIdx.x % 32; }

  __device__ int begin() const { return first_tile + warp_id(); }
  // A warp's tiles fill one stage after another, from stage 0 on.
  __device__ int stage_of(int kv_tile) const { return (kv_tile - first_tile) / NUM_WARPS % NUM_STAGES; }
  __device__ auto& k(int stage) const { return shared.tiles.k[warp_id()][stage]; }
  __device__ auto& v(int stage) const { return shared.tiles.v[warp_id()][stage]; }
  // The place of Q, until compute() has read it: load() leaves the last stage empty.
  __device__ Q& shared_q() const { return shared.tiles.v[0][NUM_STAGES - 1]; }

  // The page of a tile's key number lane_id() % BLOCK_N. Entries of the table after the last key's may be
  // garbage: that key's page stands for them.
  __device__ int look_up(int kv_tile) const {
    const int key = kv_tile * BLOCK_N + lane_id() % BLOCK_N;
    return PAGED && begin() < end ? rows.params.page_of(tile.batch, min(key, keys.kv_len - 1)) : tile.batch;
  }

  __device__ void load_kv_async(int kv_tile, int page) const {
    const AttentionParams<Element>& params = rows.params;
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
    const auto load_async = [&](auto& to, const View<const Element>& from) {
      if (!PAGED || params.page_table.page_size >= BLOCK_N) {  // the tile is one piece, in one page
        const int in_block = PAGED ? params.row_in_page(first_key) : first_key;
        const Element* const first = from.head(page, tile.kv_head) + in_block * from.row_stride;
        load_rows_async(to, keys.kv_len - first_key, lane_id(), 32,
                        [&](int row) { return first + row * from.row_stride; });
      } else {
        load_rows_async(to, keys.kv_len - first_key, lane_id(), 32, [&](int row) {
          const int page_of_row = __shfl_sync(0xffffffff, page, row);
          return from.head(page_of_row, tile.kv_head) + params.row_in_page(first_key + row) * from.row_stride;
        });
      }
    };
    load_async(k(stage), params.k);
    load_async(v(stage), params.v);
  }

  // Requests Q and each warp's first tiles of keys. No thread may still use the tiles in shared memory.
  __device__ void load() {
    int pages[NUM_STAGES];  // of the first tiles; all entries are requested before the first one is needed
#pragma unroll
    for (int i = 0; i < NUM_STAGES; ++i) pages[i] = look_up(begin() + i * NUM_WARPS);
    next_page = pages[NUM_STAGES - 1];

    load_rows_async(shared_q(), tile.num_rows, threadIdx.x, NUM_THREADS, [&](int row) {
      return rows.params.q_head(tile.batch, rows.head(tile.first_row + row)) +
             rows.query(tile.first_row + row) * rows.params.q.row_stride;
    });
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
      const int kv_tile = begin() + stage * NUM_WARPS;
      if (kv_tile < end) load_kv_async(kv_tile, pages[stage]);
      cp_async_commit();
    }
  }

  // Each warp computes on its tiles of keys.
  __device__ void compute() {
    const int q_offset = Q::offset_of(operand_row(lane_id()), operand_col(lane_id()));  // also that of V
    const int k_offset = Q::offset_of(k_operand_row(lane_id()), k_operand_col(lane_id()));
    const int acc_row = accumulator_row(lane_id()), acc_col = accumulator_col(lane_id());
    const float scale = rows.params.softmax_scale_log2;
    cp_async_wait<NUM_STAGES - 1>();  // this thread's part of Q has arrived; K and V may still be in flight
    __syncthreads();                  // every thread's part has
    uint32_t frag_q[K_STEPS][1][4];
    load_q(frag_q, shared_q(), q_offset);
    __syncthreads();  // all warps have read Q, whose place warp 0 fills. From here on, none waits for another

    for (int kv_tile = begin(); kv_tile < end; kv_tile += NUM_WARPS) {
      const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
      cp_async_wait<NUM_STAGES - 2>();  // this lane's part of K and V has arrived
      __syncwarp();  // every lane's part has, and all lanes are done with the stage that is filled next
      const int next = kv_tile + (NUM_STAGES - 1) * NUM_WARPS;
      if (next < end) load_kv_async(next, next_page);
      cp_async_commit();
      next_page = look_up(next + NUM_WARPS);  // it arrives while the warp computes

      float acc_s[1][S_TILES][4] = {};
      mma_qk<Element>(acc_s, frag_q, shared_q(), q_offset, k(stage), k_offset, 0);
      const bool needs_mask = keys.needs_mask(first_key, BLOCK_N);
      const float growth = growth_bound(acc_s, row_base, scale);
      if (__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) {
        if (needs_mask)
          mask_scores<CAUSAL>(acc_s, rows, keys.kv_len, tile.first_row + acc_row, first_key + acc_col);
        rescale(acc_s, scale, row_base, row_sum, acc_o);
      }
      mma_pv<Element>(acc_o, acc_s, scale, row_base, row_sum, v(stage), q_offset, 0);
    }
  }

  // Merges the warps' results. A CTA that has all keys of the tile stores O and LSE. Another one leaves its
  // part of each row at place_of(row) in the workspace.
  template <typename PlaceOf>
  __device__ void leave(const Partials<HEAD_DIM>& partials, bool has_all_keys, PlaceOf place_of) {
    // Each warp writes its part to shared memory, where K and V were.
    __syncthreads();  // all warps have read their last tiles, which the parts overwrite; no copy is under way
    shared.parts.store(warp_id(), lane_id(), acc_o[0], row_base[0], row_sum[0]);
    __syncthreads();  // all warps' parts are complete before another warp merges them
    merge_warps(shared.parts, partials, rows, tile.batch, tile.first_row, tile.num_rows, has_all_keys,
                place_of);
    __syncthreads();  // they are merged, before the next tile's keys overwrite them and the CTA is counted
  }
};

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
  // Counts this CTA; the last one that is counted merges the parts of all.
  const auto finish = [&](const RowTile& tile, int first_cta, int last_cta) {
    if (first_cta == last_cta) return;
    // One atomic operation counts the CTA and keeps the order: what all threads have written up to the last
    // barrier comes before it, and what other CTAs left before they were counted is read after it.
    const unsigned last = last_cta - first_cta;
    if (threadIdx.x == 0) shared.is_last = atomic_inc_acq_rel(&params.counters[first_cta], last) == last;
    __syncthreads();  // is_last is set before the other threads read it
    if (shared.is_last)
      merge_ctas<MERGED_AT_ONCE, NUM_WARPS, BLOCK_M>(
          partials, PackedRows(params, tile.kv_head, group), tile.batch, tile.first_row, tile.num_rows,
          last + 1, [&](int row) { return place_of_part(first_cta, first_cta, row); });
  };

  const Piece piece = find_piece(params, line);
  if (piece.begin == piece.end) return;  // there are fewer units than CTAs
  auto [batch, tile_of_batch, unit_of_tile] = piece.place;
  RowTile unfinished = {};
  int first_cta = 0, last_cta = 0;  // that share the unfinished tile: at first there is none
  for (int unit = piece.begin; unit < piece.end;) {
    // Which rows, and which of their keys.
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

    Attend<Element, HEAD_DIM, CAUSAL, PAGED> attend{shared, rows, tile, keys, first_kv_tile, end_kv_tile};
    attend.load();
    finish(unfinished, first_cta, last_cta);  // meanwhile, the tile before
    attend.compute();
    unfinished = tile;
    first_cta = keys_begin >= piece.begin ? blockIdx.x : line.cta_of(keys_begin, piece.num_units);
    last_cta = tile_end <= piece.end ? blockIdx.x : line.cta_of(tile_end - 1, piece.num_units);
    attend.leave(partials, first_cta == last_cta,
                 [&](int row) { return place_of_part(first_cta, blockIdx.x, row); });
  }
  finish(unfinished, first_cta, last_cta);
}

// The host chooses how many CTAs there are.

// Of an AttentionCall or its AttentionParams: tiles of rows of a head, and of all heads and batches.
int tiles_per_head(const auto& call) {
  return num_packed_tiles(call.num_heads_q, call.num_heads_kv, call.seqlen_q, BLOCK_M);
}
int64_t num_tiles(const auto& call) { return int64_t(tiles_per_head(call)) * call.num_heads_kv * call.batch; }

constexpr int kCtasPerSm[] = {1, 2, 4};  // by configuration
// Of a row. With more parts, the CTA that merges them needs more time than the other CTAs save.
constexpr int kMaxParts = 64;

int num_ctas(const auto& call) {
  const int64_t tiles = num_tiles(call), room = int64_t(num_sms()) * kCtasPerSm[call.configuration];
  // Equally many CTAs for each tile, or equally many tiles for each CTA, where that leaves at most 1 / 16 of
  // the room empty: if the sequences are equally long, fewer tiles are shared then.
  const int64_t rounds = ceil_div(tiles, room);
  const int64_t even = tiles <= room ? room / tiles * tiles : tiles % rounds == 0 ? tiles / rounds : 0;
  const int64_t ctas = even * 16 >= room * 15 ? even : room;
  return int(std::min({ctas, tiles * kMaxParts, tiles * units_of_keys(call.seqlen_kv)}));
}

// CTAs per SM. At D = 128 the requests of one CTA keep an SM busy, and two CTAs are faster where there are
// many tiles. At D = 64 it takes two CTAs. Twice as many are faster where some sequences may be short.
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
