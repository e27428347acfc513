// v37: the keys of all tiles of queries lie on one line, and each CTA gets an equal piece of it, as in v36;
// now each tile is computed by v25's loop. The CTAs that share a tile merge their parts together.
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/atomic_acq_rel.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/even_shares.h"
#include "common/blocks/one_launch.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/split_keys.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/uniform.h"
#include "common/blocks/wgmma_products.h"
#include "common/elect.h"
#include "common/setmaxnreg.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int MMA_N = 8;
constexpr int MMA_K = 16;

constexpr int block_n(int head_dim, int num_warpgroups) {  // keys of a tile
  return head_dim == 128 && num_warpgroups == 3 ? 64 : 128;
}

template <int HEAD_DIM_, int NUM_WARPGROUPS_>
struct Config {
  static constexpr int HEAD_DIM = HEAD_DIM_, NUM_WARPGROUPS = NUM_WARPGROUPS_;
  static constexpr int BLOCK_N = block_n(HEAD_DIM, NUM_WARPGROUPS);
  static constexpr int K_STAGES = HEAD_DIM == 64 ? 4 : NUM_WARPGROUPS == 2 ? 2 : 3;
  static constexpr int V_STAGES = HEAD_DIM == 64 ? 4 : 3;
  static constexpr int PRODUCER_REGISTERS = NUM_WARPGROUPS == 3 ? 32 : 40;  // of a thread
  static constexpr int CONSUMER_REGISTERS = NUM_WARPGROUPS == 3 ? 160 : 232;
  static constexpr int LOADS_AT_ONCE = NUM_WARPGROUPS == 3 ? 8 : 16;  // of parts of O, by a warp that merges
  static constexpr int NUM_THREADS = 128 * (NUM_WARPGROUPS + 1);
  static constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, 1);
  static constexpr bool MOVES_REGISTERS = NUM_WARPGROUPS > 1;  // a single warpgroup has enough from the start
  static constexpr bool TAKES_TURNS = NUM_WARPGROUPS > 1;
};

// ---- Tiles that several CTAs share. The unit is a warp with its 16 rows: it meets the warps of other CTAs
// that have the same rows.

constexpr int PATIENCE = 64;  // how often a warp looks whether all parts are there

// A warpgroup's parts of 64 rows, in the order of its registers: thread t has o[n][t] of columns 8 n on.
template <int HEAD_DIM>
struct Parts {
  float4 (*o)[HEAD_DIM / kAccumulatorCols][128];
  Softmax (*softmax)[64];

  // On the host.
  static size_t bytes(int64_t num_parts) { return num_parts * (sizeof(*o) + sizeof(*softmax)); }
  static Parts in(void* memory, int64_t num_parts) {
    const auto o = static_cast<float4(*)[HEAD_DIM / kAccumulatorCols][128]>(memory);
    return {o, reinterpret_cast<Softmax(*)[64]>(o + num_parts)};
  }
};

// Two counters of a warp's rows: how many parts have arrived, and how many warps have drawn a ticket.
// Each ticket stands for a slice of the columns, and there are as many as parts.
struct Meeting {
  unsigned *arrived, *tickets;
  static constexpr int COUNTERS = 2;
  static constexpr unsigned QUIT = 1 << 16;  // added by a warp that does not wait for the others

  __device__ explicit Meeting(unsigned* counters) : arrived(counters), tickets(counters + 1) {}

  // This warp's part of num_parts is complete. Returns how many tickets the warp must draw: 0 if others will
  // merge. Only warps that have nothing else to do wait for the others, and these not for ever: the others
  // may not run yet, if something else occupies the GPU. All lanes call it, and lane 0 has the result.
  __device__ int arrive(int num_parts, bool may_wait, int lane_id) const {
    __syncwarp();  // all lanes have written
    if (lane_id != 0) return 0;
    const unsigned before = atomic_add_acq_rel(arrived, 1);
    // The last one also draws for those that have quit.
    if (before % QUIT == unsigned(num_parts - 1)) return 1 + before / QUIT;
    for (int i = 0; may_wait && i < PATIENCE; ++i)
      if (load_acquire(arrived) % QUIT == unsigned(num_parts)) return 1;
    return atomic_add_acq_rel(arrived, QUIT) % QUIT == unsigned(num_parts) ? 1 : 0;  // just in time?
  }
  // The number of a slice that this warp must merge. The last ticket leaves both counters 0.
  __device__ int draw(int num_parts, int lane_id) const {
    int ticket = 0;
    if (lane_id == 0) {
      ticket = atomicInc(tickets, num_parts - 1);
      if (ticket == num_parts - 1) atomicExch(arrived, 0);  // all have drawn: nobody looks any more
    }
    return __shfl_sync(0xffffffff, ticket, 0);
  }
  // If there are two parts, the second warp merges them. Is this warp the second one? Before it is counted,
  // the first one must leave its part.
  __device__ bool other_is_there(int lane_id) const {
    const bool is = __any_sync(0xffffffff, lane_id == 0 && load_acquire(arrived) == 1);
    if (is && lane_id == 0) *arrived = 0;
    return is;
  }
  __device__ bool is_second(int lane_id) const {
    __syncwarp();  // all lanes have written
    return __any_sync(0xffffffff, lane_id == 0 && atomic_inc_acq_rel(arrived, 1) == 1);
  }
};

// Adds another part of the same rows to the one in registers. Which of the two is which does not matter to
// the result: both are rounded after their multiplication.
template <int O_TILES>
__device__ void add_part(float (&acc_o)[1][O_TILES][4], float (&row_base)[1][2], float (&row_sum)[1][2],
                         const float4* o, const Softmax* softmax) {
  float ours[2], theirs[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Softmax other = softmax[r * 8];
    const float base = fmaxf(row_base[0][r], other.base);
    ours[r] = exp2_approx(row_base[0][r] - base);
    theirs[r] = exp2_approx(other.base - base);
    row_base[0][r] = base;
    row_sum[0][r] = __fadd_rn(__fmul_rn(row_sum[0][r], ours[r]), __fmul_rn(other.sum, theirs[r]));
  }
#pragma unroll
  for (int n = 0; n < O_TILES; ++n) {
    const float4 columns = o[n * 128];
    const float other[4] = {columns.x, columns.y, columns.z, columns.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      acc_o[0][n][i] = __fadd_rn(__fmul_rn(acc_o[0][n][i], ours[i / 2]), __fmul_rn(other[i], theirs[i / 2]));
  }
}

// Merges num_parts parts of COLUMNS tiles of 8 columns, PARTS of them at a time: a warp has so many loads
// under way. `o` and `softmax` are those of the first part, of this lane's columns and rows; the next parts
// follow at a distance of `stride` parts. `whole` has the columns of the lane's first row, then those of its
// second one.
//
// No array here has several dimensions and a type with a constructor: nvcc 13.0 constructs the elements of
// the first row alone, and the others become zero.
template <int COLUMNS, int PARTS, int HEAD_DIM>
__device__ void merge_parts(RowPart<2> (&whole)[2 * COLUMNS], const float4* o, const Softmax* softmax,
                            int stride, int num_parts) {
#pragma unroll 1
  for (int part = 0; uniform(part < num_parts); part += PARTS) {
    float4 columns[COLUMNS][PARTS];
    Softmax of_rows[2][PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const bool exists = part + i < num_parts;  // one that does not has the weight 0
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) columns[c][i] = exists ? o[c * 128] : float4{};
#pragma unroll
      for (int r = 0; r < 2; ++r) of_rows[r][i] = exists ? softmax[r * 8] : Softmax{-FLT_MAX, 0.0f};
      o += stride * (HEAD_DIM / kAccumulatorCols) * 128;
      softmax += stride * 64;
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      RowPart<2> first[PARTS], second[PARTS];
#pragma unroll
      for (int i = 0; i < PARTS; ++i) {
        first[i] = {of_rows[0][i], {columns[c][i].x, columns[c][i].y}};
        second[i] = {of_rows[1][i], {columns[c][i].z, columns[c][i].w}};
      }
      whole[c].add(first);
      whole[COLUMNS + c].add(second);
    }
  }
}

template <typename Element, typename C>
struct SharedStorage {
  using Q = SwizzledTile<Element, kWarpgroupM, C::HEAD_DIM, 128>;  // a warpgroup's rows
  using KV = SwizzledTile<Element, C::BLOCK_N, C::HEAD_DIM, 128>;
  Q q[kQStages][C::NUM_WARPGROUPS];  // in the end, O
  KV k[C::K_STAGES], v[C::V_STAGES];
  Share work[kQStages];  // what Q is of
  Ring<kQStages> ring_q;
  uint64_t bar_o_full[kQStages];  // all warps have written their rows of O to Q's place
  Ring<C::K_STAGES> ring_k;
  Ring<C::V_STAGES> ring_v;

  __device__ void init() {  // by one thread; fence_mbarrier_init() and a barrier must follow
    constexpr int NUM_WARPS = 4 * C::NUM_WARPGROUPS;
    ring_q.init(1);  // the storer
    ring_k.init(NUM_WARPS);
    ring_v.init(NUM_WARPS);
    for (uint64_t& bar : bar_o_full) mbarrier_init(&bar, NUM_WARPS);
  }
};

// The loader: one warp, of which one thread requests the copies.
template <bool CAUSAL, typename Element, typename C>
__device__ void load(SharedStorage<Element, C>& shared, const AttentionParams<Element>& params,
                     const TensorMaps& maps, const Line& line) {
  using KV = typename SharedStorage<Element, C>::KV;
  const Piece piece = find_piece<CAUSAL>(params, line);
  if (!elect_one()) return;
  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  Share work;
  for (Shares<CAUSAL, Element> shares(params, line, piece); shares.next(work); at_q.advance()) {
    shared.ring_q.producer_wait(at_q);  // the storer is done with this place
    shared.work[at_q.stage] = work;
    uint64_t* const bar_q_full = shared.ring_q.producer_announce(at_q, sizeof(shared.q[0]));
    for (int w = 0; w < C::NUM_WARPGROUPS; ++w)
      tma_load_5d(&shared.q[at_q.stage][w], maps.q, bar_q_full, 0,
                  work.tile * line.tile_queries + w * kWarpgroupM, 0, work.head, work.batch);
    const int kv_head = params.kv_head(work.head);
#pragma unroll 1
    for (int kv_tile = work.end - 1; kv_tile >= work.begin; --kv_tile) {
      // As KeyRange::first_key().
      const int first_key = min(kv_tile * C::BLOCK_N, work.kv_len - C::BLOCK_N);
      // producer_acquire waits until all warps have released the tile that was in this stage before.
      uint64_t* const bar_k_full = shared.ring_k.producer_acquire(at_k, sizeof(KV));
      tma_load_5d(&shared.k[at_k.stage], maps.k, bar_k_full, 0, first_key, 0, kv_head, work.batch);
      uint64_t* const bar_v_full = shared.ring_v.producer_acquire(at_v, sizeof(KV));
      tma_load_5d(&shared.v[at_v.stage], maps.v, bar_v_full, 0, first_key, 0, kv_head, work.batch);
      at_k.advance();
      at_v.advance();
    }
  }
  shared.ring_q.producer_wait(at_q);
  shared.work[at_q.stage].batch = kNoMore;
  shared.ring_q.producer_announce(at_q, 0);
}

// The storer: one thread. A tile that several CTAs share is stored by those that merge it.
template <typename Element, typename C>
__device__ void store(SharedStorage<Element, C>& shared, const TensorMap& map_o, const Line& line) {
  for (RingCursor<kQStages> at_q;; at_q.advance()) {
    shared.ring_q.consumer_wait(at_q);  // the loader has written which tile this is
    const Share work = shared.work[at_q.stage];
    if (work.batch == kNoMore) return;
    mbarrier_wait(&shared.bar_o_full[at_q.stage], at_q.phase);  // all warps are done with this place
    if (work.num_parts() == 1) {
      for (int w = 0; w < C::NUM_WARPGROUPS; ++w)  // rows beyond the end are left out
        tma_store_5d(map_o, &shared.q[at_q.stage][w], 0, work.tile * line.tile_queries + w * kWarpgroupM, 0,
                     work.head, work.batch);
      tma_store_commit();
      tma_store_wait_read<0>();  // TMA has read O: the loader may overwrite it with another Q
    }
    shared.ring_q.consumer_release(at_q);
  }
}

// A warpgroup that computes. A tile of keys gives S = Q K^T, then P, the exponentials of S, then O += P V.
template <typename Element, bool CAUSAL, typename C>
struct Consumer {
  static constexpr int BLOCK_N = C::BLOCK_N, O_TILES = C::HEAD_DIM / MMA_N;
  using Shared = SharedStorage<Element, C>;
  using Q = typename Shared::Q;
  using KV = typename Shared::KV;

  const AttentionParams<Element>& params;
  const Parts<C::HEAD_DIM>& parts;
  const Line& line;
  Shared& shared;
  const int warpgroup;
  const Turns<C> turns{warpgroup};
  const int lane = threadIdx.x % 32;
  const float scale = params.softmax_scale_log2;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  SmemDescriptor q, k, v;  // of the next products
  int kv_tile;             // of S
  int last_careful;        // from the highest tile down to this one: masked if needed, and rows get new bases
  int last_tile;           // of keys, the lowest
  bool is_first;           // Is P the first of its tile of rows? Then P V overwrites O.

  // Of the rows acc_row() + r * 8.
  float row_base[1][2];   // what P is relative to: a maximum so far, scaled
  float row_sum[1][2];    // of this lane's columns only: the lanes' sums are added after the loop
  float row_scale[1][2];  // that O needs when its base changes
  float acc_o[1][O_TILES][4], acc_s[1][BLOCK_N / MMA_N][4];
  uint32_t frag_p[BLOCK_N / MMA_K][1][4];

  __device__ Consumer(const AttentionParams<Element>& call, const Parts<C::HEAD_DIM>& workspace,
                      const Line& all, Shared& storage, int consumer)
      : params(call), parts(workspace), line(all), shared(storage), warpgroup(consumer) {}

  // All tiles of rows that the loader gets.
  __device__ __forceinline__ void run() {
    if (warpgroup == C::NUM_WARPGROUPS - 1) turns.end();  // the first turn is warpgroup 0's
    for (; begin_tile(); at_q.advance()) {
      first_iteration();
#pragma unroll 1
      while (uniform(kv_tile > last_careful)) {
        --kv_tile;
        iteration</*IS_CAREFUL=*/true>();
      }
#pragma unroll 1
      while (uniform(kv_tile > last_tile)) {  // the clean loop
        --kv_tile;
        iteration</*IS_CAREFUL=*/false>();
      }
      last_iteration();
    }
  }

  // Computes S and P of a tile of keys while P V of the tile before runs.
  template <bool IS_CAREFUL>
  __device__ __forceinline__ void iteration() {
    // Issue both products. Between them stands no arithmetic, only the wait for V.
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    turns.begin();                      // the warpgroup before has issued its products
    start_qk<Q, KV>(acc_s, q, k);
    shared.ring_v.consumer_wait(at_v);  // TMA has brought V
    start_pv<KV>(acc_o, frag_p, v, is_first);
    turns.end();

    // Compute P while P V runs.
    wait_for<1>(acc_s);  // S is complete, and wgmma has read K
    release_k();
    k = make_smem_descriptor(shared.k[at_k.stage]);
    if constexpr (IS_CAREFUL) mask();
    const bool changes = IS_CAREFUL || uniform(growth_bound(acc_s, row_base, scale) > kMaxGrowth);
    if (changes) change_base(acc_s, scale, row_base, row_sum, row_scale);
    exponentiate(acc_s, scale, row_base, row_sum);
    warpgroup_fence_operand(wgmma_accumulator(acc_s));  // the compiler keeps all of this before the wait

    // Finish P V.
    wait_for<0>(acc_o);  // O is complete, and wgmma has read V and P's registers
    release_v();
    v = make_smem_descriptor(shared.v[at_v.stage]);
    pack_p<Element>(frag_p, acc_s);
    is_first = false;
    if (changes) scale_rows(acc_o, row_scale);
  }

  // Of a tile of rows: its first tile of keys, beside which no P V runs; and its last P V, beside which no
  // Q K^T runs.
  __device__ __forceinline__ void first_iteration() {
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    start_qk<Q, KV>(acc_s, q, k);
    wait_for<0>(acc_s);  // S is complete, and wgmma has read K
    release_k();
    k = make_smem_descriptor(shared.k[at_k.stage]);
    mask();
    change_base(acc_s, scale, row_base, row_sum, row_scale);
    exponentiate(acc_s, scale, row_base, row_sum);
    pack_p<Element>(frag_p, acc_s);
    is_first = true;
  }
  __device__ __forceinline__ void last_iteration() {
    shared.ring_v.consumer_wait(at_v);  // TMA has brought V
    start_pv<KV>(acc_o, frag_p, v, is_first);
    wait_for<0>(acc_o);  // O is complete, and wgmma has read V
    release_v();
    end_tile();
  }

  // ---- The beginning of a tile of rows; false if there is none.
  __device__ __forceinline__ bool begin_tile() {
    shared.ring_q.consumer_wait(at_q);  // the loader has written `work`, and TMA has brought Q
    const Share work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = keys_of(work);
    const int end = max(work.begin + 1, min(work.end, keys.num_tiles(BLOCK_N)));  // at least one is computed
    kv_tile = end - 1;
    last_tile = work.begin;
    last_careful = max(last_tile, (keys.unmasked_end - 1) / BLOCK_N);
    row_base[0][0] = row_base[0][1] = -INFINITY;
    row_sum[0][0] = row_sum[0][1] = 0.0f;
#pragma unroll 1
    for (int unseen = work.end - end; uniform(unseen > 0); --unseen) {  // causal: beyond the diagonal
      turns.begin();  // as many turns as the other warpgroups take
      turns.end();
      // An earlier release would count for the tile before in this stage, which others may still read.
      shared.ring_k.consumer_wait(at_k);
      release_k();
      shared.ring_v.consumer_wait(at_v);
      release_v();
    }
    q = make_smem_descriptor(shared.q[at_q.stage][warpgroup]);
    k = make_smem_descriptor(shared.k[at_k.stage]);
    v = make_smem_descriptor(shared.v[at_v.stage]);
    return true;
  }
  __device__ __forceinline__ void mask() {
    const Share work = shared.work[at_q.stage];
    if (kv_tile < keys_of(work).unmasked_end / BLOCK_N) return;
    mask_tile<CAUSAL, BLOCK_N>(acc_s, params, work.kv_len, kv_tile, first_query_of(work) + acc_row(),
                               acc_col());
  }

  // ---- The end of a tile of rows. If the CTA has all of its keys, O, rounded, goes where the tile's Q was,
  // whose last Q K^T is complete. A warp's 16 rows of Q are read by its own products alone.
  __device__ __forceinline__ void end_tile() {
    const Share work = shared.work[at_q.stage];
    row_sum[0][0] = quad_reduce_sum(row_sum[0][0]);
    row_sum[0][1] = quad_reduce_sum(row_sum[0][1]);
    if (uniform(work.num_parts() == 1)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) store_lse(work, r, row_base[0][r], row_sum[0][r]);
      stmatrix_normalised(shared.q[at_q.stage][warpgroup], o_offset(), acc_o, row_sum);
      fence_proxy_async();  // TMA sees what this lane has written
    } else if (uniform(warp_row() < num_rows_of(work))) {
      uniform(work.num_parts() == 2) ? share_with_one(work) : share_with_many(work);
    }
    __syncwarp();  // all lanes have written: the storer waits at bar_o_full
    if (lane == 0) mbarrier_arrive(&shared.bar_o_full[at_q.stage]);
  }

  // ---- Sharing a tile. The counters of a warp's rows belong to the first of the CTAs that share them.
  // uniform() around a condition: where the compiler does not know that a warp stays together, it keeps no
  // descriptor in uniform registers, not even in the loop over the keys.
  __device__ Meeting meeting(const Share& work) const {
    const int cta = work.first_slot * line.abreast + line.rank();
    return Meeting(&params.counters[(cta * C::NUM_WARPGROUPS * 4 + threadIdx.x / 32) * Meeting::COUNTERS]);
  }
  // The slots first_slot .. last_slot leave their parts at first_slot + slot. No other tile has the same
  // places: its first slot is this one's last, or a later one.
  __device__ int64_t place_of_part(const Share& work, int slot) const {
    return (int64_t(work.first_slot + slot) * line.abreast + line.rank()) * C::NUM_WARPGROUPS + warpgroup;
  }
  __device__ void leave_part(const Share& work) {
    const int64_t at = place_of_part(work, line.slot());
    float4* const o = &parts.o[at][0][threadIdx.x % 128];
#pragma unroll
    for (int n = 0; n < O_TILES; ++n)
      o[n * 128] = make_float4(acc_o[0][n][0], acc_o[0][n][1], acc_o[0][n][2], acc_o[0][n][3]);
    if (lane_id() % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) parts.softmax[at][acc_row() + r * 8] = {row_base[0][r], row_sum[0][r]};
  }
  __device__ void share_with_one(const Share& work) {
    const Meeting with_other = meeting(work);
    if (uniform(!with_other.other_is_there(lane))) {
      leave_part(work);
      if (uniform(!with_other.is_second(lane))) return;
    }
    const int64_t other = place_of_part(work, work.first_slot + work.last_slot - line.slot());
    add_part(acc_o, row_base, row_sum, &parts.o[other][0][threadIdx.x % 128],
             &parts.softmax[other][acc_row()]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      store_lse(work, r, row_base[0][r], row_sum[0][r]);
      const float inverse = inverse_of(row_sum[0][r]);
      Element* const o = o_of_row(work, r);
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
        if (o != nullptr)
          *reinterpret_cast<uint32_t*>(o + n * MMA_N) = scaled2<Element>(&acc_o[0][n][r * 2], inverse);
    }
  }
  __device__ void share_with_many(const Share& work) {
    const Meeting with_others = meeting(work);
    const int num_parts = work.num_parts();
    leave_part(work);
    int num_tickets = with_others.arrive(num_parts, work.is_last, lane);
    for (num_tickets = uniform(num_tickets); uniform(num_tickets > 0); --num_tickets) {
      const int slice = with_others.draw(num_parts, lane);
      if (uniform(O_TILES >= 2 * num_parts))
        merge_slice<2>(work, slice);
      else
        merge_slice<1>(work, slice);
    }
  }
  // One of as many slices of O's columns as there are parts.
  template <int COLUMNS>
  __device__ void merge_slice(const Share& work, int slice) {
    const int64_t first = place_of_part(work, work.first_slot);
    const int stride = line.abreast * C::NUM_WARPGROUPS, num_parts = work.num_parts();
    const int end = (slice + 1) * (O_TILES / COLUMNS) / num_parts * COLUMNS;
#pragma unroll 1
    for (int n = slice * (O_TILES / COLUMNS) / num_parts * COLUMNS; uniform(n < end); n += COLUMNS) {
      RowPart<2> whole[2 * COLUMNS];
      merge_parts<COLUMNS, C::LOADS_AT_ONCE / COLUMNS, C::HEAD_DIM>(
          whole, &parts.o[first][n][threadIdx.x % 128], &parts.softmax[first][acc_row()], stride, num_parts);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Softmax& softmax = whole[r * COLUMNS].softmax;
        if (n == 0) store_lse(work, r, softmax.base, softmax.sum);
        Element* const o = o_of_row(work, r);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
          if (o != nullptr)
            *reinterpret_cast<uint32_t*>(o + (n + c) * MMA_N) =
                scaled2<Element>(whole[r * COLUMNS + c].columns.o, inverse_of(softmax.sum));
      }
    }
  }

  // ---- The rows of a tile, and this lane's.
  __device__ int first_query_of(const Share& work) const {
    return work.tile * line.tile_queries + warpgroup * kWarpgroupM;
  }
  __device__ int num_rows_of(const Share& work) const {
    return min(kWarpgroupM, params.seqlen_q - first_query_of(work));
  }
  __device__ KeyRange keys_of(const Share& work) const {
    return key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
  }
  __device__ void store_lse(const Share& work, int r, float base, float sum) const {
    const int row = acc_row() + r * 8;
    if (lane_id() % 4 == 0 && row < num_rows_of(work))
      params.store_lse(work.batch, work.head, first_query_of(work) + row, fast_lse_of(base, sum));
  }
  // This lane's first column of row acc_row() + r * 8 of O; nullptr if there is no such row.
  __device__ Element* o_of_row(const Share& work, int r) const {
    const int row = acc_row() + r * 8;
    if (row >= num_rows_of(work)) return nullptr;
    return params.o_head(work.batch, work.head) + (first_query_of(work) + row) * params.o.row_stride +
           acc_col();
  }

  // ---- The loader overwrites a tile when all warps have released it.
  __device__ void release_k() {
    shared.ring_k.warp_release(at_k, lane);
    at_k.advance();
  }
  __device__ void release_v() {
    shared.ring_v.warp_release(at_v, lane);
    at_v.advance();
  }

  // ---- Where this lane's elements are. Computed where they are needed: the loop has no registers to keep
  // them.
  static __device__ int lane_id() { return opaque(int(threadIdx.x)) % 32; }
  static __device__ int warp_row() { return opaque(int(threadIdx.x)) / 32 % 4 * 16; }  // in the warpgroup's
  static __device__ int acc_row() { return warp_row() + accumulator_row(lane_id()); }
  static __device__ int acc_col() { return accumulator_col(lane_id()); }
  static __device__ int o_offset() {
    return Q::offset_of(warp_row() + operand_row(lane_id()), operand_col(lane_id()));
  }
};

template <typename Element, bool CAUSAL, typename C>
__global__ void __launch_bounds__(C::NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     const Line line, const Parts<C::HEAD_DIM> parts) {
  auto& shared = *reinterpret_cast<SharedStorage<Element, C>*>(smem);
  if (threadIdx.x == 0) {
    shared.init();
    fence_mbarrier_init();  // TMA sees the mbarriers
  }
  __syncthreads();  // the mbarriers are initialised

  // Producers: one warp loads, another stores.
  const int warpgroup = uniform(int(threadIdx.x / 128));
  if (warpgroup >= C::NUM_WARPGROUPS) {
    if constexpr (C::MOVES_REGISTERS) warpgroup_reg_dealloc<C::PRODUCER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
    const int role = uniform(int(threadIdx.x / 32)) - C::NUM_WARPGROUPS * 4;
    if (role == 0) load<CAUSAL>(shared, params, maps, line);
    if (role == 1 && elect_one()) store(shared, maps.o, line);
    return;
  }
  if constexpr (C::MOVES_REGISTERS) warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  Consumer<Element, CAUSAL, C>(params, parts, line, shared, warpgroup).run();
}

// ---- The host.

// Of an AttentionCall or its AttentionParams.
Line make_line(const auto& call, int head_dim, bool causal) {
  const int warpgroups = call.configuration + 1;
  Line line{};
  line.heads = call.num_heads_q;
  line.tile_queries = warpgroups * kWarpgroupM;
  line.block_n = block_n(head_dim, warpgroups);
  line.tiles = ceil_div(call.seqlen_q, line.tile_queries);
  // If K and V are too large for the L2 cache, tiles that need the same keys meet them at the same time.
  constexpr int64_t SMALL = 16 << 20;  // bytes
  const int64_t kv_bytes = int64_t(4) * call.batch * call.num_heads_kv * call.seqlen_kv * head_dim;
  line.abreast = kv_bytes > SMALL && line.tiles <= 16 ? line.tiles : 1;
  line.bundles = ceil_div(line.tiles, line.abreast);
  // What a bundle's start and end cost counts where some bundles have much fewer keys than others.
  const bool lengths_differ = causal && 2 * call.seqlen_q > call.seqlen_kv;
  line.start = lengths_differ || call.kv_lengths != nullptr ? 1 : 0;
  const int ctas = min(num_sms(), kNumCounters / (warpgroups * 4 * Meeting::COUNTERS));
  line.slots = choose_slots(int64_t(call.batch) * line.heads * line.bundles, max(1, ctas / line.abreast));
  return line;
}
int64_t num_parts(const auto& call, const Line& line) {
  if (shares_nothing(line, call.seqlen_kv)) return 0;
  return int64_t(2) * line.slots * line.abreast * (call.configuration + 1);
}

int choose_configuration(const AttentionCall& call) { return call.seqlen_q <= kWarpgroupM ? 0 : 1; }

std::string refuses(const AttentionCall& call) {
  if (call.num_splits > 0) return "does not split all keys into as many parts";
  const Line line = make_line(call, call.head_dim, call.causal);
  const int64_t units = int64_t(call.batch) * line.heads * line.bundles *
                        (line.start + ceil_div(std::max(call.seqlen_kv, 1), line.block_n));
  return units <= kMaxLine ? "" : "has more than 2^22 tiles of keys";
}

size_t workspace_bytes(const AttentionCall& call) {
  const int64_t parts = num_parts(call, make_line(call, call.head_dim, call.causal));
  return call.head_dim == 64 ? Parts<64>::bytes(parts) : Parts<128>::bytes(parts);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  Line line = make_line(params, HEAD_DIM, CAUSAL);
  if (params.kv_lengths == nullptr) {  // then there need be no more slots than units
    line.head_units = units_of_head<CAUSAL>(params, line, params.seqlen_kv);
    line.slots = min(line.slots, params.batch * line.heads * line.head_units);
  }
  const auto launch_with = [&]<typename C>(C) {
    using Storage = SharedStorage<Element, C>;
    launch(attention_kernel<Element, CAUSAL, C>, dim3(line.slots * line.abreast), dim3(C::NUM_THREADS),
           sizeof(Storage), stream, params,
           make_tensor_maps<typename Storage::Q, typename Storage::KV>(params), line,
           Parts<HEAD_DIM>::in(params.workspace, num_parts(params, line)));
  };
  params.configuration == 0   ? launch_with(Config<HEAD_DIM, 1>())
  : params.configuration == 1 ? launch_with(Config<HEAD_DIM, 2>())
                              : launch_with(Config<HEAD_DIM, 3>());
}

constexpr StepInfo kStep = {
    .title = "Stream-K with wgmma: the CTAs of a tile merge it together",
    .removes = "SMs without work where tiles of queries are few",
    .after = "v27_tile_shapes",
    .part = Part::kHopper,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .configurations = {"rows64", "rows128", "rows192"},
    .choose = choose_configuration,
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .refuses = refuses,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
