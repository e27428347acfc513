// Cooperative groups on the emulator: the CTA and tiles of its warps. The CUDA C++ Programming Guide has
// more.
#pragma once

#include "common/cuda.h"

namespace emulator::cuda::cooperative_groups {

class thread_block {
 public:
  static void sync(Location at = Location::current()) { __syncthreads(at); }
  static unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned size() { return num_threads(); }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_index() { return blockIdx; }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
};

inline thread_block this_thread_block() { return {}; }

// SIZE threads whose ranks follow each other, all in one warp.
template <unsigned SIZE, typename Parent = void>
class thread_block_tile {
  static_assert(SIZE >= 1 && SIZE <= 32 && (SIZE & (SIZE - 1)) == 0,
                "tiles of 1, 2, 4, 8, 16 or 32 threads are emulated");

 public:
  static void sync(Location at = Location::current()) { __syncwarp(mask(), at); }
  static unsigned thread_rank() { return thread_block::thread_rank() % SIZE; }
  static constexpr unsigned num_threads() { return SIZE; }
  static constexpr unsigned size() { return SIZE; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / SIZE; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + SIZE - 1) / SIZE; }

  template <typename T>
  static T shfl(T value, int rank, Location at = Location::current()) {
    return T(__shfl_sync(mask(), value, rank, SIZE, at));
  }
  template <typename T>
  static T shfl_down(T value, unsigned delta, Location at = Location::current()) {
    return T(__shfl_down_sync(mask(), value, delta, SIZE, at));
  }
  template <typename T>
  static T shfl_up(T value, unsigned delta, Location at = Location::current()) {
    return T(__shfl_up_sync(mask(), value, delta, SIZE, at));
  }
  template <typename T>
  static T shfl_xor(T value, unsigned lane_mask, Location at = Location::current()) {
    return T(__shfl_xor_sync(mask(), value, int(lane_mask), SIZE, at));
  }
  static int any(int predicate, Location at = Location::current()) {
    return __any_sync(mask(), predicate, at);
  }
  static int all(int predicate, Location at = Location::current()) {
    return __all_sync(mask(), predicate, at);
  }
  static unsigned ballot(int predicate, Location at = Location::current()) {
    return __ballot_sync(mask(), predicate, at) >> first_lane();
  }

 private:
  static unsigned first_lane() { return thread_block::thread_rank() % 32 / SIZE * SIZE; }
  static unsigned mask() { return (SIZE == 32 ? 0xffffffff : (1u << SIZE % 32) - 1) << first_lane(); }
};

template <unsigned SIZE>
thread_block_tile<SIZE, thread_block> tiled_partition(const thread_block&) {
  return {};
}
template <unsigned SIZE, unsigned PARENT_SIZE, typename Grandparent>
thread_block_tile<SIZE, thread_block_tile<PARENT_SIZE>> tiled_partition(
    const thread_block_tile<PARENT_SIZE, Grandparent>&) {
  static_assert(SIZE <= PARENT_SIZE, "a tile is no larger than what it is a part of");
  return {};
}

template <typename Group>
void sync(const Group& group, Location at = Location::current()) {
  group.sync(at);
}

template <typename T = void>
void this_grid() {
  static_assert(sizeof(T*) == 0, "the CTAs of a grid do not wait for each other, launch two kernels");
}
template <typename T = void>
void this_cluster() {
  static_assert(sizeof(T*) == 0, "use launch_clusters() of common/launch.h, and common/cluster.h");
}
template <typename T = void>
void coalesced_threads() {
  static_assert(sizeof(T*) == 0, "use __activemask() and functions that take a mask");
}

}  // namespace emulator::cuda::cooperative_groups
