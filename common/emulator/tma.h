// TMA without a GPU. Include common/tma.h, which says what these do; tma.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"
#include "common/tensor_map.h"

namespace flashsteps {
inline namespace on_emulator {

// The real one is 64-byte aligned as well. What it holds is the hardware's secret; here it is what was asked
// for.
struct alignas(64) TensorMap {
  TensorMapShape shape;
};

inline TensorMap encode_tensor_map(const TensorMapShape& shape) {
  check_tensor_map(shape);
  return {shape};
}

void tma_load_5d(void* shared, const TensorMap& map, uint64_t* barrier, int c0, int c1, int c2, int c3,
                 int c4, Location at = Location::current());
void tma_load_5d_multicast(void* shared, const TensorMap& map, uint64_t* barrier, uint16_t cta_mask, int c0,
                           int c1, int c2, int c3, int c4, Location at = Location::current());
void tma_store_5d(const TensorMap& map, const void* shared, int c0, int c1, int c2, int c3, int c4,
                  Location at = Location::current());
void tma_store_commit(Location at = Location::current());

template <int PENDING>
[[gnu::always_inline]] inline void tma_store_wait_read(Location at = Location::current()) {
  emulator::tma_store_wait_read(PENDING, at);
}

void fence_proxy_async(Location at = Location::current());

}  // namespace on_emulator
}  // namespace flashsteps
