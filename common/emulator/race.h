// Data races: two accesses to the same bytes, at least one of them a write, with nothing that orders them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

// A plain access's place in the program, in 32 bits: its pc relative to the runtime's own code, which is
// linked into the same module. Ordered as the pcs are.
using Site = uint32_t;
Site site_of(uintptr_t pc);
uintptr_t pc_of(Site site);

// ---- Shared memory: vector clocks, one per warp.
//
// A warp's clock ticks whenever its threads synchronise. An access is remembered as (clock, warp, lane); it
// happened before the current one if the current thread has since learned, through a barrier, of that warp's
// clock. Lanes of the same warp are ordered only by __syncwarp or a barrier in between, which makes the clock
// tick.
//
// It errs on the side of silence: __syncwarp of some lanes counts for the whole warp, of several concurrent
// readers two are remembered, atomics and volatile accesses are not looked at.
class RaceDetector {
 public:
  void start_cta();
  void shared_access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Site site);

  void warp_synchronised(int warp);
  void cta_synchronised();
  // What the warp did becomes known to the barrier, and what the barrier knows, to the warp.
  void barrier_arrival(int barrier, int warp, bool first_of_round);
  void barrier_departure(int barrier, int warp);

 private:
  using Clock = uint32_t;
  using VectorClock = std::array<Clock, kMaxWarps>;

  // Who accessed, when and where: clock 21 bits, warp 6, lane 5, site 32. Zero: nobody.
  using Epoch = uint64_t;
  static constexpr int kClockShift = 43;
  static constexpr int kWarpShift = 37;
  static constexpr int kLaneShift = 32;
  static constexpr Clock kMaxClock = (1u << 21) - 1;
  static bool same_time(Epoch a, Epoch b) { return (a >> kLaneShift) == (b >> kLaneShift); }

  // Per two bytes.
  struct Cell {
    Epoch write;
    Epoch reads[2];
  };
  struct Shadow {
    uintptr_t base;
    std::vector<Cell> cells;
  };

  Cell* cells_of(uintptr_t address);
  bool happened_before(Epoch earlier, const Fiber& who) const;
  void tick(int warp);
  void forget_everything();
  [[noreturn]] void report(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                           bool write) const;

  std::array<VectorClock, kMaxWarps> clocks_ = {};
  std::array<VectorClock, kNumBarriers> barriers_ = {};
  std::vector<Shadow> shadows_;  // of the dynamic shared memory, and of what else is shared
  Clock latest_ = 0;             // no clock is beyond it
};

// ---- Global memory: between CTAs nothing orders anything within a launch, so it is enough to remember which
// CTA wrote and which read, for as long as the launch runs.
class GlobalRaces {
 public:
  GlobalRaces(Launch& launch, bool enabled);
  ~GlobalRaces();

 private:
  Launch& launch_;
};
void global_access(uintptr_t address, size_t bytes, bool write, Site site);

}  // namespace emulator
