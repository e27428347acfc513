// Atomic operations, for the types that CUDA has them for. Part of cuda.h; atomics.cpp carries them out.
#pragma once

#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/emulator/warp.h"

namespace emulator::cuda {

// NAME(address, value) for the types that are listed; `instead` is what a kernel with another one is told.
// Inline, so that what it calls returns into the kernel, to the line that reports name.
#define FLASHSTEPS_ATOMIC(NAME, operation, instead, ...)                             \
  template <typename T>                                                              \
  [[gnu::always_inline]] inline T NAME(T* address, std::type_identity_t<T> value,    \
                                       Location at = Location::current()) {          \
    static_assert(OneOf<T, __VA_ARGS__>, #NAME " takes " #__VA_ARGS__ ": " instead); \
    return atomic(Atomic::operation, address, value, at);                            \
  }
#define FLASHSTEPS_LOOP "write a loop around atomicCAS"
// clang-format off
FLASHSTEPS_ATOMIC(atomicAdd, kAdd, FLASHSTEPS_LOOP, int, unsigned, unsigned long long, float, double, __half,
                  __half2, __nv_bfloat16, __nv_bfloat162)
FLASHSTEPS_ATOMIC(atomicSub, kSub, "add the negative", int, unsigned)
FLASHSTEPS_ATOMIC(atomicExch, kExchange, FLASHSTEPS_LOOP, int, unsigned, unsigned long long, float)
FLASHSTEPS_ATOMIC(atomicMin, kMin, FLASHSTEPS_LOOP, int, unsigned, long long, unsigned long long)
FLASHSTEPS_ATOMIC(atomicMax, kMax, FLASHSTEPS_LOOP, int, unsigned, long long, unsigned long long)
FLASHSTEPS_ATOMIC(atomicInc, kIncrement, FLASHSTEPS_LOOP, unsigned)  // old >= value ? 0 : old + 1
FLASHSTEPS_ATOMIC(atomicDec, kDecrement, FLASHSTEPS_LOOP, unsigned)  // old == 0 || old > value ? value : old - 1
FLASHSTEPS_ATOMIC(atomicAnd, kAnd, FLASHSTEPS_LOOP, int, unsigned, unsigned long long)
FLASHSTEPS_ATOMIC(atomicOr, kOr, FLASHSTEPS_LOOP, int, unsigned, unsigned long long)
FLASHSTEPS_ATOMIC(atomicXor, kXor, FLASHSTEPS_LOOP, int, unsigned, unsigned long long)
// clang-format on
#undef FLASHSTEPS_LOOP
#undef FLASHSTEPS_ATOMIC

template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired,
            Location at = Location::current()) {
  static_assert(OneOf<T, unsigned short, int, unsigned, unsigned long long>,
                "atomicCAS takes unsigned short, int, unsigned and unsigned long long: use __float_as_int");
  return atomic_compare_and_swap(address, expected, desired, at);
}

}  // namespace emulator::cuda
