// mma.sync without a GPU. Include common/mma.h, which says what it does; mma.cpp is how.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"

namespace emulator {

void mma_m16n8k16(float* acc, const uint32_t* a, const uint32_t* b, bool bf16, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

template <typename Element>
[[gnu::always_inline]] inline void mma_m16n8k16(float (&acc)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2],
                                                emulator::Location at = emulator::Location::current()) {
  constexpr bool kBf16 = std::is_same_v<Element, emulator::cuda::__nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<Element, emulator::cuda::__half>);
  emulator::mma_m16n8k16(acc, a, b, kBf16, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
