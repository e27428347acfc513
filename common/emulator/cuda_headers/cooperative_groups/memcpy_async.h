// Asynchronous copies of a group on the emulator.
#pragma once

#include "common/emulator/cuda_headers/cooperative_groups.h"
#include "common/emulator/lane_memcpy.h"

namespace emulator::cuda::cooperative_groups {

template <typename Group, typename Size>
[[gnu::always_inline]] inline void memcpy_async(const Group& group, void* to, const void* from,
                                                const Size& bytes, Location at = Location::current()) {
  lane_memcpy(to, from, size_t(bytes), group.thread_rank(), group.size(), at);
}
// Elements, of which there is room for so many at `to`, and so many at `from`.
template <typename Group, typename T, typename Layout>
[[gnu::always_inline]] inline void memcpy_async(const Group& group, T* to, const Layout& room, const T* from,
                                                const Layout& available, Location at = Location::current()) {
  const size_t count = size_t(room) < size_t(available) ? size_t(room) : size_t(available);
  lane_memcpy(to, from, count * sizeof(T), group.thread_rank(), group.size(), at);
}

// For all copies of the group but the last so many.
template <unsigned PENDING, typename Group>
void wait_prior(const Group& group, Location at = Location::current()) {
  cp_async_wait(int(PENDING), at);
  group.sync(at);
}
template <typename Group>
void wait(const Group& group, Location at = Location::current()) {
  wait_prior<0>(group, at);
}

}  // namespace emulator::cuda::cooperative_groups
