// v42: K and V are in FP8, and Q is not. A key comes out of memory in half the bytes, and a lane converts it
// to FP16 in its registers, where it needs it.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "common/atomic_acq_rel.h"
#include "common/blocks/one_launch.h"
#include "common/blocks/packed_heads.h"
#include "common/blocks/products.h"
#include "common/blocks/stream_k.h"
#include "common/cp_async.h"
#include "common/step.h"
#include "common/swizzle.h"
#include "common/unpack.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 16;  // rows of a CTA and of each of its warps: the rows of one product
constexpr int BLOCK_N = 32;  // keys per tile; each warp has its own tiles
constexpr int NUM_WARPS = 4;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int NUM_STAGES = 3;  // of K and V each: one is computed on while the others are filled
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int MERGED_AT_ONCE = 16;         // parts of a row that are loaded at a time
constexpr int UNIT = NUM_WARPS * BLOCK_N;  // keys: one tile for each warp

using Cache = __nv_fp8_e4m3;  // the type of K and V
template <typename Element>
using Params = AttentionParams<Element, Cache>;

template <int HEAD_DIM>
struct SharedStorage {
  using KV = SwizzledTile<Cache, BLOCK_N, HEAD_DIM, HEAD_DIM>;  // a row is a key, in one panel
  struct Tiles {
    KV k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
  };
  union {
    Tiles tiles;
    WarpParts<NUM_WARPS, BLOCK_M, HEAD_DIM> parts;
  };
  bool is_last;  // was this CTA the last one to be counted for a tile of rows?
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<128>) <= 101376);

// What a CTA does with a tile of the packed rows of a head of K and V.

struct RowTile {
  int batch, kv_head, first_row, num_rows;
};

// All threads of the CTA call load(), compute() and leave(). PAGED: a page table says where K and V are.
// Without PAGED the loop has no code for pages.
template <typename Element, int HEAD_DIM, bool CAUSAL, bool PAGED>
struct Attend {
  static constexpr bool IS_BF16 = std::is_same_v<Element, __nv_bfloat16>;
  static constexpr int K_STEPS = HEAD_DIM / MMA_K;
  static constexpr int S_TILES = BLOCK_N / MMA_N;
  static constexpr int O_TILES = HEAD_DIM / MMA_N;
  using Q = SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128>;
  using KV = typename SharedStorage<HEAD_DIM>::KV;
  static_assert(sizeof(Q) <= sizeof(KV));

  SharedStorage<HEAD_DIM>& shared;
  const PackedRows<Element, Divisor, Cache>& rows;
  const RowTile& tile;
  const KeyRange& keys;
  int first_tile, end;  // the CTA's tiles of keys are first_tile .. end - 1; a warp takes every NUM_WARPS-th

  int next_page = 0;                                // of the tile of keys that is requested next
  float score_scale = 1, v_descale = 1;             // of a product of Q and K, to units of log2, and of V
  float q_scale[1][2] = {{1, 1}};                   // of the scores of the lane's two rows
  float row_base[1][2] = {{-INFINITY, -INFINITY}};  // of the lane's two rows
  float row_sum[1][2] = {};                         // of this lane's columns only
  float acc_o[1][O_TILES][4] = {};

  // Not members: the compiler unrolls the copies' loops only where it sees that a lane's number is below 32.
  __device__ static int warp_id() { return threadIdx.x / 32; }
  __device__ static int lane_id() { return threadIdx.x % 32; }

  __device__ int begin() const { return first_tile + warp_id(); }
  // A warp's tiles fill one stage after another, from stage 0 on.
  __device__ int stage_of(int kv_tile) const { return (kv_tile - first_tile) / NUM_WARPS % NUM_STAGES; }
  __device__ KV& k(int stage) const { return shared.tiles.k[warp_id()][stage]; }
  __device__ KV& v(int stage) const { return shared.tiles.v[warp_id()][stage]; }
  // The place of Q, until compute() has read it: load() leaves the last stage empty.
  __device__ Q& shared_q() const { return reinterpret_cast<Q&>(shared.tiles.v[0][NUM_STAGES - 1]); }

  // The page of a tile's key number lane_id() % BLOCK_N. Entries of the table after the last key's may be
  // garbage: that key's page stands for them.
  __device__ int look_up(int kv_tile) const {
    const int key = kv_tile * BLOCK_N + lane_id() % BLOCK_N;
    return PAGED && begin() < end ? rows.params.page_of(tile.batch, min(key, keys.kv_len - 1)) : tile.batch;
  }

  __device__ void load_kv_async(int kv_tile, int page) const {
    const Params<Element>& params = rows.params;
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
    const auto load_async = [&](auto& to, const View<const Cache>& from) {
      if (!PAGED || params.page_table.page_size >= BLOCK_N) {  // the tile is one piece, in one page
        const int in_block = PAGED ? params.row_in_page(first_key) : first_key;
        const Cache* const first = from.head(page, tile.kv_head) + in_block * from.row_stride;
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
    const Params<Element>& params = rows.params;
    score_scale =
        params.softmax_scale_log2 * params.descale_of_kv_head(params.k_descale, tile.batch, tile.kv_head);
    v_descale = params.descale_of_kv_head(params.v_descale, tile.batch, tile.kv_head);

    load_rows_async(shared_q(), tile.num_rows, threadIdx.x, NUM_THREADS, [&](int row) {
      return params.q_head(tile.batch, rows.head(tile.first_row + row)) +
             rows.query(tile.first_row + row) * params.q.row_stride;
    });
    cp_async_commit();
#pragma unroll
    for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
      const int kv_tile = begin() + stage * NUM_WARPS;
      if (kv_tile < end) load_kv_async(kv_tile, pages[stage]);
      cp_async_commit();
    }
  }

  // The A operands of all of Q, in FP16. With c = lane % 4, a lane has columns 2 c, 2 c + 1, 2 c + 8 and 2 c
  // + 9 of an operand. These stand for columns 4 c to 4 c + 3 of Q's 16: four neighbours, as a lane gets them
  // of K.
  __device__ void load_q(uint32_t (&frag_q)[K_STEPS][4]) {
    const int offset = Q::offset_of(accumulator_row(lane_id()), lane_id() % 4 * 4);
#pragma unroll
    for (int i = 0; i < K_STEPS * 2; ++i) {
      const int step = i / 2, r = i % 2;
      const uint2 cols = *reinterpret_cast<const uint2*>(shared_q().at(offset, r * 8, step * 16));
      frag_q[step][r] = cols.x;
      frag_q[step][2 + r] = cols.y;
    }
    if constexpr (IS_BF16) {
      to_half(frag_q, 0);
      to_half(frag_q, 1);
    }
  }

  // One of the lane's two rows, from bf16. The largest numbers of bf16 are beyond FP16, and its smallest as
  // well. So the row is multiplied by a power of two, such that its largest element is between 2^14 and 2^15,
  // and its scores by the inverse. 126: both are normal numbers, also for a row that is 0.
  __device__ void to_half(uint32_t (&frag_q)[K_STEPS][4], int r) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < K_STEPS * 2; ++i) {
      for (const float q : {first_of(frag_q[i / 2][i % 2 * 2 + r]), second_of(frag_q[i / 2][i % 2 * 2 + r])})
        if (isfinite(q)) largest = fmaxf(largest, fabsf(q));
    }
    const int exponent = int(__float_as_uint(quad_reduce_max(largest)) >> 23) - 127;
    const int shift = min(14 - exponent, 126);
    q_scale[0][r] = power_of_2(-shift);
#pragma unroll
    for (int i = 0; i < K_STEPS * 2; ++i) {
      uint32_t& pair = frag_q[i / 2][i % 2 * 2 + r];
      pair = pack2<__half>(first_of(pair) * power_of_2(shift), second_of(pair) * power_of_2(shift));
    }
  }
  static __device__ float power_of_2(int exponent) { return __int_as_float((exponent + 127) << 23); }
  // Of two numbers in bf16.
  static __device__ float first_of(uint32_t pair) { return __uint_as_float(pair << 16); }
  static __device__ float second_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

  // S = Q K^T. A lane gets four neighbouring bytes of a key from ldmatrix: its columns, two by two.
  __device__ void mma_qk(float (&acc_s)[1][S_TILES][4], const uint32_t (&frag_q)[K_STEPS][4], KV& k,
                         int offset) const {
    static_assert(S_TILES == 4);  // one ldmatrix_x4 has 16 columns of all keys
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
      uint32_t bytes[4];
      ldmatrix_x4(bytes, k.at(offset, 0, step * 16));
#pragma unroll
      for (int n = 0; n < S_TILES; ++n)
        mma_m16n8k16<__half>(acc_s[0][n], frag_q[step],
                             {unpack2_e4m3(bytes[n]), unpack2_e4m3(bytes[n] >> 16)});
    }
    if constexpr (IS_BF16) scale_rows(acc_s, q_scale);
  }

  // O += P V. To ldmatrix, two neighbouring columns of V are one element. Transposed, a register has two
  // neighbouring columns of two neighbouring keys: its even bytes are the first column of both keys, and its
  // odd bytes are the second one. So of 16 columns of V, the even ones are one B operand, and the odd ones
  // are the next.
  __device__ void mma_pv(const float (&acc_s)[1][S_TILES][4], KV& v, int offset) {
#pragma unroll
    for (int step = 0; step < BLOCK_N / MMA_K; ++step) {
      uint32_t frag_p[1][4];
      make_p<__half>(frag_p, acc_s, step, score_scale, row_base, row_sum);
#pragma unroll
      for (int n = 0; n < O_TILES; n += 4) {
        uint32_t bytes[4];
        ldmatrix_x4_trans(bytes, v.at(offset, step * MMA_K, n * MMA_N));
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const uint32_t keys_0_1 = __byte_perm(bytes[i], 0, 0x3120);  // even bytes, then odd ones
          const uint32_t keys_8_9 = __byte_perm(bytes[i + 1], 0, 0x3120);
          mma_m16n8k16<__half>(acc_o[0][n + i], frag_p[0], {unpack2_e4m3(keys_0_1), unpack2_e4m3(keys_8_9)});
          mma_m16n8k16<__half>(acc_o[0][n + i + 1], frag_p[0],
                               {unpack2_e4m3(keys_0_1 >> 16), unpack2_e4m3(keys_8_9 >> 16)});
        }
      }
    }
  }

  // Each warp computes on its tiles of keys.
  __device__ void compute() {
    const int k_offset = KV::offset_of(lane_id(), 0);
    const int v_offset = KV::offset_of(lane_id() % 16, lane_id() / 16 * 16);
    const int acc_row = accumulator_row(lane_id()), acc_col = accumulator_col(lane_id());
    cp_async_wait<NUM_STAGES - 1>();  // this thread's part of Q has arrived; K and V may still be in flight
    __syncthreads();                  // every thread's part has
    uint32_t frag_q[K_STEPS][4];
    load_q(frag_q);
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
      mma_qk(acc_s, frag_q, k(stage), k_offset);
      const bool needs_mask = keys.needs_mask(first_key, BLOCK_N);
      const float growth = growth_bound(acc_s, row_base, score_scale);
      if (__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) {
        if (needs_mask)
          mask_scores<CAUSAL>(acc_s, rows, keys.kv_len, tile.first_row + acc_row, first_key + acc_col);
        rescale(acc_s, score_scale, row_base, row_sum, acc_o);
      }
      mma_pv(acc_s, v(stage), v_offset);
    }
  }

  // Writes the warp's part to shared memory, where mma_pv() has put a lane's columns next to each other.
  __device__ void store_part() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = accumulator_row(lane_id()) + r * 8;
      const float sum = quad_reduce_sum(row_sum[0][r]);
      if (lane_id() % 4 == 0) shared.parts.softmax[warp_id()][row] = {row_base[0][r], sum};
#pragma unroll
      for (int n = 0; n < O_TILES; n += 2) {
        const float *const even = &acc_o[0][n][r * 2], *const odd = &acc_o[0][n + 1][r * 2];
        *reinterpret_cast<float4*>(&shared.parts.o[warp_id()][row][n * MMA_N + lane_id() % 4 * 4]) =
            make_float4(even[0] * v_descale, odd[0] * v_descale, even[1] * v_descale, odd[1] * v_descale);
      }
    }
  }

  // Merges the warps' results. A CTA that has all keys of the tile stores O and LSE. Another one leaves its
  // part of each row at place_of(row) in the workspace.
  template <typename PlaceOf>
  __device__ void leave(const Partials<HEAD_DIM>& partials, bool has_all_keys, PlaceOf place_of) {
    // Each warp writes its part to shared memory, where K and V were.
    __syncthreads();  // all warps have read their last tiles, which the parts overwrite; no copy is under way
    store_part();
    __syncthreads();  // all warps' parts are complete before another warp merges them
    merge_warps(shared.parts, partials, rows, tile.batch, tile.first_row, tile.num_rows, has_all_keys,
                place_of);
    __syncthreads();  // they are merged, before the next tile's keys overwrite them and the CTA is counted
  }
};

template <typename Element, int HEAD_DIM, bool CAUSAL, bool PAGED>
__global__ void __launch_bounds__(NUM_THREADS, HEAD_DIM == 128 ? 2
                                               : PAGED         ? 3
                                                               : 4)
    attention_kernel(const Params<Element> params, const Partials<HEAD_DIM> partials, const Line<UNIT> line,
                     const Divisor group) {
  auto& shared = *reinterpret_cast<SharedStorage<HEAD_DIM>*>(smem);

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
    const int tile_begin = unit - unit_of_tile, tile_end = tile_begin + units_of_tile<UNIT>(params, batch);
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
  return int(std::min({ctas, tiles * kMaxParts, tiles * units_of_keys<UNIT>(call.seqlen_kv)}));
}

// CTAs per SM. At D = 128 the requests of one CTA keep an SM busy, and two CTAs are faster where there are
// many tiles. At D = 64 it takes two CTAs. Twice as many are faster where some sequences may be short, but
// with pages there are registers for three only.
int choose_configuration(const AttentionCall& call) {
  const bool uneven = call.kv_lengths != nullptr && call.batch > 1;
  if (call.head_dim == 64) return uneven && call.page_table.pages == nullptr ? 2 : 1;
  return uneven || num_tiles(call) > num_sms() ? 1 : 0;
}

std::string refuses(const AttentionCall& call) {
  const bool fits =
      num_tiles(call) * (1 + units_of_keys<UNIT>(call.seqlen_kv)) <= std::numeric_limits<int>::max();
  return fits ? "" : "has more than 2^31 - 1 tiles of keys";
}

size_t workspace_bytes(const AttentionCall& call) {
  return size_t(num_ctas(call)) * 2 * BLOCK_M * (sizeof(Softmax) + call.head_dim * sizeof(float));
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const Params<Element>& params, Stream stream) {
  const int ctas = num_ctas(params), num_parts = 2 * ctas * BLOCK_M, tiles = tiles_per_head(params);
  const auto kernel = params.page_table.pages != nullptr ? attention_kernel<Element, HEAD_DIM, CAUSAL, true>
                                                         : attention_kernel<Element, HEAD_DIM, CAUSAL, false>;
  auto* const o = static_cast<float(*)[HEAD_DIM]>(params.workspace);
  launch(kernel, dim3(ctas), dim3(NUM_THREADS), sizeof(SharedStorage<HEAD_DIM>), stream, params,
         Partials<HEAD_DIM>{num_parts, reinterpret_cast<Softmax*>(o + num_parts), o},
         Line<UNIT>{Divisor(ctas), Divisor(tiles * params.num_heads_kv), Divisor(tiles),
                    Divisor(units_of_keys<UNIT>(params.seqlen_kv))},
         Divisor(params.num_heads_q / params.num_heads_kv));
}

constexpr StepInfo kStep = {
    .title = "An FP8 cache: K and V in e4m3, converted in registers",
    .removes = "half of the bytes that a step of decoding reads",
    .after = "v36_stream_k",
    .part = Part::kFp8,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .configurations = {"ctas1", "ctas2", "ctas4"},
    .choose = choose_configuration,
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .pages = true,
    .fp8_cache = true,
    .refuses = refuses,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
