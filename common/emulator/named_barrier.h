// Named barriers without a GPU. Include common/named_barrier.h, which says what they do; rendezvous.cpp is
// how.
#pragma once

#include "common/emulator/device.h"

namespace flashsteps {
inline namespace on_emulator {

void bar_sync(int id, int num_threads, emulator::Location at = emulator::Location::current());
void bar_arrive(int id, int num_threads, emulator::Location at = emulator::Location::current());

}  // namespace on_emulator
}  // namespace flashsteps
