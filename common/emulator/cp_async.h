// cp.async without a GPU. Include common/cp_async.h, which says what these do; cp_async.cpp is how.
#pragma once

#include "common/emulator/device.h"

namespace emulator {

void cp_async_wait(int pending, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

void cp_async_16(void* shared, const void* global, emulator::Location at = emulator::Location::current());
void cp_async_16_zfill(void* shared, const void* global, bool valid,
                       emulator::Location at = emulator::Location::current());
void cp_async_commit(emulator::Location at = emulator::Location::current());

template <int PENDING>
[[gnu::always_inline]] inline void cp_async_wait(emulator::Location at = emulator::Location::current()) {
  emulator::cp_async_wait(PENDING, at);
}

}  // namespace on_emulator
}  // namespace flashsteps
