// Where threads wait for each other: warp-wide operations in general (warp_operations.cpp has shuffles and
// votes), and barriers.
#include <cstring>

#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tracer.h"
#include "common/named_barrier.h"

namespace emulator {
namespace {

// "in __shfl_sync at v04/kernel.cu:20 with mask 0xffffffff"
std::string describe_collective(const Fiber& fiber) {
  char mask[32];
  std::snprintf(mask, sizeof(mask), " with mask 0x%08x", fiber.mask);
  return std::string(fiber.op) + " at " + describe(fiber.at) + mask;
}

// Who waits for this lane and for whom this lane waits must be in the same operation as it. A lane that waits
// without this one may be in another: it comes here later, as half of a warp does that shuffles on its own.
void check_convergence(const Fiber& me, const Warp& warp) {
  const unsigned bit = 1u << me.lane;
  if ((me.mask & bit) == 0) {
    fail(Bug::kBadMask, me).also(me.at) << describe_collective(me) << ": the lane is not in its own mask";
  }
  for (unsigned rest = warp.waiting; rest != 0; rest &= rest - 1) {
    const Fiber& other = cta->fiber(me.warp, __builtin_ctz(rest));
    if (in_same_collective(me, other)) {
      rest &= ~me.mask | (1u << other.lane);  // speaks for all that this lane names
      continue;
    }
    // This lane may have to do without the other first, but not in the other's own line.
    const bool mutual = (other.mask & bit) != 0 && (me.mask & (1u << other.lane)) != 0;
    if (!mutual && !((other.mask & bit) != 0 && same_place(me.at, other.at))) continue;
    fail(Bug::kDivergence, me).also(me.at).also(other.at)
        << "warp divergence: this lane is in " << describe_collective(me) << ", but lane " << other.lane
        << " is in " << describe_collective(other);
  }
}

// All of `lanes` are in the same collective: carry it out.
void complete_collective(int warp_index, unsigned lanes) {
  Warp& warp = cta->warps[size_t(warp_index)];
  const Fiber& any = cta->fiber(warp_index, __builtin_ctz(lanes));
  warp.waiting &= ~lanes;
  if (cta->options.count && lanes == warp.live()) cta->log->count_warp(warp_index);
  if (cta->tracer != nullptr) cta->tracer->collective_begins();
  if (any.execute != nullptr) {
    void* args[kWarpSize];
    for (const int lane : Bits{lanes}) args[lane] = cta->fiber(warp_index, lane).args;
    any.execute(args, lanes);
  }
  if (cta->tracer != nullptr) cta->tracer->collective_ends(warp_index, lanes, any.at);
  wake_lanes(warp_index, lanes & ~warp.ready & ~warp.exited);  // the one that came last is awake
}

// Completes the collective in which `fiber` waits if all that it waits for are there.
bool try_to_complete(const Fiber& fiber) {
  const Warp& warp = cta->warps[size_t(fiber.warp)];
  const unsigned lanes = fiber.mask & warp.live();
  if ((warp.waiting & lanes) != lanes) return false;
  for (const int lane : Bits{lanes}) {
    if (!in_same_collective(fiber, cta->fiber(fiber.warp, lane))) return false;
  }
  complete_collective(fiber.warp, lanes);
  return true;
}

}  // namespace

bool in_same_collective(const Fiber& a, const Fiber& b) {
  const unsigned live = cta->warps[size_t(a.warp)].live();
  return (a.mask & live) == (b.mask & live) && (a.op == b.op || std::strcmp(a.op, b.op) == 0);
}

void collective(const char* op, unsigned mask, void* args, Execute execute, Location at) {
  const InRuntime in_runtime;
  Fiber& me = *self;
  Warp& warp = cta->warps[size_t(me.warp)];
  me.op = op;
  me.at = at;
  me.mask = mask;
  me.args = args;
  me.execute = execute;
  check_convergence(me, warp);
  warp.waiting |= 1u << me.lane;
  if (!try_to_complete(me)) park(State::kCollective);
}

void check_aligned(unsigned lanes) {
  const auto fiber_of = [](int lane) -> const Fiber& { return cta->fiber(cta->running_warp, lane); };
  const Fiber& first = fiber_of(__builtin_ctz(lanes));
  if (lanes != 0xffffffff) {
    fail(Bug::kDivergence, first) << first.op << " at " << first.at << " needs all 32 lanes of the warp, but "
                                  << describe_lanes(~lanes)
                                  << " will not come: they have exited or do not exist";
  }
  for (int lane = 1; lane < kWarpSize; ++lane) {
    const Fiber& other = fiber_of(lane);
    if (same_place(other.at, first.at)) continue;
    fail(Bug::kDivergence, other) << "warp divergence: this lane is in " << other.op << " at " << other.at
                                  << ", but lane 0 is in " << first.op << " at " << first.at
                                  << ". All 32 lanes must execute the same one";
  }
}

void syncwarp(unsigned mask, Location at) {
  const Execute execute = [](void* const*, unsigned) {
    ++cta->counters.syncwarps;
    if (cta->options.race_detector) cta->races->warp_synchronised(cta->running_warp);
  };
  collective("__syncwarp", mask, nullptr, execute, at);
}

// ---- Barriers

namespace {

// bar.sync is executed by a warp, not by a thread: PTX wants all its lanes at the same one.
void check_barrier_convergence(const Fiber& me) {
  const Warp& warp = cta->warps[size_t(me.warp)];
  for (const int lane : Bits{warp.live() & ~warp.ready}) {
    const Fiber& other = cta->fiber(me.warp, lane);
    if (other.state != State::kBarrier) continue;
    if (other.barrier_id == me.barrier_id && same_place(other.at, me.at)) return;
    fail(Bug::kDivergence, me) << "divergent barrier: this lane is at " << me.op << " at " << me.at
                               << ", but lane " << other.lane << " of its warp is at " << other.op << " at "
                               << other.at;
  }
}

void complete_barrier(int id) {
  Barrier& barrier = cta->barriers[id];
  const bool everyone = barrier.count == kEveryone;
  barrier.result = {barrier.yes, barrier.arrived};
  barrier.arrived = 0;
  cta->counters.barriers += uint64_t(__builtin_popcount(barrier.warps));
  const auto waits_here = [&](const Fiber& fiber) {
    return fiber.state == State::kBarrier && fiber.barrier_id == id;
  };
  unsigned waiting_warps = 0;
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    unsigned waiting = 0;
    for (const int lane : Bits{cta->warps[size_t(warp)].live()}) {
      const Fiber& fiber = cta->fiber(warp, lane);
      if (waits_here(fiber) || (&fiber == self && fiber.barrier_id == id)) waiting |= 1u << lane;
    }
    if (waiting != 0) waiting_warps |= 1u << warp;
    if (cta->options.count && waiting == cta->warps[size_t(warp)].live()) cta->log->count_warp(warp);
    if (cta->tracer != nullptr && waiting != 0) {
      const Fiber& any = cta->fiber(warp, __builtin_ctz(waiting));
      cta->tracer->barrier_reached(id, warp, waiting, any.op, any.at);
    }
  }
  if (cta->tracer != nullptr) cta->tracer->barrier_completed(id, everyone);
  if (cta->options.race_detector) {
    if (everyone) {
      cta->races->cta_synchronised();
    } else {
      for (const int warp : Bits{waiting_warps}) cta->races->barrier_departure(id, warp);
    }
  }
  for (int i = 0; i < cta->num_threads; ++i) {
    Fiber& fiber = cta->fibers[size_t(i)];
    if (waits_here(fiber)) wake(fiber);
  }
}

void arrive(const char* op, int id, int count, bool wait, Location at, bool predicate = false) {
  const InRuntime in_runtime;
  Fiber& me = *self;
  Barrier& barrier = cta->barriers[id];
  me.op = op;
  me.at = at;
  me.barrier_id = id;
  if (wait) check_barrier_convergence(me);
  const bool first = barrier.arrived == 0;
  if (first) {
    barrier.count = count;
    barrier.warps = 0;
    barrier.yes = 0;
    barrier.op = op;
    barrier.at = at;
  }
  if (barrier.count != count) {
    const auto threads = [](int n) { return n == kEveryone ? std::string("all") : std::to_string(n); };
    fail(Bug::kBadBarrier, me) << op << " at " << at << ": barrier " << id << " is used with "
                               << threads(count) << " threads here, but with " << threads(barrier.count)
                               << " at " << barrier.at;
  }
  // PTX lets bar.red meet neither bar.sync nor another bar.red.
  if (count == kEveryone && std::strcmp(barrier.op, op) != 0) {
    fail(Bug::kBadBarrier, me) << op << " at " << at << ": other threads are at the same barrier with "
                               << barrier.op << " at " << barrier.at;
  }
  ++barrier.arrived;
  barrier.yes += predicate;
  barrier.warps |= 1u << me.warp;
  if (cta->options.race_detector && count != kEveryone) cta->races->barrier_arrival(id, me, first);
  if (cta->tracer != nullptr && !wait) cta->tracer->barrier_arrival(id);
  const int needed = count == kEveryone ? cta->num_live : count;
  if (barrier.arrived >= needed) {
    complete_barrier(id);
  } else if (wait) {
    park(State::kBarrier);
  }
  me.barrier_id = -1;
}

void named_barrier(const char* op, int id, int count, bool wait, Location at) {
  if (id < 0 || id >= kNumBarriers || count <= 0 || count % kWarpSize != 0 || count > kMaxThreads) {
    fail(Bug::kBadBarrier, *self)
        << op << " at " << at << ": barrier " << id << " with " << count
        << " threads; there are barriers 0 to 15, and threads come in multiples of 32";
  }
  arrive(op, id, count, wait, at);
}

}  // namespace

void syncthreads(Location at) { arrive("__syncthreads", 0, kEveryone, true, at); }

Tally syncthreads_tally(const char* op, bool predicate, Location at) {
  arrive(op, 0, kEveryone, true, at, predicate);
  // Nobody completes the next round before this thread, too, has come back.
  return cta->barriers[0].result;
}

void reset_rendezvous() {
  for (Barrier& barrier : cta->barriers) barrier = {};
  cta->ticks = 0;
}

void leave_rendezvous(Fiber& exited) {
  // Lanes that waited for this one only.
  Warp& warp = cta->warps[size_t(exited.warp)];
  for (unsigned rest = warp.waiting; rest != 0; rest &= rest - 1) {
    if (try_to_complete(cta->fiber(exited.warp, __builtin_ctz(rest)))) rest &= warp.waiting | (rest & -rest);
  }
  if (warp.ready == 0) answer_active_mask(warp);
  // A __syncthreads needs only the threads that are left.
  const Barrier& barrier = cta->barriers[0];
  const bool everyone = barrier.arrived > 0 && barrier.count == kEveryone;
  if (everyone && barrier.arrived >= cta->num_live) complete_barrier(0);
  if (cta->options.count && warp.live() == 0) cta->log->count_warp(exited.warp);
  if (cta->tracer != nullptr && warp.live() == 0) cta->tracer->warp_exited(exited.warp);
}

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

void bar_sync(int id, int num_threads, Location at) {
  named_barrier("bar.sync", id, num_threads, /*wait=*/true, at);
}

void bar_arrive(int id, int num_threads, Location at) {
  named_barrier("bar.arrive", id, num_threads, /*wait=*/false, at);
}

}  // namespace flashsteps::on_emulator
