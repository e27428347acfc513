// Named barriers without a GPU. Include common/named_barrier.h, which says what they do; rendezvous.cpp is
// how.
#pragma once

#include "common/emulator/device.h"

namespace flashsteps {
inline namespace on_emulator {

inline void bar_sync(int id, int num_threads, emulator::Location at = emulator::Location::current()) {
  emulator::named_barrier(id, num_threads, /*wait=*/true, at);
}

inline void bar_arrive(int id, int num_threads, emulator::Location at = emulator::Location::current()) {
  emulator::named_barrier(id, num_threads, /*wait=*/false, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
