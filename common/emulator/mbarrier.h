// mbarriers without a GPU. Include common/mbarrier.h, which says what these do; mbarrier.cpp is how.
#pragma once

#include <cstdint>

#include "common/emulator/device.h"

namespace flashsteps {
inline namespace on_emulator {

void mbarrier_init(uint64_t* barrier, int arrivals, emulator::Location at = emulator::Location::current());
void fence_mbarrier_init(emulator::Location at = emulator::Location::current());
void mbarrier_arrive(uint64_t* barrier, emulator::Location at = emulator::Location::current());
void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes,
                               emulator::Location at = emulator::Location::current());
bool mbarrier_try_wait(uint64_t* barrier, int parity, emulator::Location at = emulator::Location::current());
void mbarrier_wait(uint64_t* barrier, int parity, emulator::Location at = emulator::Location::current());
void mbarrier_arrive_cluster(uint64_t* barrier, int cta_rank,
                             emulator::Location at = emulator::Location::current());
void mbarrier_arrive_cluster_relaxed(uint64_t* barrier, int cta_rank,
                                     emulator::Location at = emulator::Location::current());
void mbarrier_wait_cluster(uint64_t* barrier, int parity,
                           emulator::Location at = emulator::Location::current());

}  // namespace on_emulator
}  // namespace flashsteps
