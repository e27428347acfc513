// Bulk copies: one thread requests consecutive bytes; the copy engine moves them between global and shared
// memory, or adds them up in global memory. PTX ISA, "cp.async.bulk" and "cp.reduce.async.bulk". sm_90 and
// newer.
//
// They are TMA's copies without a tensor map: tma.h says what to do about the async proxy, and has
// tma_store_commit and tma_store_wait_read, which stores and additions need, too. Both addresses and the
// number of bytes are multiples of 16.
#pragma once

#include "common/tma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Starts to copy to shared memory, and does not wait: the bytes are reported to `barrier`. One thread.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(__cvta_generic_to_global(global)),
                 "r"(bytes), "r"(uint32_t(__cvta_generic_to_shared(barrier)))
               : "memory");
}

// Starts to copy to global memory. It joins the thread's current bulk group. One thread.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(__cvta_generic_to_global(global)), "r"(uint32_t(__cvta_generic_to_shared(shared))),
                 "r"(bytes)
               : "memory");
}

// Starts to add floats to those in global memory: each addition is atomic, and they are in no order. It joins
// the thread's current bulk group. One thread.
__device__ __forceinline__ void bulk_add(float* global, const float* shared, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :
               : "l"(__cvta_generic_to_global(global)), "r"(uint32_t(__cvta_generic_to_shared(shared))),
                 "r"(bytes)
               : "memory");
}

// Waits until all but this thread's latest PENDING bulk groups are complete: what they have written is in
// global memory. Threads may read it after a fence_proxy_async_global().
template <int PENDING>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(PENDING) : "memory");
}

// Bulk copies access global memory through the async proxy, too. This fence orders them with what this thread
// has read or written there: after that come copies that it starts later, before it those that it has waited
// for.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" : : : "memory");
}

#else  // see common/emulator/tma.cpp

void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier,
               Location at = Location::current());
void bulk_store(void* global, const void* shared, int bytes, Location at = Location::current());
void bulk_add(float* global, const float* shared, int bytes, Location at = Location::current());
template <int PENDING>
[[gnu::always_inline]] inline void bulk_wait(Location at = Location::current()) {
  emulator::bulk_wait(PENDING, at);
}
inline void fence_proxy_async_global() {}

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
