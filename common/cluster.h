// Clusters: CTAs that launch_clusters() of common/launch.h starts together, on neighbouring SMs. They can
// signal each other's mbarriers (mbarrier_arrive_cluster in common/mbarrier.h) and copy into each other's
// shared memory (tma_load_5d_multicast in common/tma.h, for sm_90a). PTX ISA, "Cooperative thread arrays:
// cluster", "barrier.cluster". sm_90 and newer.
//
// A CTA must not touch another one's shared memory before that has begun, and has initialised its mbarriers,
// nor after it has exited: cluster_arrive() and cluster_wait() must stand in front of the first use and
// behind the last one.
#pragma once

#include <cstdint>

#include "common/cuda.h"

#ifndef __CUDACC__
#include "common/emulator/cluster.h"
#else

namespace flashsteps {
inline namespace on_cuda {

// Which CTA of its cluster this is, from 0: blockIdx.x modulo the cluster's size. 0 without a cluster.
__device__ __forceinline__ int cluster_ctarank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}

// Arrives at the cluster's barrier and does not wait. What this thread has read and written so far happens
// before the others' cluster_wait() returns. Any single thread; one that exits has arrived, too.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" : : : "memory");
}

// Waits until all threads of the cluster have arrived. Each cluster_arrive() needs one before the next.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" : : : "memory");
}

}  // namespace on_cuda
}  // namespace flashsteps

#endif
