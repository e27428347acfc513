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

template <int NUM_STAGES>
struct Ring {  // in shared memory
  uint64_t bar_full[NUM_STAGES], bar_empty[NUM_STAGES];

  static __device__ int stage_of(int tile) { return tile % NUM_STAGES; }
  static __device__ int phase_of(int tile) { return tile / NUM_STAGES % 2; }

  // By one thread; fence_mbarrier_init() and a barrier must follow before anybody uses the ring.
  __device__ void init(int num_consumers) {
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
      mbarrier_init(&bar_full[stage], 1);  // the producer's announcement
      mbarrier_init(&bar_empty[stage], num_consumers);
    }
  }

  // The producer waits until the tile before in this stage is done with.
  __device__ void producer_wait(int tile) {
    // The stage's first tile has nothing to wait for: a new mbarrier lets a wait for parity 1 pass.
    mbarrier_wait(&bar_empty[stage_of(tile)], phase_of(tile) ^ 1);
    fence_proxy_async();  // TMA must not overtake what is left of the consumers' reads
  }

  // Then it announces so many bytes. TMA counts them off at the mbarrier that is returned.
  __device__ uint64_t* producer_announce(int tile, int bytes) {
    uint64_t* const full = &bar_full[stage_of(tile)];
    mbarrier_arrive_expect_tx(full, bytes);
    return full;
  }

  // Both in turn.
  __device__ uint64_t* producer_acquire(int tile, int bytes) {
    producer_wait(tile);
    return producer_announce(tile, bytes);
  }

  // Any thread of a consumer waits until the tile is there.
  __device__ void consumer_wait(int tile) { mbarrier_wait(&bar_full[stage_of(tile)], phase_of(tile)); }

  // One thread of a consumer says that all of it has read the tile; a barrier among its threads came before.
  __device__ void consumer_release(int tile) { mbarrier_arrive(&bar_empty[stage_of(tile)]); }

  // A warp that is a consumer says so. By all of its lanes.
  __device__ void warp_release(int tile, int lane_id) {
    __syncwarp();  // all lanes have read it, or seen it come
    if (lane_id == 0) consumer_release(tile);
  }
};

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
