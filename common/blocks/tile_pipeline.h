// The pipelines of a CTA whose warpgroups compute one tile of queries after the other: their shape, their
// shared memory, the warp that loads, the warp that stores, and the turns at the tensor cores. Spelled out in
// v23_store_warp (one pipeline of one shape) and v24_by_turns (several, and turns).
//
// A CTA has PIPELINES, which share nothing but the SM. Each has NUM_WARPGROUPS that compute on a tile of
// queries, rings of its own, and two warps of the CTA's last warpgroup: the loader and the storer.
#pragma once

#include "common/attention.h"
#include "common/blocks/key_range.h"
#include "common/blocks/ring.h"
#include "common/blocks/tensor_maps.h"
#include "common/blocks/tile_order.h"
#include "common/griddepcontrol.h"
#include "common/launch.h"
#include "common/named_barrier.h"
#include "common/setmaxnreg.h"
#include "common/swizzle.h"
#include "common/vector_copy.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

constexpr int kWarpgroupM = 64;  // query rows per warpgroup: 16 for each of its warps
constexpr int kQStages = 2;      // places for Q, which then take O

template <int HEAD_DIM_, int PIPELINES_, int NUM_WARPGROUPS_, int BLOCK_N_, int K_STAGES_, int V_STAGES_,
          bool TAKES_TURNS_>
struct PipelineConfig {
  static constexpr int HEAD_DIM = HEAD_DIM_, PIPELINES = PIPELINES_, NUM_WARPGROUPS = NUM_WARPGROUPS_;
  static constexpr int BLOCK_M = NUM_WARPGROUPS * kWarpgroupM, BLOCK_N = BLOCK_N_;  // of a tile
  static constexpr int K_STAGES = K_STAGES_, V_STAGES = V_STAGES_;
  static constexpr bool TAKES_TURNS = TAKES_TURNS_;  // at the tensor cores
  static constexpr int CONSUMERS = PIPELINES * NUM_WARPGROUPS;
  static constexpr int NUM_THREADS = 128 * (CONSUMERS + 1);
  static constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, 1);
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
};

template <typename Element, typename C>
struct PipelineTiles {
  using Q = SwizzledTile<Element, kWarpgroupM, C::HEAD_DIM, 128>;  // a warpgroup's rows
  using KV = SwizzledTile<Element, C::BLOCK_N, C::HEAD_DIM, 128>;
  Q q[kQStages][C::NUM_WARPGROUPS];  // in the end, O
  KV k[C::K_STAGES], v[C::V_STAGES];

  // What the loader requests for a tile of keys, and where a warpgroup's O is for the storer.
  __device__ void load_k(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange& keys,
                         int kv_tile, int kv_head, int batch) {
    tma_load_5d(&k[stage], maps.k, bar_full, 0, keys.first_key(kv_tile, C::BLOCK_N), 0, kv_head, batch);
  }
  __device__ void load_v(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange& keys,
                         int kv_tile, int kv_head, int batch) {
    tma_load_5d(&v[stage], maps.v, bar_full, 0, keys.first_key(kv_tile, C::BLOCK_N), 0, kv_head, batch);
  }
  __device__ const Q& o(int stage, int warpgroup) const { return q[stage][warpgroup]; }
};

// Of a pipeline, in shared memory: its tiles, and what belongs to any. The one is the other's base, because
// with two bases beside each other nvcc 13.0 keeps two pointers: v27's loop then has up to 23 instructions
// more.
template <typename Tiles, typename C>
struct WithBarriers : Tiles {
  using Config = C;
  Work work[kQStages];  // what Q is of
  Work next;            // the loader's note of the tile of queries that follows
  Ring<kQStages> ring_q;
  uint64_t bar_o_full[kQStages];  // all warps have written their rows of O to Q's place
  Ring<C::K_STAGES> ring_k;
  Ring<C::V_STAGES> ring_v;

  static constexpr int NUM_WARPS = 4 * C::NUM_WARPGROUPS;  // that compute

  // By one thread; fence_mbarrier_init() and a barrier must follow.
  __device__ void init(int v_consumers = NUM_WARPS) {
    ring_q.init(1);  // the storer
    ring_k.init(NUM_WARPS);
    ring_v.init(v_consumers);
    for (uint64_t& bar : bar_o_full) mbarrier_init(&bar, NUM_WARPS);
  }

  // O of a warpgroup none of whose rows sees a key. By its 128 threads.
  template <typename O>
  __device__ void write_zeros(int stage, O& rows, int lane_id) {
    uint4* const chunks = reinterpret_cast<uint4*>(&rows);
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < int(sizeof(O) / sizeof(uint4)); i += 128)
      store_16_bytes(&chunks[i], uint4{});
    fence_proxy_async();  // TMA sees what this lane has written
    o_is_written(stage, lane_id);
  }

  // A warp says that it has written its rows of O. By all of its lanes.
  __device__ void o_is_written(int stage, int lane_id) {
    __syncwarp();
    if (lane_id == 0) mbarrier_arrive(&bar_o_full[stage]);
  }
};

template <typename Element, typename C>
struct PipelineStorage : WithBarriers<PipelineTiles<Element, C>, C> {};

// Tiles of keys: at least one, so that all tiles of queries are alike. Without keys it is a masked tile of
// zeros.
template <int BLOCK_N>
__device__ int num_key_tiles(const KeyRange& keys) {
  return max(1, keys.num_tiles(BLOCK_N));
}

// In which order a tile of queries meets them.
enum class Keys { kFirstToLast, kLastToFirst };

// The loader: one thread, number `loader` of all CTAs' loaders. That also is the number of its first tile of
// queries. COUNTS: a counter deals out the tiles after that one, because some take longer than others.
// SKIPS: a tile of queries none of whose rows sees a key gets no tile of keys, and kv_len 0 in `work`; the
// consumers must write zeros. OVERLAPS: the kernel may begin before the previous one has ended, as in
// v39_dependent_launch.
template <bool CAUSAL, Keys KEYS = Keys::kFirstToLast, bool COUNTS = CAUSAL, bool SKIPS = false,
          bool OVERLAPS = false, typename Storage, typename Element>
__device__ void load_tiles(Storage& shared, const AttentionParams<Element>& params, const TensorMaps& maps,
                           const TileOrder& order, int num_tiles, int loader) {
  using C = typename Storage::Config;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  int index = loader;
  if (OVERLAPS && params.kv_lengths != nullptr) griddepcontrol_wait();  // the previous kernel may write them
  shared.next = work_of<C::BLOCK_M>(params, index, order, num_tiles);
  if (OVERLAPS) griddepcontrol_wait();  // it may write Q, K, V and the counter, and may read O
  for (RingCursor<kQStages> at_q;; at_q.advance()) {
    shared.ring_q.producer_wait(at_q);  // the storer has stored O from this place
    Work work = shared.next;
    const auto [first_query, head, batch, kv_len] = work;
    const KeyRange keys = key_range_within<CAUSAL>(params, kv_len, first_query, C::BLOCK_M);
    const int num_kv_tiles = SKIPS ? keys.num_tiles(C::BLOCK_N) : num_key_tiles<C::BLOCK_N>(keys);
    if (num_kv_tiles == 0) work.kv_len = 0;
    shared.work[at_q.stage] = work;
    constexpr int Q_BYTES = C::NUM_WARPGROUPS * sizeof(typename Storage::Q);
    uint64_t* const bar_q_full = shared.ring_q.producer_announce(at_q, batch < 0 ? 0 : Q_BYTES);
    if (batch == kNoMore) return;
    for (int w = 0; w < C::NUM_WARPGROUPS; ++w)
      tma_load_5d(&shared.q[at_q.stage][w], maps.q, bar_q_full, 0, first_query + w * kWarpgroupM, 0, head,
                  batch);
    const int kv_head = params.kv_head(head);
    const int fetch_at = num_kv_tiles * C::BLOCK_N > 512 ? num_kv_tiles - 2 : 0;
    const auto fetch_next = [&] {  // once for each tile: num_tiles times in all, and the counter is 0 again
      index = gridDim.x * C::PIPELINES + (COUNTS ? atomicInc(params.counters, num_tiles - 1) : index);
      shared.next = work_of<C::BLOCK_M>(params, index, order, num_tiles);
    };
    if (num_kv_tiles == 0) fetch_next();
#pragma unroll 1
    for (int i = 0; i < num_kv_tiles; ++i) {
      const int kv_tile = KEYS == Keys::kFirstToLast ? i : num_kv_tiles - 1 - i;
      // producer_acquire waits until all warps have released the tile that was in this stage before.
      uint64_t* const bar_k_full = shared.ring_k.producer_acquire(at_k, sizeof(shared.k[0]));
      shared.load_k(at_k.stage, maps, bar_k_full, keys, kv_tile, kv_head, batch);
      uint64_t* const bar_v_full = shared.ring_v.producer_acquire(at_v, sizeof(shared.v[0]));
      shared.load_v(at_v.stage, maps, bar_v_full, keys, kv_tile, kv_head, batch);
      at_k.advance();
      at_v.advance();
      if (i == fetch_at) fetch_next();
    }
  }
}

// The storer: one thread.
template <typename Storage>
__device__ void store_tiles(Storage& shared, const TensorMap& map_o) {
  using C = typename Storage::Config;
  for (RingCursor<kQStages> at_q;; at_q.advance()) {
    shared.ring_q.consumer_wait(at_q);  // the loader has written which tile this is
    const auto [first_query, head, batch, kv_len] = shared.work[at_q.stage];
    if (batch == kNoMore) return;
    mbarrier_wait(&shared.bar_o_full[at_q.stage], at_q.phase);  // all warps have written their rows
    for (int w = 0; w < C::NUM_WARPGROUPS; ++w)                 // rows beyond the end are left out
      tma_store_5d(map_o, &shared.o(at_q.stage, w), 0, first_query + w * kWarpgroupM, 0, head, batch);
    tma_store_commit();
    tma_store_wait_read<0>();  // TMA has read O: the loader may overwrite it with another Q
    shared.ring_q.consumer_release(at_q);
  }
}

// The turns of a pipeline's warpgroups at the tensor cores. Each warpgroup must take equally many, whatever
// it does with them. A named barrier of each says that its turn has come: the warpgroup waits there, and the
// one before it arrives.
template <typename C>
struct Turns {
  int consumer;  // the warpgroup's number in the CTA

  __device__ void begin() const {
    if constexpr (C::TAKES_TURNS) bar_sync(1 + consumer, 2 * 128);
  }
  __device__ void end() const {
    const int next =
        (consumer + 1) % C::NUM_WARPGROUPS == 0 ? consumer + 1 - C::NUM_WARPGROUPS : consumer + 1;
    if constexpr (C::TAKES_TURNS) bar_arrive(1 + next, 2 * 128);
  }
};

// On the host: one CTA for each SM, as long as there are tiles.
template <typename C, bool CAUSAL, bool OVERLAPS = false, typename Kernel, typename Element>
void launch_pipelines(Kernel* kernel, const AttentionParams<Element>& params, Stream stream) {
  using Pipeline = PipelineStorage<Element, C>;
  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  const auto launch_it = [&](const auto&... args) {
    if constexpr (OVERLAPS)
      launch_overlapping(kernel, args...);
    else
      launch(kernel, args...);
  };
  launch_it(dim3(min(ceil_div(num_tiles, C::PIPELINES), num_sms())), dim3(C::NUM_THREADS),
            C::PIPELINES * sizeof(Pipeline), stream, params,
            make_tensor_maps<typename Pipeline::Q, typename Pipeline::KV>(params),
            tile_order<C::HEAD_DIM, CAUSAL>(params), num_tiles);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
