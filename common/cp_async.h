// cp.async: asynchronous copies of 16 bytes from global to shared memory. They need no registers, and a
// thread waits for them only when it needs the data. PTX ISA, "Data movement and conversion instructions:
// cp.async". sm_80 and newer.
//
// Every lane starts its own copies, commits them in groups, and waits for its own groups. Between the call
// and the wait, no thread may touch the destination or change the source. After its wait the lane sees what
// its own copies have written; other lanes see it after a barrier that follows the wait. Threads and these
// copies access shared memory through the same path, the generic proxy, so they need no proxy fence.
//
// Both addresses must be multiples of 16, the destination in shared and the source in global memory. The copy
// goes through L2 only (.cg), so it evicts nothing from L1.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__

// Starts to copy 16 bytes and does not wait. One thread.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(__cvta_generic_to_global(global))
               : "memory");
}

// The same if `valid`. Otherwise the copy, still asynchronous, writes 16 zero bytes and reads nothing. The
// source may then lie outside the tensor, but it must still be a multiple of 16: the PTX ISA requires that,
// and the emulator checks it. (Without bytes to copy, an H100 accepts any address.)
__device__ __forceinline__ void cp_async_16_zfill(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(__cvta_generic_to_global(global)),
                 "r"(valid ? 16 : 0)  // bytes to copy; zeros follow
               : "memory");
}

// Commits this thread's copies since the last commit as a group. An empty group is complete.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until all but this thread's latest PENDING groups are complete. It does not wait for copies that are
// not committed.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

#else  // see common/emulator/cp_async.cpp

void cp_async_16(void* shared, const void* global, Location at = Location::current());
void cp_async_16_zfill(void* shared, const void* global, bool valid, Location at = Location::current());
void cp_async_commit(Location at = Location::current());
template <int PENDING>
[[gnu::always_inline]] inline void cp_async_wait(Location at = Location::current()) {
  emulator::cp_async_wait(PENDING, at);
}

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
