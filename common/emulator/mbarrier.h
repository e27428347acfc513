// mbarriers without a GPU. Include common/mbarrier.h, which says what these do; mbarrier.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"

namespace emulator {

void mbarrier_init(uint64_t* barrier, int arrivals, Location at);
void fence_mbarrier_init(Location at);
void mbarrier_arrive(uint64_t* barrier, Location at);
void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes, Location at);
void mbarrier_arrive_cluster(uint64_t* barrier, int cta_rank, bool relaxed, Location at);
bool mbarrier_try_wait(uint64_t* barrier, int parity, bool cluster_scope, Location at);

}  // namespace emulator

namespace flashsteps {
inline namespace on_emulator {

[[gnu::always_inline]] inline void mbarrier_init(uint64_t* barrier, int arrivals,
                                                 emulator::Location at = emulator::Location::current()) {
  emulator::mbarrier_init(barrier, arrivals, at);
}

[[gnu::always_inline]] inline void fence_mbarrier_init(
    emulator::Location at = emulator::Location::current()) {
  emulator::fence_mbarrier_init(at);
}

[[gnu::always_inline]] inline void mbarrier_arrive(uint64_t* barrier,
                                                   emulator::Location at = emulator::Location::current()) {
  emulator::mbarrier_arrive(barrier, at);
}

[[gnu::always_inline]] inline void mbarrier_arrive_expect_tx(
    uint64_t* barrier, int bytes, emulator::Location at = emulator::Location::current()) {
  emulator::mbarrier_arrive_expect_tx(barrier, bytes, at);
}

[[gnu::always_inline]] inline bool mbarrier_try_wait(uint64_t* barrier, int parity,
                                                     emulator::Location at = emulator::Location::current()) {
  return emulator::mbarrier_try_wait(barrier, parity, /*cluster_scope=*/false, at);
}

[[gnu::always_inline]] inline void mbarrier_wait(uint64_t* barrier, int parity,
                                                 emulator::Location at = emulator::Location::current()) {
  while (!emulator::mbarrier_try_wait(barrier, parity, /*cluster_scope=*/false, at)) {
  }
}

[[gnu::always_inline]] inline void mbarrier_arrive_cluster(
    uint64_t* barrier, int cta_rank, emulator::Location at = emulator::Location::current()) {
  emulator::mbarrier_arrive_cluster(barrier, cta_rank, /*relaxed=*/false, at);
}

[[gnu::always_inline]] inline void mbarrier_arrive_cluster_relaxed(
    uint64_t* barrier, int cta_rank, emulator::Location at = emulator::Location::current()) {
  emulator::mbarrier_arrive_cluster(barrier, cta_rank, /*relaxed=*/true, at);
}

[[gnu::always_inline]] inline void mbarrier_wait_cluster(
    uint64_t* barrier, int parity, emulator::Location at = emulator::Location::current()) {
  while (!emulator::mbarrier_try_wait(barrier, parity, /*cluster_scope=*/true, at)) {
  }
}

}  // namespace on_emulator
}  // namespace flashsteps
