// Clusters: CTAs that launch_clusters() of common/launch.h starts together, on neighbouring SMs. They can
// signal each other's mbarriers (mbarrier_arrive_cluster in common/mbarrier.h), and store and copy into each
// other's shared memory (store_cluster here; tma_load_5d_multicast in common/tma.h, for sm_90a). PTX ISA,
// "Cooperative thread arrays: cluster", "barrier.cluster", "mapa", "st". sm_90 and newer.
//
// A CTA must not touch another CTA's shared memory before that CTA has begun and has initialised its
// mbarriers, nor after it has exited. So cluster_arrive() and cluster_wait() must come before the first use
// and after the last one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Which CTA of its cluster this is, from 0: blockIdx.x modulo the cluster's size. 0 without a cluster.
__device__ __forceinline__ int cluster_ctarank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
}

// Arrives at the cluster's barrier and does not wait. What this thread has read and written so far happens
// before the others' cluster_wait() returns. Any single thread; a thread that exits arrives, too.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" : : : "memory");
}

// Waits until all threads of the cluster have arrived. After a cluster_arrive(), a thread must call this
// before its next cluster_arrive().
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" : : : "memory");
}

// A plain store into the dynamic shared memory of CTA `cta_rank` of the cluster, at the offset that `to` has
// in this CTA's. Any single thread; T has 4, 8 or 16 bytes, and `to` is aligned to as many. A thread of that
// CTA may read the value after cluster_wait(), if this thread has called cluster_arrive() after the store (or
// after mbarrier_wait_cluster(), if this thread has called mbarrier_arrive_cluster()).
template <typename T>
__device__ __forceinline__ void store_cluster(T* to, const T& value, int cta_rank) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  static_assert(std::is_trivially_copyable_v<T>);
  uint32_t remote, words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(uint32_t(__cvta_generic_to_shared(to))), "r"(cta_rank));
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" : : "r"(remote), "r"(words[0]) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};"
                 :
                 : "r"(remote), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(remote), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

#else  // see common/emulator/cluster.cpp

int cluster_ctarank();
void cluster_arrive(Location at = Location::current());
void cluster_wait(Location at = Location::current());
// Not inlined: its return address is the store's place in the kernel.
template <typename T>
[[gnu::noinline]] void store_cluster(T* to, const T& value, int cta_rank, Location at = Location::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  static_assert(std::is_trivially_copyable_v<T>);
  emulator::store_cluster(to, &value, sizeof(T), cta_rank, at, uintptr_t(__builtin_return_address(0)));
}

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
