// What the lanes of a warp do together: shuffles, votes, matches, reductions. Part of cuda.h.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"

namespace emulator::cuda {

template <typename T, typename... Allowed>
concept OneOf = (std::is_same_v<T, Allowed> || ...);

// ---- Shuffles

// As in CUDA, smaller integers become int.
template <typename T>
using Shuffled = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, int, T>;

template <typename T>
Shuffled<T> shuffle_value(ShuffleMode mode, unsigned mask, T operand_value, unsigned operand, int width,
                          Location at) {
  static_assert(
      (std::is_arithmetic_v<T> && sizeof(T) <= 8) || OneOf<T, __half, __half2, __nv_bfloat16, __nv_bfloat162>,
      "CUDA has no shuffle of this type: shuffle its parts");
  Shuffled<T> value = operand_value;
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = shuffle(mode, mask, bits, operand, width, at);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
Shuffled<T> __shfl_sync(unsigned mask, T value, int lane, int width = 32, Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kIndex, mask, value, unsigned(lane), width, at);
}
template <typename T>
Shuffled<T> __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                            Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kXor, mask, value, unsigned(lane_mask), width, at);
}
template <typename T>
Shuffled<T> __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                             Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kDown, mask, value, delta, width, at);
}
template <typename T>
Shuffled<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                           Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kUp, mask, value, delta, width, at);
}

// ---- Votes

inline unsigned __activemask(Location at = Location::current()) { return active_mask(at); }
inline unsigned __ballot_sync(unsigned mask, int predicate, Location at = Location::current()) {
  return gather("__ballot_sync", mask, predicate != 0, at).lanes_with(true);
}
inline int __any_sync(unsigned mask, int predicate, Location at = Location::current()) {
  return gather("__any_sync", mask, predicate != 0, at).lanes_with(true) != 0;
}
inline int __all_sync(unsigned mask, int predicate, Location at = Location::current()) {
  return gather("__all_sync", mask, predicate != 0, at).lanes_with(false) == 0;
}

// ---- Matches: values are equal if their bits are

template <typename T>
unsigned matching_lanes(const char* op, unsigned mask, T value, unsigned& lanes, Location at) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "CUDA matches numbers of up to 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const Gathered all = gather(op, mask, bits, at);
  lanes = all.lanes;
  return all.lanes_with(bits);
}

// The lanes that have the same value as this one.
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, Location at = Location::current()) {
  unsigned lanes;
  return matching_lanes("__match_any_sync", mask, value, lanes, at);
}
// All lanes if they have the same value, otherwise none.
template <typename T>
unsigned __match_all_sync(unsigned mask, T value, int* all_equal, Location at = Location::current()) {
  unsigned lanes;
  const unsigned same = matching_lanes("__match_all_sync", mask, value, lanes, at);
  *all_equal = same == lanes;
  return *all_equal ? lanes : 0;
}

// ---- Reductions (sm_80)

template <typename T, typename Operation>
T reduce_lanes(const char* op, unsigned mask, T value, Location at, Operation operation) {
  static_assert(OneOf<T, int, unsigned>, "__reduce takes int and unsigned: reduce others by shuffles");
  const Gathered all = gather(op, mask, uint64_t(value), at);
  unsigned rest = all.lanes & (all.lanes - 1);  // all but the first
  T result = T(all.values[__builtin_ctz(all.lanes)]);
  for (; rest != 0; rest &= rest - 1) result = operation(result, T(all.values[__builtin_ctz(rest)]));
  return result;
}

template <typename T>
T __reduce_add_sync(unsigned mask, T value, Location at = Location::current()) {
  return reduce_lanes("__reduce_add_sync", mask, value, at,
                      [](T a, T b) { return T(unsigned(a) + unsigned(b)); });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, Location at = Location::current()) {
  return reduce_lanes("__reduce_min_sync", mask, value, at, [](T a, T b) { return std::min(a, b); });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, Location at = Location::current()) {
  return reduce_lanes("__reduce_max_sync", mask, value, at, [](T a, T b) { return std::max(a, b); });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, Location at = Location::current()) {
  return reduce_lanes("__reduce_and_sync", mask, value, at, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, Location at = Location::current()) {
  return reduce_lanes("__reduce_or_sync", mask, value, at, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, Location at = Location::current()) {
  return reduce_lanes("__reduce_xor_sync", mask, value, at, [](unsigned a, unsigned b) { return a ^ b; });
}

}  // namespace emulator::cuda
