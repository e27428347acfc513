// Atomic operations, for the types that CUDA has them for. Part of cuda.h; atomics.cpp carries them out.
#pragma once

#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/emulator/warp.h"

namespace emulator::cuda {

// NAME(address, value) for the types that are listed; `sentence` is what a kernel with another one is told.
#define FLASHSTEPS_ATOMIC(NAME, operation, sentence, ...)                                \
  template <typename T>                                                                  \
  T NAME(T* address, std::type_identity_t<T> value, Location at = Location::current()) { \
    static_assert(OneOf<T, __VA_ARGS__>, sentence);                                      \
    return atomic(Atomic::operation, address, value, at);                                \
  }
FLASHSTEPS_ATOMIC(atomicAdd, kAdd,
                  "atomicAdd takes int, unsigned, unsigned long long, float, double, 16-bit floats and pairs "
                  "of these: write a loop around atomicCAS",
                  int, unsigned, unsigned long long, float, double, __half, __half2, __nv_bfloat16,
                  __nv_bfloat162)
FLASHSTEPS_ATOMIC(atomicSub, kSub, "atomicSub takes int and unsigned: add the negative", int, unsigned)
FLASHSTEPS_ATOMIC(
    atomicExch, kExchange,
    "atomicExch takes int, unsigned, unsigned long long and float: write a loop around atomicCAS", int,
    unsigned, unsigned long long, float)
FLASHSTEPS_ATOMIC(
    atomicMin, kMin,
    "atomicMin takes int, unsigned, long long and unsigned long long: write a loop around atomicCAS", int,
    unsigned, long long, unsigned long long)
FLASHSTEPS_ATOMIC(
    atomicMax, kMax,
    "atomicMax takes int, unsigned, long long and unsigned long long: write a loop around atomicCAS", int,
    unsigned, long long, unsigned long long)
// old >= value ? 0 : old + 1
FLASHSTEPS_ATOMIC(atomicInc, kIncrement, "atomicInc takes unsigned", unsigned)
// old == 0 || old > value ? value : old - 1
FLASHSTEPS_ATOMIC(atomicDec, kDecrement, "atomicDec takes unsigned", unsigned)
FLASHSTEPS_ATOMIC(atomicAnd, kAnd,
                  "atomicAnd takes int, unsigned and unsigned long long: write a loop around atomicCAS", int,
                  unsigned, unsigned long long)
FLASHSTEPS_ATOMIC(atomicOr, kOr,
                  "atomicOr takes int, unsigned and unsigned long long: write a loop around atomicCAS", int,
                  unsigned, unsigned long long)
FLASHSTEPS_ATOMIC(atomicXor, kXor,
                  "atomicXor takes int, unsigned and unsigned long long: write a loop around atomicCAS", int,
                  unsigned, unsigned long long)
#undef FLASHSTEPS_ATOMIC

template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired,
            Location at = Location::current()) {
  static_assert(OneOf<T, unsigned short, int, unsigned, unsigned long long>,
                "atomicCAS takes unsigned short, int, unsigned and unsigned long long: use __float_as_int");
  return atomic_compare_and_swap(address, expected, desired, at);
}

}  // namespace emulator::cuda
