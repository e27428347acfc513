// Cooperative groups on the emulator: the CTA and tiles of its warps. The CUDA C++ Programming Guide has
// more.
#pragma once

#include <cstring>
#include <type_traits>

#include "common/cluster.h"
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
template <unsigned SIZE>
struct block_tile_memory {
  static_assert(SIZE == 0, "a tile of several warps is not emulated");
};
inline thread_block this_thread_block(auto& /* block_tile_memory */) { return {}; }

// A group's shuffle takes any type that is only bytes, such as a struct, and moves it in parts.
template <typename T>
T shuffle_in_group(ShuffleMode mode, unsigned mask, T value, unsigned operand, int size, Location at) {
  static_assert(std::is_trivially_copyable_v<T>, "a group shuffles what may be copied byte by byte");
  for (size_t offset = 0; offset < sizeof(T); offset += sizeof(uint64_t)) {
    const size_t bytes = std::min(sizeof(T) - offset, sizeof(uint64_t));
    uint64_t part = 0;
    std::memcpy(&part, reinterpret_cast<char*>(&value) + offset, bytes);
    part = shuffle(mode, mask, part, operand, size, at);
    std::memcpy(reinterpret_cast<char*>(&value) + offset, &part, bytes);
  }
  return value;
}

// SIZE threads whose ranks follow each other, all in one warp.
template <unsigned SIZE, typename Parent = void>
class thread_block_tile {
  static_assert(SIZE >= 1 && SIZE <= 32 && (SIZE & (SIZE - 1)) == 0,
                "tiles of 1, 2, 4, 8, 16 or 32 threads are emulated");

 public:
  thread_block_tile() = default;
  // Who does not care of what it is a tile writes thread_block_tile<SIZE>.
  template <typename Other>
  thread_block_tile(const thread_block_tile<SIZE, Other>&) {
    static_assert(std::is_void_v<Parent>, "this is a tile of another group");
  }
  static void sync(Location at = Location::current()) { __syncwarp(mask(), at); }
  static unsigned thread_rank() { return thread_block::thread_rank() % SIZE; }
  static constexpr unsigned num_threads() { return SIZE; }
  static constexpr unsigned size() { return SIZE; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / SIZE; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + SIZE - 1) / SIZE; }

  template <typename T>
  static T shfl(T value, int rank, Location at = Location::current()) {
    return shuffle_in_group(ShuffleMode::kIndex, mask(), value, unsigned(rank), SIZE, at);
  }
  template <typename T>
  static T shfl_down(T value, unsigned delta, Location at = Location::current()) {
    return shuffle_in_group(ShuffleMode::kDown, mask(), value, delta, SIZE, at);
  }
  template <typename T>
  static T shfl_up(T value, unsigned delta, Location at = Location::current()) {
    return shuffle_in_group(ShuffleMode::kUp, mask(), value, delta, SIZE, at);
  }
  template <typename T>
  static T shfl_xor(T value, unsigned lane_mask, Location at = Location::current()) {
    return shuffle_in_group(ShuffleMode::kXor, mask(), value, lane_mask, SIZE, at);
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
  // The emulator's own: its lanes.
  static unsigned mask() { return (SIZE == 32 ? 0xffffffff : (1u << SIZE % 32) - 1) << first_lane(); }

 private:
  static unsigned first_lane() { return thread_block::thread_rank() % 32 / SIZE * SIZE; }
};

// Any of these groups. Its size is known when it runs.
class thread_group {
 public:
  thread_group(const thread_block&) : size_(thread_block::num_threads()) {}
  template <unsigned SIZE, typename Parent>
  thread_group(const thread_block_tile<SIZE, Parent>&) : size_(SIZE), is_tile_(true) {}
  void sync(Location at = Location::current()) const {
    is_tile_ ? __syncwarp(mask(), at) : __syncthreads(at);
  }
  unsigned thread_rank() const { return thread_block::thread_rank() % size_; }
  unsigned num_threads() const { return size_; }
  unsigned size() const { return size_; }

 private:
  friend thread_group tiled_partition(const thread_group& parent, unsigned size);
  unsigned mask() const { return ~0u >> (32 - size_) << (thread_block::thread_rank() % 32 / size_ * size_); }

  unsigned size_;
  bool is_tile_ = false;
};

inline thread_group tiled_partition(const thread_group& parent, unsigned size) {
  thread_group tile = parent;
  tile.size_ = size;
  tile.is_tile_ = true;
  return tile;
}

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

// All threads of the launch. They wait for each other where the launch is cooperative, which steps' are not.
class grid_group {
 public:
#ifdef FLASHSTEPS_CUDA_PROGRAM
  static void sync(Location at = Location::current()) { grid_sync(at); }
  static bool is_valid() { return is_cooperative_launch(); }
#else
  template <typename T = void>
  static void sync() {
    static_assert(sizeof(T*) == 0, "the CTAs of a grid do not wait for each other, launch two kernels");
  }
  static bool is_valid() { return false; }
#endif
  static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long block_rank() {
    return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned long long size() { return num_threads(); }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
  }
  static dim3 group_dim() { return gridDim; }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 block_index() { return blockIdx; }
};
inline grid_group this_grid() { return {}; }

#ifdef FLASHSTEPS_CUDA_PROGRAM
class cluster_group {
 public:
  struct arrival_token {};
  static void sync(Location at = Location::current()) {
    flashsteps::cluster_arrive(at);
    flashsteps::cluster_wait(at);
  }
  static arrival_token barrier_arrive(Location at = Location::current()) {
    flashsteps::cluster_arrive(at);
    return {};
  }
  static void barrier_wait(Location at = Location::current()) { flashsteps::cluster_wait(at); }
  static void barrier_wait(arrival_token&&, Location at = Location::current()) {
    flashsteps::cluster_wait(at);
  }
  static unsigned block_rank() { return unsigned(cluster_rank()); }
  static unsigned num_blocks() { return unsigned(cluster_size()); }
  static dim3 dim_blocks() { return cluster_dim(); }
  static dim3 block_index() {
    const uint3 size = cluster_dim();
    return {blockIdx.x % size.x, blockIdx.y % size.y, blockIdx.z % size.z};
  }
  static unsigned num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned size() { return num_threads(); }
  static unsigned thread_rank() {
    return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
  }
  static dim3 dim_threads() {
    const uint3 size = cluster_dim();
    return {size.x * blockDim.x, size.y * blockDim.y, size.z * blockDim.z};
  }
  // What the CTA of this rank has where the running one has this.
  template <typename T>
  static T* map_shared_rank(T* shared, int rank, Location at = Location::current()) {
    return static_cast<T*>(in_cluster(shared, rank, at));
  }
  static unsigned query_shared_rank(const void* shared, Location at = Location::current()) {
    return unsigned(rank_of_shared(shared, at));
  }
};
inline cluster_group this_cluster() { return {}; }
#else
template <typename T = void>
void this_cluster() {
  static_assert(sizeof(T*) == 0, "use launch_clusters() of common/launch.h, and common/cluster.h");
}
#endif
// The lanes of a warp that come here together: their ranks leave no gaps, whichever lanes they are.
class coalesced_group {
 public:
  explicit coalesced_group(unsigned lanes) : lanes_(lanes) {}
  void sync(Location at = Location::current()) const { __syncwarp(lanes_, at); }
  unsigned num_threads() const { return unsigned(__popc(lanes_)); }
  unsigned size() const { return num_threads(); }
  unsigned thread_rank() const {
    return unsigned(__popc(lanes_ & ((1u << thread_block::thread_rank() % 32) - 1)));
  }
  // Of a thread with a rank that the group does not have, a shuffle returns the caller's own value.
  template <typename T>
  T shfl(T value, unsigned rank, Location at = Location::current()) const {
    return from_rank(value, rank % num_threads(), at);
  }
  template <typename T>
  T shfl_down(T value, unsigned delta, Location at = Location::current()) const {
    return from_rank(value, thread_rank() + delta < num_threads() ? thread_rank() + delta : thread_rank(),
                     at);
  }
  template <typename T>
  T shfl_up(T value, unsigned delta, Location at = Location::current()) const {
    return from_rank(value, thread_rank() < delta ? thread_rank() : thread_rank() - delta, at);
  }
  int any(int predicate, Location at = Location::current()) const {
    return __any_sync(lanes_, predicate, at);
  }
  int all(int predicate, Location at = Location::current()) const {
    return __all_sync(lanes_, predicate, at);
  }
  unsigned mask() const { return lanes_; }  // the emulator's own

 private:
  template <typename T>
  T from_rank(T value, unsigned rank, Location at) const {
    unsigned lanes = lanes_;
    for (; rank > 0; --rank) lanes &= lanes - 1;
    return shuffle_in_group(ShuffleMode::kIndex, lanes_, value, unsigned(__ffs(int(lanes)) - 1), 32, at);
  }
  unsigned lanes_;
};
inline coalesced_group coalesced_threads(Location at = Location::current()) {
  return coalesced_group(__activemask(at));
}

// The lanes of a tile or of a coalesced_group that have the same value as this one.
coalesced_group labeled_partition(const auto& group, auto label, Location at = Location::current()) {
  static_assert(std::is_integral_v<decltype(label)>, "a label is an integer");
  return coalesced_group(__match_any_sync(group.mask(), (long long)label, at));
}
coalesced_group binary_partition(const auto& group, bool predicate, Location at = Location::current()) {
  return labeled_partition(group, predicate, at);
}

}  // namespace emulator::cuda::cooperative_groups
