// The copies that lanes have asked for one by one, by cp.async, and that are under way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

struct LaneCopy {
  void* shared;
  const void* global;
  uint8_t bytes;        // 4, 8 or 16 of shared memory
  uint8_t from_global;  // of them; the rest become zeros
  Site site;
  unsigned group = 0;  // how many groups its thread had committed before it
  bool done = false;
};

// There are a thousand of them per tile: a thread's copies are a queue, and its waits take them off in front.
class LaneCopies {
 public:
  void start_cta();
  // These three by the running thread.
  void issue(LaneCopy copy, Location at);
  void commit() { ++queue_of(*self).committed; }
  void wait(unsigned pending_groups, Location at);

  // A moment at which copies may be done, as options.async wants.
  void pass_moment() {
    if (num_on_way_ > 0 && cta->options.async == AsyncMode::kRandom && cta->random.one_in(16)) finish_some();
  }
  // Why the issuer's copy to this address is still under way when somebody touches it.
  std::string describe_missing(const Fiber& issuer, uintptr_t shared, const Fiber& who) const;

 private:
  struct Queue {
    std::vector<LaneCopy> copies;
    size_t first = 0;   // that is under way
    size_t waited = 0;  // so many there were at the last wait
    unsigned committed = 0;
  };
  Queue& queue_of(const Fiber& who) { return queues_[size_t(who.warp * kWarpSize + who.lane)]; }
  void finish(LaneCopy& copy);
  void finish_some();

  std::vector<Queue> queues_;  // per thread
  size_t num_on_way_ = 0;
};

}  // namespace emulator
