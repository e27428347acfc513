// mbarrier: a barrier in shared memory that threads and asynchronous copies arrive at alike. PTX ISA,
// "Parallel synchronization and communication instructions: mbarrier". Here: sm_90 and newer.
//
// An mbarrier goes through phases 0, 1, 2, ... A phase completes when its number of arrivals is reached and
// every byte that was announced (expect_tx) has been copied; the next phase begins by itself. Who waits names
// a phase by its parity, phase % 2: mbarrier_wait(b, p) returns once the latest phase of parity p has
// completed. On a new mbarrier phase 0 is under way: a wait for parity 0 waits, one for parity 1 passes.
//
// The mbarrier is 8 bytes of shared memory, 8-byte aligned, touched by these functions only. Each function is
// for any single thread; waits and arrivals order memory accesses (acquire, release) within the CTA.
#pragma once

#include <cstdint>

#include "common/cuda.h"

#ifndef __CUDACC__
#include "common/emulator/mbarrier.h"
#else

namespace flashsteps {
inline namespace on_cuda {

// Once, by one thread. `arrivals`: how many complete a phase.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(arrivals)
               : "memory");
}

// By the thread that has initialised mbarriers, before anybody uses them; the other threads need a barrier
// (__syncthreads) besides. It is for the CTAs of a cluster, which use each other's mbarriers; by custom
// others execute it too, as here, and the emulator asks for it. It is no proxy fence: TMA uses its mbarrier
// by the generic proxy (PTX ISA, "cp.async.bulk.tensor").
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

// One arrival. What this thread has read and written so far happens before the phase completes.
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(barrier)))
               : "memory");
}

// One arrival, which also announces `bytes` that copies will bring: the phase waits for them.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(bytes)
               : "memory");
}

// Has the latest phase of this parity completed? Sleeps for a while, as long as the hardware likes, before it
// says no.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier, int parity) {
  uint32_t completed;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(completed)
      : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(parity)
      : "memory");
  return completed != 0;
}

__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// ---- In a cluster (common/cluster.h)

// One arrival at the mbarrier that CTA `cta_rank` of the cluster has at this place of its dynamic shared
// memory. What this thread has read and written so far happens before the phase completes, for those who wait
// by mbarrier_wait_cluster. That CTA must have initialised it, and must not exit before.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier, int cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}"
      :
      : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(cta_rank)
      : "memory");
}

// The same, but it orders no memory accesses: it only says, to those who wait by mbarrier_wait as well, that
// the wgmmas that this warp has waited for have read their operands. That is enough for who overwrites tiles
// that only wgmma reads. The other one costs a fence of the whole GPU (MEMBAR in SASS).
__device__ __forceinline__ void mbarrier_arrive_cluster_relaxed(uint64_t* barrier, int cta_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
      "}"
      :
      : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(cta_rank)
      : "memory");
}

// mbarrier_wait on an mbarrier of the own CTA at which threads of other CTAs arrive. (Bytes that a multicast
// copy brings need only the plain one.)
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, int parity) {
  uint32_t completed;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(completed)
        : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(parity)
        : "memory");
  } while (completed == 0);
}

}  // namespace on_cuda
}  // namespace flashsteps

#endif
