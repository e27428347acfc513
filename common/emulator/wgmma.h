// wgmma without a GPU. Include common/wgmma.h, which says what it does; wgmma.cpp is how.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/smem_descriptor.h"

namespace emulator {

// A is in registers, or described by `a` when there are none.
void wgmma(void* acc, int num_acc, const uint32_t* a_registers, uint64_t a, uint64_t b, WgmmaKind kind,
           Location at);
void wgmma_wait(int pending, Location at);
// As on the hardware the CTA's rank stands from bit 24 up. Its dynamic shared memory begins at 0 here.
uint32_t shared_window_address(const void* tile, bool in_cluster, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

template <bool IN_CLUSTER = false, typename Tile>
[[gnu::always_inline]] inline SmemDescriptor make_smem_descriptor(const Tile& tile, int row = 0, int col = 0,
                                                                  Location at = Location::current()) {
  const uint32_t address = emulator::shared_window_address(&tile, IN_CLUSTER, at);
  return advance<Tile>(smem_descriptor_at<IN_CLUSTER, Tile>(address), row, col);
}

void warpgroup_arrive(Location at = Location::current());
void warpgroup_commit_batch(Location at = Location::current());

template <int PENDING>
[[gnu::always_inline]] inline void warpgroup_wait(Location at = Location::current()) {
  static_assert(PENDING >= 0 && PENDING <= 7);
  emulator::wgmma_wait(PENDING, at);
}

template <int PENDING>
[[gnu::always_inline]] inline void warpgroup_wait_after(float, Location at = Location::current()) {
  warpgroup_wait<PENDING>(at);
}

template <int COUNT>
[[gnu::always_inline]] inline void warpgroup_fence_operand(float (&)[COUNT]) {}
template <int COUNT>
[[gnu::always_inline]] inline void warpgroup_fence_operand(uint32_t (&)[COUNT]) {}

template <typename Element>
constexpr emulator::OperandType kWgmmaType =
    std::is_same_v<Element, emulator::cuda::__nv_bfloat16> ? emulator::OperandType::kBf16
                                                           : emulator::OperandType::kFp16;

template <typename Element, Major B_MAJOR = Major::kK, Major A_MAJOR = Major::kK, int NUM_ACC>
[[gnu::always_inline]] inline void wgmma_m64k16(float (&acc)[NUM_ACC], SmemDescriptor a, SmemDescriptor b,
                                                bool scale_d, Location at = Location::current()) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC> && sizeof(Element) == 2);
  emulator::wgmma(acc, NUM_ACC, nullptr, a.bits, b.bits,
                  {kWgmmaType<Element>, A_MAJOR == Major::kMN, B_MAJOR == Major::kMN, scale_d}, at);
}

template <typename Element, Major B_MAJOR = Major::kK, int NUM_ACC>
[[gnu::always_inline]] inline void wgmma_m64k16(float (&acc)[NUM_ACC], const uint32_t (&a)[4],
                                                SmemDescriptor b, bool scale_d,
                                                Location at = Location::current()) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC> && sizeof(Element) == 2);
  emulator::wgmma(acc, NUM_ACC, a, 0, b.bits, {kWgmmaType<Element>, false, B_MAJOR == Major::kMN, scale_d},
                  at);
}

template <int NUM_ACC>
[[gnu::always_inline]] inline void wgmma_m64k32_e4m3(float (&acc)[NUM_ACC], SmemDescriptor a,
                                                     SmemDescriptor b, bool scale_d,
                                                     Location at = Location::current()) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC>);
  emulator::wgmma(acc, NUM_ACC, nullptr, a.bits, b.bits,
                  {emulator::OperandType::kE4m3, false, false, scale_d}, at);
}

template <int NUM_ACC>
[[gnu::always_inline]] inline void wgmma_m64k32_e4m3(uint32_t (&acc)[NUM_ACC], SmemDescriptor a,
                                                     SmemDescriptor b, bool scale_d,
                                                     Location at = Location::current()) {
  static_assert(kIsWgmmaAccumulator<2 * NUM_ACC> && NUM_ACC % 4 == 0);
  emulator::wgmma(acc, NUM_ACC, nullptr, a.bits, b.bits,
                  {emulator::OperandType::kE4m3, false, false, scale_d, true}, at);
}

template <int NUM_ACC>
[[gnu::always_inline]] inline void wgmma_m64k32_e4m3(float (&acc)[NUM_ACC], const uint32_t (&a)[4],
                                                     SmemDescriptor b, bool scale_d,
                                                     Location at = Location::current()) {
  static_assert(kIsWgmmaAccumulator<NUM_ACC>);
  emulator::wgmma(acc, NUM_ACC, a, 0, b.bits, {emulator::OperandType::kE4m3, false, false, scale_d}, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
