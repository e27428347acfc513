// Which addresses the running thread may touch, as the hooks' fast path sees it.
#pragma once

#include <cstdint>

#include "common/emulator/fiber.h"

namespace emulator {

// Addresses at which an access of up to 16 bytes is all right, without looking any further. One comparison,
// whatever the size of the access: the last 15 bytes of the memory behind it are left out.
struct Window {
  static constexpr uintptr_t kLongestAccess = 16;
  uintptr_t base = 0;
  uintptr_t span = 0;

  constexpr Window() = default;
  constexpr Window(uintptr_t begin, uintptr_t bytes)
      : base(begin), span(bytes < kLongestAccess ? 0 : bytes - (kLongestAccess - 1)) {}
  bool holds(uintptr_t address) const { return address - base < span; }
};

inline constexpr Window kEverything{0, UINTPTR_MAX};

struct Windows {
  // The running thread's own stack. Outside of kernels everything may be touched: the kernels' translation
  // units contain host code as well, and the linker may take the instrumented copy of an inline function for
  // all.
  Window stack = kEverything;
  // Only when nobody wants to know about each access; see set_windows() in scheduler.cpp.
  Window shared;
  Window global[2];  // the last two ranges touched: K and V, in most loops
  unsigned oldest_global = 0;
};
extern constinit thread_local Windows windows EMULATOR_FAST_TLS;

inline bool in_kernel() { return windows.stack.span != kEverything.span; }

}  // namespace emulator
