// cooperative_groups::reduce on the emulator, for tiles and coalesced groups.
#pragma once

#include <cooperative_groups.h>

namespace emulator::cuda::cooperative_groups {

template <typename T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <typename T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};

// The order of operations is unspecified in CUDA as well.
template <unsigned SIZE, typename Parent, typename T, typename Operation>
T reduce(const thread_block_tile<SIZE, Parent>& tile, T value, Operation operation,
         Location at = Location::current()) {
  for (unsigned distance = SIZE / 2; distance > 0; distance /= 2) {
    const T other = tile.shfl_xor(value, distance, at);
    // In a block of 8 threads, a tile of 32 has 8.
    const bool exists = (thread_block::thread_rank() ^ distance) < thread_block::num_threads();
    if (exists) value = operation(value, other);
  }
  return value;
}
template <typename T, typename Operation>
T reduce(const coalesced_group& group, T value, Operation operation, Location at = Location::current()) {
  T result = group.shfl(value, 0, at);
  for (unsigned rank = 1; rank < group.num_threads(); ++rank)
    result = operation(result, group.shfl(value, rank, at));
  return result;
}

}  // namespace emulator::cuda::cooperative_groups
