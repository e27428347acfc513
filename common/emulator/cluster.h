// Clusters without a GPU. Include common/cluster.h, which says what these do; cluster.cpp is how.
#pragma once

#include <type_traits>

#include "common/emulator/device.h"

namespace emulator {

void store_cluster(void* to, const void* value, size_t bytes, int cta_rank, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

int cluster_ctarank();
void cluster_arrive(emulator::Location at = emulator::Location::current());
void cluster_wait(emulator::Location at = emulator::Location::current());

template <typename T>
[[gnu::always_inline]] inline void store_cluster(T* to, const T& value, int cta_rank,
                                                 emulator::Location at = emulator::Location::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  static_assert(std::is_trivially_copyable_v<T>);
  emulator::store_cluster(to, &value, sizeof(T), cta_rank, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
