// The log of a lane's memory accesses, and how logs become counts of warp instructions.
#pragma once

#include <cstdint>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

struct Access {
  uint64_t address;
  Site site;
  uint8_t bytes;
  bool shared;
  bool write;
  bool async = false;  // nobody waits for it here
};
// Of the running thread, if accesses are counted.
void add_to_log(const Access& access);
inline void log_access(const Access& access) {
  if (cta->options.count) add_to_log(access);
}

// A warp instruction that accesses memory.
struct Request {
  unsigned lanes = 0;
  uint64_t address[kWarpSize];
  size_t bytes;  // per lane
  bool shared;
  bool write = false;
  bool async = false;
};
// Adds one instruction to the counters of shared memory; returns its wavefronts.
int count_shared(const Request& request, Counters& counters);
// The same for global memory; returns its sectors.
int count_global(const Request& request, Counters& counters);

class AccessLog {
 public:
  void start_cta(int num_threads);
  bool full(const Fiber& fiber) { return lane_of(fiber).accesses.size() >= kCapacity; }
  void add(const Fiber& fiber, const Access& access) { lane_of(fiber).accesses.push_back(access); }

  // Counts what the warp's lanes have logged, as far as their order is known; see counters.cpp.
  void count_warp(int warp);

 private:
  static constexpr size_t kCapacity = 4096;  // bounds memory, for kernels that run long without a barrier

  struct Lane {
    std::vector<Access> accesses;
    size_t next = 0;  // not counted yet

    bool empty() const { return next == accesses.size(); }
    const Access& head() const { return accesses[next]; }
  };
  class Future;
  static unsigned choose_lanes(const Lane* lanes, unsigned pending, unsigned running, Future& future);

  Lane& lane_of(const Fiber& fiber) { return lanes_[size_t(fiber.warp * kWarpSize + fiber.lane)]; }

  std::vector<Lane> lanes_;
};

}  // namespace emulator
