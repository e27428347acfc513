// Atomic operations, for the types that CUDA has them for. Part of cuda.h; atomics.cpp carries them out.
#pragma once

#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/emulator/warp.h"

namespace emulator::cuda {

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, int, unsigned, unsigned long long, float, double, __half, __half2, __nv_bfloat16,
                      __nv_bfloat162>,
                "atomicAdd takes int, unsigned, unsigned long long, float, double, 16-bit floats and pairs "
                "of these: write a loop around atomicCAS");
  return atomic(Atomic::kAdd, address, value, at);
}
template <typename T>
T atomicSub(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, int, unsigned>, "atomicSub takes int and unsigned: add the negative");
  return atomic(Atomic::kSub, address, value, at);
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(
      OneOf<T, int, unsigned, unsigned long long, float>,
      "atomicExch takes int, unsigned, unsigned long long and float: write a loop around atomicCAS");
  return atomic(Atomic::kExchange, address, value, at);
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(
      OneOf<T, int, unsigned, long long, unsigned long long>,
      "atomicMin takes int, unsigned, long long and unsigned long long: write a loop around atomicCAS");
  return atomic(Atomic::kMin, address, value, at);
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(
      OneOf<T, int, unsigned, long long, unsigned long long>,
      "atomicMax takes int, unsigned, long long and unsigned long long: write a loop around atomicCAS");
  return atomic(Atomic::kMax, address, value, at);
}
// old >= value ? 0 : old + 1
template <typename T>
T atomicInc(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, unsigned>, "atomicInc takes unsigned");
  return atomic(Atomic::kIncrement, address, value, at);
}
// old == 0 || old > value ? value : old - 1
template <typename T>
T atomicDec(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, unsigned>, "atomicDec takes unsigned");
  return atomic(Atomic::kDecrement, address, value, at);
}
template <typename T>
T atomicAnd(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, int, unsigned, unsigned long long>,
                "atomicAnd takes int, unsigned and unsigned long long: write a loop around atomicCAS");
  return atomic(Atomic::kAnd, address, value, at);
}
template <typename T>
T atomicOr(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, int, unsigned, unsigned long long>,
                "atomicOr takes int, unsigned and unsigned long long: write a loop around atomicCAS");
  return atomic(Atomic::kOr, address, value, at);
}
template <typename T>
T atomicXor(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  static_assert(OneOf<T, int, unsigned, unsigned long long>,
                "atomicXor takes int, unsigned and unsigned long long: write a loop around atomicCAS");
  return atomic(Atomic::kXor, address, value, at);
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired,
            Location at = Location::current()) {
  static_assert(OneOf<T, unsigned short, int, unsigned, unsigned long long>,
                "atomicCAS takes unsigned short, int, unsigned and unsigned long long: use __float_as_int");
  return atomic_compare_and_swap(address, expected, desired, at);
}

}  // namespace emulator::cuda
