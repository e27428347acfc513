// How a trace comes about: what the runtime tells the tracer, and the lanes' times. trace.h states the model.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/emulator/copy_engine.h"
#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/lane_copies.h"
#include "common/emulator/trace.h"

namespace emulator {

// All of it must not depend on the order in which the runtime happens to run threads: times only ever join at
// the latest, and what the lanes of a warp do one by one is put together by what it is, not by when it comes.
// (One case is left: lanes that exit late while the others of their warp still go on together.)
class Tracer {
 public:
  explicit Tracer(Trace& trace);
  void finish();  // the CTA has run to its end

  // By the running thread.
  void exponential(Location at);
  void barrier_arrival(int barrier);  // without waiting
  void mbarrier_arrival(int number, int64_t announced_bytes, Location at);
  void mbarrier_passed(int number, Location at);
  void copy_issued(const Copy& copy);
  void stores_waited(unsigned groups, Location at);
  void lane_copy_issued(const LaneCopy& copy, Location at);
  void lane_copies_waited(unsigned groups, Location at);

  // A warp instruction of plain code, and what it costs: wavefronts, or sectors.
  void access(int warp, const Request& request, int cost);
  // A warp-wide instruction: what is counted in between is its doing.
  void collective_begins() { before_ = cta->counters; }
  void collective_ends(int warp, unsigned lanes, Location at);
  // By all lanes of a warp together.
  void product_issued(int warp, int columns, unsigned group, Location at);
  void products_waited(int warp, unsigned groups, Location at);
  // First all warps that wait, then the barrier as a whole.
  void barrier_reached(int barrier, int warp, unsigned waiting, const char* op, Location at);
  void barrier_completed(int barrier, bool everyone);
  void warp_exited(int warp);

 private:
  using Time = uint64_t;
  using Kind = TraceEvent::Kind;

  // An event that not all lanes of the warp need take part in.
  struct Partial {
    TraceEvent event;
    unsigned lanes;
    int place;  // among what its lanes do between two meetings
  };
  struct Warp {
    std::array<Time, kWarpSize> now = {};
    std::array<Location, kWarpSize> exponential_at = {};  // since the last meeting of the whole warp
    Time met = 0;                                         // when that was
    std::array<int, kWarpSize> num_partial = {};
    std::vector<Partial> partial;  // since then
    Time access_cost = 0;          // since then
    bool loads = false;            // from global memory, among those accesses
    uint64_t first_global = 0;     // address, of those accesses
    std::vector<TraceEvent> events;
    std::vector<TraceEvent> products;   // wgmma
    std::vector<Time> groups_done;      // theirs; the last product's end
    bool ends_in_exponentials = false;  // the last one is work, and in place where these are
  };
  struct Barrier {
    struct Waiting {
      unsigned lanes;
      TraceEvent event;
    };
    Time latest = 0;
    std::vector<Waiting> waiting;
  };
  struct Store {
    unsigned group;
    Time read;  // when its shared memory has been
  };
  // What a thread has asked of the copy engine.
  struct Queue {
    Time loads_busy_until = 0, stores_busy_until = 0;
    std::vector<Store> stores;
    std::vector<Time> groups_land;  // of the thread's own copies
  };

  Time& now() { return warps_[size_t(self->warp)].now[size_t(self->lane)]; }
  Queue& queue() { return queues_[size_t(self->warp * kWarpSize + self->lane)]; }
  Time& completes(int number, uint64_t phase);
  void lane_event(TraceEvent event, Time end);  // of the running thread, from now to then
  static void add_partial(Warp& warp, const TraceEvent& event, unsigned lanes);
  static Time meet(Warp& warp, int index, unsigned lanes, bool whole, Location at);
  static void set_time(Warp& warp, unsigned lanes, Time time);
  static void append(Warp& warp, TraceEvent event, bool exponentials = false);
  static TraceEvent make_event(Kind kind, int warp, Time begin, Time end, Location at);
  TraceEvent make_mbarrier_event(Kind kind, int number, uint64_t phase, Location at) const;

  Trace& trace_;
  Counters before_ = {};
  std::vector<Warp> warps_;
  std::array<Barrier, kNumBarriers> barriers_ = {};
  std::vector<std::vector<Time>> completes_;  // per mbarrier and phase
  std::vector<Queue> queues_;                 // per thread
  std::vector<TraceEvent> copies_;
  std::vector<TraceEvent> lane_copies_;
};

}  // namespace emulator
