// wgmma: acc (+)= A B on the tensor cores, asynchronously, by a warpgroup of four warps. 16-bit or FP8
// operands, FP32 accumulator. B comes from shared memory, A from shared memory or registers. PTX ISA,
// "Asynchronous warpgroup level matrix instructions". sm_90a.
//
// All of these are executed by all 128 threads of a warpgroup: warps 0-3, 4-7, ... of the CTA. In this order:
//   warpgroup_arrive();               // the registers that follow are ready
//   wgmma_m64k16<...>(acc, a, b, d);  // as often as you like
//   warpgroup_commit_batch();         // these are a group
//   ...                               // anything else
//   warpgroup_wait<0>();              // now the accumulators may be read, and the operands overwritten
// Until that wait no thread may touch acc or A's registers, or write to the shared memory of A and B.
//
// A is 64 x 16, B is 16 x N, acc is 64 x N; N is a multiple of 8 up to 256, and a thread has N / 2 of acc's
// elements. Warp w of the warpgroup holds rows 16 w to 16 w + 15, as mma.h says: acc[4 i] to acc[4 i + 3] are
// the four of columns 8 i to 8 i + 7, and A's registers are those of a 16 x 16 A. So a softmax of mma.sync's
// accumulators works on these, too, and accumulators packed to 16 bits are the next product's A.
//
// wgmma accesses shared memory as TMA does, through the async proxy: for what TMA has brought, the wait for
// its mbarrier suffices; what threads have written needs fence_proxy_async() and a barrier.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda.h"
#include "common/smem_descriptor.h"

#ifndef __CUDACC__
#include "common/emulator/wgmma.h"
#else

#include "common/cuda/wgmma_operands.h"

namespace flashsteps {
inline namespace on_cuda {

// The operand that begins at element (row, col) of a SwizzledTile. `row` and `col` must be multiples of 8,
// and in kMN `col` must be a multiple of a panel's columns. IN_CLUSTER must be true in a cluster of several
// CTAs, because their addresses contain their ranks; elsewhere it only costs instructions.
template <bool IN_CLUSTER = false, typename Tile>
__device__ __forceinline__ SmemDescriptor make_smem_descriptor(const Tile& tile, int row = 0, int col = 0) {
  const uint32_t address = uint32_t(__cvta_generic_to_shared(&tile));
  return advance<Tile>(smem_descriptor_at<IN_CLUSTER, Tile>(address), row, col);
}

// Orders the threads' accesses to registers before those of the wgmmas that follow. Needed before the first
// wgmma, and wherever acc or A's registers have been touched since the last one; not between wgmmas that add
// to the same acc.
__device__ __forceinline__ void warpgroup_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

// Commits the warpgroup's wgmmas since the last commit as a group.
__device__ __forceinline__ void warpgroup_commit_batch() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

// Waits until all but the latest PENDING groups are complete.
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
  static_assert(PENDING >= 0 && PENDING <= 7);
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(PENDING) : "memory");
}

// The same, but after `x`, which is never negative, has been computed. To ptxas no arithmetic depends on a
// wait, so it may move the wait up, past the arithmetic before it. The store below never happens; but ptxas
// keeps it before the wait, and the arithmetic of `x` before the store.
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait_after(float x) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.lt.f32 p, %0, 0f00000000;\n"
      "@p st.shared.f32 [%1], %0;\n"
      "}"
      :
      : "f"(x), "r"(0)
      : "memory");
  warpgroup_wait<PENDING>();
}

// Makes no instruction. It tells the compiler that the registers of acc or A are used here, so that it moves
// arithmetic on them neither up past a wait nor down past an arrive.
template <int COUNT>
__device__ __forceinline__ void warpgroup_fence_operand(float (&acc)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(acc[i]) : : "memory");
}
template <int COUNT>
__device__ __forceinline__ void warpgroup_fence_operand(uint32_t (&a)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(a[i]) : : "memory");
}

// acc = A B + (scale_d ? acc : 0), A and B from shared memory. Element is __half or __nv_bfloat16; scale_d is
// the same in the whole warpgroup.
template <typename Element, Major B_MAJOR = Major::kK, Major A_MAJOR = Major::kK, int NUM_ACC>
__device__ __forceinline__ void wgmma_m64k16(float (&acc)[NUM_ACC], SmemDescriptor a, SmemDescriptor b,
                                             bool scale_d) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC>);
  constexpr int TRANS_A = A_MAJOR == Major::kMN, TRANS_B = B_MAJOR == Major::kMN;
  if constexpr (std::is_same_v<Element, __half>) {
    FLASHSTEPS_WGMMA_SS(FLASHSTEPS_WGMMA_SS_K16, "f16")
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    FLASHSTEPS_WGMMA_SS(FLASHSTEPS_WGMMA_SS_K16, "bf16")
  }
}

// The same, A from registers.
template <typename Element, Major B_MAJOR = Major::kK, int NUM_ACC>
__device__ __forceinline__ void wgmma_m64k16(float (&acc)[NUM_ACC], const uint32_t (&a)[4], SmemDescriptor b,
                                             bool scale_d) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC>);
  constexpr int TRANS_B = B_MAJOR == Major::kMN;
  if constexpr (std::is_same_v<Element, __half>) {
    FLASHSTEPS_WGMMA_RS(FLASHSTEPS_WGMMA_RS_K16, "f16")
  } else {
    static_assert(std::is_same_v<Element, __nv_bfloat16>);
    FLASHSTEPS_WGMMA_RS(FLASHSTEPS_WGMMA_RS_K16, "bf16")
  }
}

// acc = A B + (scale_d ? acc : 0) in FP8 (e4m3): A is 64 x 32, B is 32 x N, both kK. A's registers have four
// elements each: a lane has those of the columns where it has two of 16 bits. On Hopper acc keeps 14 bits.
template <int NUM_ACC>
__device__ __forceinline__ void wgmma_m64k32_e4m3(float (&acc)[NUM_ACC], SmemDescriptor a, SmemDescriptor b,
                                                  bool scale_d) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC>);
  FLASHSTEPS_WGMMA_SS(FLASHSTEPS_WGMMA_SS_K32, "e4m3")
}

// The same with sums in FP16, which take half the registers: one of acc has two, of neighbouring columns.
// Each wgmma rounds its sum to the nearest, and beyond 65,504 to infinity. N is a multiple of 16.
template <int NUM_ACC>
__device__ __forceinline__ void wgmma_m64k32_e4m3(uint32_t (&acc)[NUM_ACC], SmemDescriptor a,
                                                  SmemDescriptor b, bool scale_d) {
  static_assert(kIsWgmmaAccumulator<2 * NUM_ACC> && NUM_ACC % 4 == 0);
  FLASHSTEPS_WGMMA_SS_FP16_SUMS
}

// With sums in FP32, A from registers.
template <int NUM_ACC>
__device__ __forceinline__ void wgmma_m64k32_e4m3(float (&acc)[NUM_ACC], const uint32_t (&a)[4],
                                                  SmemDescriptor b, bool scale_d) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC>);
  FLASHSTEPS_WGMMA_RS(FLASHSTEPS_WGMMA_RS_K32, "e4m3")
}

}  // namespace on_cuda
}  // namespace flashsteps

#endif
