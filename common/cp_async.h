// cp.async: copies of 16 bytes from global to shared memory that need no registers and that nobody waits for
// until the data are wanted. PTX ISA, "Data movement and conversion instructions: cp.async". sm_80 and newer.
//
// Every lane asks for its own copies, closes groups of them, and waits for its own groups. From the call
// until the wait, nobody may touch the destination or change the source. After its wait the lane sees what
// its own copies have brought; other lanes see it behind a barrier that comes after the wait. Threads and
// these copies come to shared memory by the same way, the generic proxy: no proxy fence between the two.
//
// Both addresses must be multiples of 16, the destination in shared and the source in global memory. The copy
// goes through L2 only (.cg): what it brings does not push anything out of L1.
#pragma once

#include <cstdint>

#include "common/cuda.h"

#ifndef __CUDACC__
#include "common/emulator/cp_async.h"
#else

namespace flashsteps {
inline namespace on_cuda {

// Starts to copy 16 bytes. Returns at once. One thread.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(__cvta_generic_to_global(global))
               : "memory");
}

// The same if `valid`. Otherwise 16 zero bytes are written, as asynchronously, and nothing is read: the
// source may then lie outside of the tensor, but must be a multiple of 16 even so: PTX ISA says it, and the
// emulator demands it. An H100 does not look at it: without bytes to copy, it takes any address.
__device__ __forceinline__ void cp_async_16_zfill(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(__cvta_generic_to_global(global)),
                 "r"(valid ? 16 : 0)  // bytes to copy; zeros follow
               : "memory");
}

// Ends this thread's group: its copies since the last commit. There may be none: an empty group is complete.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until all but this thread's latest PENDING groups are complete, and only for committed copies.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

}  // namespace on_cuda
}  // namespace flashsteps

#endif
