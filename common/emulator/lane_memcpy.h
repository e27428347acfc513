// memcpy_async of <cuda/barrier> and of cooperative groups: from global to shared memory each thread copies
// its pieces by cp.async. Other copies, and what is not a multiple of 4 bytes, CUDA does at once, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/cp_async.h"
#include "common/emulator/device.h"

namespace emulator {

// By the thread of this rank of so many, in one group of cp.async. Inlined, so that reports name the line of
// the kernel.
[[gnu::always_inline]] inline void lane_memcpy(void* to, const void* from, size_t bytes, size_t rank,
                                               size_t count, Location at) {
  const size_t units = uintptr_t(to) | uintptr_t(from) | bytes;
  const size_t unit = units % 16 == 0 ? 16 : units % 8 == 0 ? 8 : units % 4 == 0 ? 4 : 1;
  const bool is_asynchronous = unit >= 4 && is_shared(to) && !is_shared(from);
  for (size_t i = rank * unit; i < bytes; i += count * unit) {
    char* const piece = static_cast<char*>(to) + i;
    const char* const source = static_cast<const char*>(from) + i;
    if (is_asynchronous) {
      cp_async(piece, source, int(unit), int(unit), at);
    } else {
      for (size_t byte = 0; byte < unit; ++byte) piece[byte] = source[byte];
    }
  }
  flashsteps::cp_async_commit(at);
}

}  // namespace emulator
