// cooperative_groups::inclusive_scan and exclusive_scan on the emulator, for tiles.
#pragma once

#include <cooperative_groups/reduce.h>

namespace emulator::cuda::cooperative_groups {

// The values of the threads up to and with this one, joined.
template <unsigned SIZE, typename Parent, typename T, typename Operation = plus<T>>
T inclusive_scan(const thread_block_tile<SIZE, Parent>& tile, T value, Operation operation = {},
                 Location at = Location::current()) {
  for (unsigned distance = 1; distance < SIZE; distance *= 2) {
    const T before = tile.shfl_up(value, distance, at);
    if (tile.thread_rank() >= distance) value = operation(before, value);
  }
  return value;
}

// Of the threads in front of this one: for the first thread, which has none, an empty value.
template <unsigned SIZE, typename Parent, typename T, typename Operation = plus<T>>
T exclusive_scan(const thread_block_tile<SIZE, Parent>& tile, T value, Operation operation = {},
                 Location at = Location::current()) {
  const T before = tile.shfl_up(inclusive_scan(tile, value, operation, at), 1, at);
  return tile.thread_rank() == 0 ? T{} : before;
}

}  // namespace emulator::cuda::cooperative_groups
