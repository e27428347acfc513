// setmaxnreg: a warpgroup releases registers, or takes some that another one has released. PTX ISA,
// "setmaxnreg". sm_90a.
//
// All four warps of a warpgroup (warps 0-3, 4-7, ...) execute the same setmaxnreg, and must meet at a barrier
// before they execute another. REGISTERS is how many a thread has from then on: 24 to 256, a multiple of 8.
// AT_LAUNCH is how many every thread of the kernel has at launch, see registers_at_launch(): the hardware
// knows it, and the emulator counts with it.
//
// The kernel needs __launch_bounds__(threads, ctas per SM), and no call of a function that is not inlined:
// otherwise ptxas ignores setmaxnreg, and prints a note.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// How many registers ptxas gives each thread of a kernel with these launch bounds that uses setmaxnreg: its
// share of the 512 that each of an SM's four schedulers has for a lane. For 256 threads and 2 CTAs: 128.
constexpr int registers_at_launch(int threads, int ctas_per_sm) {
  constexpr int SCHEDULERS = 4, OF_A_LANE = 512, MOST = 256, UNIT = 8;
  const int warps = ceil_div(ceil_div(threads, 32) * ctas_per_sm, SCHEDULERS);
  const int registers = OF_A_LANE / warps / UNIT * UNIT;
  return registers < MOST ? registers : MOST;
}

template <int REGISTERS, int AT_LAUNCH>
constexpr bool kCanSetRegisters =
    REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0 && AT_LAUNCH % 8 == 0;

#ifdef __CUDACC__

// Takes registers, until each thread has REGISTERS. Waits until the CTA's pool, which holds what other warps
// have released, has enough. The new registers hold anything.
template <int REGISTERS, int AT_LAUNCH>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  static_assert(kCanSetRegisters<REGISTERS, AT_LAUNCH>);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

// Releases registers to the pool: each thread keeps REGISTERS.
template <int REGISTERS, int AT_LAUNCH>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  static_assert(kCanSetRegisters<REGISTERS, AT_LAUNCH>);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

#else

template <int REGISTERS, int AT_LAUNCH>
[[gnu::always_inline]] inline void warpgroup_reg_alloc(Location at = Location::current()) {
  static_assert(kCanSetRegisters<REGISTERS, AT_LAUNCH>);
  emulator::set_max_registers(true, REGISTERS, AT_LAUNCH, at);
}

template <int REGISTERS, int AT_LAUNCH>
[[gnu::always_inline]] inline void warpgroup_reg_dealloc(Location at = Location::current()) {
  static_assert(kCanSetRegisters<REGISTERS, AT_LAUNCH>);
  emulator::set_max_registers(false, REGISTERS, AT_LAUNCH, at);
}

#endif

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
