// Clusters without a GPU. Include common/cluster.h, which says what these do; cluster.cpp is how.
#pragma once

#include "common/emulator/device.h"

namespace emulator {

int cluster_ctarank();
void cluster_arrive(Location at);
void cluster_wait(Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

inline int cluster_ctarank() { return emulator::cluster_ctarank(); }
inline void cluster_arrive(emulator::Location at = emulator::Location::current()) {
  emulator::cluster_arrive(at);
}
inline void cluster_wait(emulator::Location at = emulator::Location::current()) {
  emulator::cluster_wait(at);
}

}  // namespace on_emulator
}  // namespace flashsteps
