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

constexpr size_t kChunkBytes = 16;  // what a swizzle moves

// ---- Shared memory: vector clocks.
//
// Every warp has a time of its own, which ticks whenever one of its threads lets others know what it has done
// (a barrier, an arrival, a fence). An access is remembered as (time, warp, lane). It happened before the
// current one if it is of the same thread, or if the current thread has since learned, through a barrier, of
// that warp and that time. Mbarriers count as warps of their own: the copies that they track write in their
// name, at a time that only those learn of who wait until the copies are complete.
//
// The copy engine has a way of its own to shared memory, the async proxy. What threads have written must not
// only have happened before a copy, but lie behind a proxy fence too: that is learned in the same way.
//
// It errs on the side of silence: __syncwarp of some lanes counts for the whole warp; when several lanes of a
// warp let others know at different times, the latest counts for each; of several concurrent readers two are
// remembered; atomics and volatile accesses are not looked at.
class RaceDetector {
 public:
  using Time = uint32_t;

  void start_cta();
  void shared_access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Site site);

  void warp_synchronised(int warp);
  void cta_synchronised();
  // What the thread did and knows becomes known to the barrier, and what the barrier knows, to the warp.
  void barrier_arrival(int barrier, const Fiber& who, bool first_of_round);
  void barrier_departure(int barrier, int warp);

  // The same for an mbarrier, by its number. Who waits learns what was known when the last phase completed.
  static constexpr int kMaxMbarriers = 32;
  void mbarrier_initialised(int mbarrier);
  void mbarrier_arrival(int mbarrier, const Fiber& who);
  void mbarrier_completed(int mbarrier);
  void mbarrier_waited(int mbarrier, const Fiber& who);

  void proxy_fence(const Fiber& who);

  // Between the two of a load, and then until they have waited for it, threads may not touch these bytes.
  // Returns when it was issued.
  Time load_issued(int mbarrier, const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void load_landed(int mbarrier, Time issued);
  // Between the two of a store, threads may not write these bytes.
  void store_issued(const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void store_waited(const Fiber& who, uintptr_t address, size_t bytes, Site site);

  // Which chunk of a box's rows a swizzled load has put at this address.
  struct Chunk {
    int column = -1;  // -1: no such load was the last to write here
    int swizzle_bytes = 0;
    uint64_t load = 0;  // of several loads each has its own
    Site site() const { return Site(load); }
  };
  void remember_chunk(uintptr_t address, int column, int swizzle_bytes);
  Chunk chunk_at(uintptr_t address);

 private:
  // Who has a time: warps, then mbarriers.
  static constexpr int kFirstMbarrier = kMaxWarps;
  static constexpr int kMaxAgents = kMaxWarps + kMaxMbarriers;

  // What is known to have happened: of each agent everything up to `all`, and of some lanes of a warp
  // everything up to `some`, when that is later.
  struct Clock {
    std::array<Time, kMaxAgents> all = {};
    std::array<Time, kMaxWarps> some = {};
    std::array<unsigned, kMaxWarps> lanes = {};
  };
  struct Knowledge {
    Clock happened;
    Clock fenced;  // and lies behind a proxy fence
  };

  // Who accessed, when and where: time 21 bits, agent 6, lane 5, site 32. Zero: nobody.
  using Epoch = uint64_t;
  static constexpr int kTimeShift = 43;
  static constexpr int kAgentShift = 37;
  static constexpr int kLaneShift = 32;
  static constexpr Time kMaxTime = (1u << 21) - 1;
  static bool same_time(Epoch a, Epoch b) { return (a >> kLaneShift) == (b >> kLaneShift); }
  static Epoch make_epoch(Time time, int agent, int lane, Site site) {
    return Epoch(time) << kTimeShift | Epoch(agent) << kAgentShift | Epoch(lane) << kLaneShift | site;
  }
  static Time time_of(Epoch epoch) { return Time(epoch >> kTimeShift); }
  static int agent_of(Epoch epoch) { return int(epoch >> kAgentShift) & 63; }
  static int lane_of(Epoch epoch) { return int(epoch >> kLaneShift) & 31; }

  // Per two bytes.
  struct Cell {
    Epoch write;
    Epoch reads[2];
  };
  struct Shadow {
    uintptr_t base;
    std::vector<Cell> cells;
    std::vector<Chunk> chunks;  // per 16 bytes; outdated unless the cells name the same load
  };
  struct Mbarrier {
    Knowledge collected;             // up to now
    Knowledge completed;             // up to the end of the last phase
    std::vector<Time> loads_on_way;  // when they were issued
  };
  struct StoreSource {
    uintptr_t begin;
    size_t bytes;
    const Fiber* who;
    Site site;
  };

  Shadow& shadow_of(uintptr_t address);
  Cell* cells_of(uintptr_t address);

  static bool knows(const Clock& clock, Epoch epoch);
  bool happened_before(Epoch earlier, const Fiber& who, const Clock& known) const;
  void join(Clock& into, const Clock& from) const;
  void join(Knowledge& into, const Knowledge& from) const;
  // What the thread knows: the same as its whole warp, until it alone learns more.
  const Knowledge& knowledge_of(const Fiber& who) const;
  Knowledge& own_knowledge_of(const Fiber& who);
  void add_own(Clock& clock, const Fiber& who) const;
  void release(Knowledge& to, const Fiber& who);
  void gather(int warp);
  void tick(int warp);
  void forget_everything();

  void check_store_sources(const Fiber& who, uintptr_t address, size_t bytes, Site site) const;
  void check_fence(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Site site,
                   bool load) const;
  [[noreturn]] void report(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                           bool write) const;

  std::array<Time, kMaxAgents> times_ = {};
  int num_mbarriers_ = 0;
  std::array<Knowledge, kMaxWarps> warps_ = {};  // what all lanes of a warp know
  std::vector<Knowledge> lanes_;                 // what a lane knows, where own_ says so
  std::array<unsigned, kMaxWarps> own_ = {};
  std::array<Knowledge, kNumBarriers> barriers_ = {};
  std::array<Mbarrier, kMaxMbarriers> mbarriers_ = {};
  std::vector<StoreSource> store_sources_;
  std::vector<Site> store_sites_;  // of bulk stores: their reads are the copy engine's own
  std::vector<Shadow> shadows_;    // of the dynamic shared memory, and of what else is shared
  Time latest_ = 0;                // no time is beyond it
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
