// A ring of tiles in shared memory between a thread that loads them by TMA, the producer, and warps that
// compute on them, the consumers. Spelled out in v10_tma_warpspec; drawn in docs/pipeline.md.
//
// Tiles are counted from 0 over the CTA's whole life; tile t lies in stage t % NUM_STAGES. Each stage has two
// mbarriers. Full: TMA has brought the tile. Empty: every consumer is done with it.
#pragma once

#include "common/mbarrier.h"
#include "common/tma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// A thread that goes through all tiles in order may keep a RingCursor, its place in the ring, instead of the
// tile's number. It needs no division, and the compiler can keep it in uniform registers.
template <int NUM_STAGES>
struct RingCursor {
  int stage = 0, phase = 0;

  __device__ void advance() {
    if (++stage == NUM_STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
};

template <int NUM_STAGES>
struct Ring {  // in shared memory
  using Cursor = RingCursor<NUM_STAGES>;
  uint64_t bar_full[NUM_STAGES], bar_empty[NUM_STAGES];

  static __device__ int stage_of(int tile) { return tile % NUM_STAGES; }
  static __device__ int phase_of(int tile) { return tile / NUM_STAGES % 2; }

  // By one thread; fence_mbarrier_init() and a barrier must follow before anybody uses the ring.
  __device__ void init(int num_consumers, int num_producers = 1) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(&bar_full[stage], num_producers);  // with TMA, the producer's announcement
      mbarrier_init(&bar_empty[stage], num_consumers);
    }
  }

  // The producer waits until the consumers are done with the previous tile in this stage.
  __device__ void producer_wait(int tile) {
    // The stage's first tile has nothing to wait for: on a new mbarrier a wait for parity 1 returns.
    mbarrier_wait(&bar_empty[stage_of(tile)], phase_of(tile) ^ 1);
    fence_proxy_async();  // orders the consumers' reads before TMA's writes
  }

  // Then it announces `bytes` at the mbarrier that is returned, to which TMA reports them.
  __device__ uint64_t* producer_announce(int tile, int bytes) {
    uint64_t* const full = &bar_full[stage_of(tile)];
    mbarrier_arrive_expect_tx(full, bytes);
    return full;
  }

  // Waits, then announces.
  __device__ uint64_t* producer_acquire(int tile, int bytes) {
    producer_wait(tile);
    return producer_announce(tile, bytes);
  }

  // Any thread of a consumer waits until the tile has arrived.
  __device__ void consumer_wait(int tile) { mbarrier_wait(&bar_full[stage_of(tile)], phase_of(tile)); }

  // One thread of a consumer reports that the whole consumer has read the tile, after a barrier among its
  // threads.
  __device__ void consumer_release(int tile) { mbarrier_arrive(&bar_empty[stage_of(tile)]); }

  // The same with a cursor, for tiles that only wgmma and TMA read. They need no proxy fence: wgmma and TMA
  // read through the same proxy through which TMA writes the next tile.
  __device__ void producer_wait(const Cursor& at) { mbarrier_wait(&bar_empty[at.stage], at.phase ^ 1); }
  __device__ uint64_t* producer_announce(const Cursor& at, int bytes) {
    mbarrier_arrive_expect_tx(&bar_full[at.stage], bytes);
    return &bar_full[at.stage];
  }
  __device__ uint64_t* producer_acquire(const Cursor& at, int bytes) {
    producer_wait(at);
    return producer_announce(at, bytes);
  }
  __device__ void consumer_wait(const Cursor& at) { mbarrier_wait(&bar_full[at.stage], at.phase); }
  __device__ void consumer_release(const Cursor& at) { mbarrier_arrive(&bar_empty[at.stage]); }
  __device__ void warp_release(const Cursor& at, int lane_id) {
    __syncwarp();
    if (lane_id == 0) consumer_release(at);
  }

  // The same for a consumer that is a warp; all of its lanes call it.
  __device__ void warp_release(int tile, int lane_id) {
    __syncwarp();  // all lanes have read the tile, or waited for it
    if (lane_id == 0) consumer_release(tile);
  }
};

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
