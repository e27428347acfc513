// mbarrier: a barrier in shared memory at which both threads and asynchronous copies arrive. PTX ISA,
// "Parallel synchronization and communication instructions: mbarrier". These functions: sm_90 and newer.
//
// An mbarrier goes through phases 0, 1, 2, ... A phase completes when its number of arrivals is reached and
// every byte that was announced (expect_tx) has been copied; the next phase begins by itself. A thread that
// waits names a phase by its parity, phase % 2: mbarrier_wait(b, p) returns once the latest phase of parity p
// has completed. On a new mbarrier phase 0 is under way: a wait for parity 0 waits, one for parity 1 returns.
//
// The mbarrier is 8 bytes of shared memory, 8-byte aligned, touched only by these functions. Any single
// thread may call them; waits and arrivals order memory accesses (acquire, release) within the CTA.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// One thread calls it, once. `arrivals`: how many arrivals complete a phase.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(arrivals)
               : "memory");
}

// The thread that has initialised mbarriers calls it before any thread uses them; the other threads also need
// a barrier (__syncthreads). It serves the CTAs of a cluster, which use each other's mbarriers. By convention
// other kernels execute it, too, and the emulator requires it. It is no proxy fence: TMA accesses its
// mbarrier through the generic proxy (PTX ISA, "cp.async.bulk.tensor").
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

// One arrival, which also announces that copies will bring `bytes`: the phase waits for them.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(bytes)
               : "memory");
}

// Has the latest phase of this parity completed? May suspend the thread, for a time that the hardware
// chooses, before it returns false.
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

// One arrival at the mbarrier that CTA `cta_rank` of the cluster has at the same offset of its dynamic shared
// memory. What this thread has read and written so far happens before the phase completes, for threads that
// wait with mbarrier_wait_cluster. That CTA must have initialised the mbarrier, and must not exit before the
// arrival.
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

// The same, but it orders no memory accesses. A thread that waits, with mbarrier_wait or
// mbarrier_wait_cluster, learns only that the wgmmas that this warp has waited for have read their operands.
// That is enough before tiles are overwritten that only wgmma reads. mbarrier_arrive_cluster costs a fence
// for the whole GPU (MEMBAR in SASS).
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

// mbarrier_wait on an mbarrier of this CTA at which threads of other CTAs arrive. (For bytes that a multicast
// copy brings, mbarrier_wait suffices.)
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

#else  // see common/emulator/mbarrier.cpp

void mbarrier_init(uint64_t* barrier, int arrivals, Location at = Location::current());
void fence_mbarrier_init(Location at = Location::current());
void mbarrier_arrive(uint64_t* barrier, Location at = Location::current());
void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes, Location at = Location::current());
bool mbarrier_try_wait(uint64_t* barrier, int parity, Location at = Location::current());
void mbarrier_wait(uint64_t* barrier, int parity, Location at = Location::current());
void mbarrier_arrive_cluster(uint64_t* barrier, int cta_rank, Location at = Location::current());
void mbarrier_arrive_cluster_relaxed(uint64_t* barrier, int cta_rank, Location at = Location::current());
void mbarrier_wait_cluster(uint64_t* barrier, int parity, Location at = Location::current());

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
