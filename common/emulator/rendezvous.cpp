// Where threads wait for each other: warp-wide operations, shuffles and votes, barriers.
#include <cstring>

#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/race.h"
#include "common/emulator/tracer.h"

namespace emulator {
namespace {

// "in __shfl_sync at v04/kernel.cu:20 with mask 0xffffffff"
std::string describe_collective(const Fiber& fiber) {
  char mask[32];
  std::snprintf(mask, sizeof(mask), " with mask 0x%08x", fiber.mask);
  return std::string(fiber.op) + " at " + describe(fiber.at) + mask;
}

void check_convergence(const Fiber& me, const Warp& warp) {
  const unsigned bit = 1u << me.lane;
  if ((me.mask & bit) == 0) {
    fail(Bug::kBadMask, me, [&] { return describe_collective(me) + ": the lane is not in its own mask"; });
  }
  // Lanes that wait with a mask have already agreed with each other: one of them speaks for all.
  const unsigned partners = warp.waiting & me.mask;
  if (partners == 0 && (warp.expected & bit) == 0) return;
  unsigned candidates = partners;
  if (partners == 0) {
    // Somebody waits for this lane, and this lane does not know.
    for (unsigned rest = warp.waiting; rest != 0; rest &= rest - 1) {
      if ((cta->fiber(me.warp, __builtin_ctz(rest)).mask & bit) != 0) candidates |= rest & -rest;
    }
  }
  const Fiber& other = cta->fiber(me.warp, __builtin_ctz(candidates));
  const bool same_op = other.op == me.op || std::strcmp(other.op, me.op) == 0;
  if (same_op && (other.mask & warp.live()) == (me.mask & warp.live())) return;
  fail(Bug::kDivergence, me, [&] {
    return "warp divergence: this lane is in " + describe_collective(me) + ", but lane " +
           std::to_string(other.lane) + " is in " + describe_collective(other);
  });
}

// All of `lanes` are in the same collective: carry it out.
void complete_collective(int warp_index, unsigned lanes, unsigned mask) {
  Warp& warp = cta->warps[size_t(warp_index)];
  const Fiber& any = cta->fiber(warp_index, __builtin_ctz(lanes));
  warp.waiting &= ~lanes;
  warp.expected &= ~mask;
  if (cta->options.count && lanes == warp.live()) cta->log->count_warp(warp_index);
  if (cta->tracer != nullptr) cta->tracer->collective_begins();
  if (any.execute != nullptr) {
    void* args[kWarpSize];
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      args[lane] = cta->fiber(warp_index, lane).args;
    }
    any.execute(args, lanes);
  }
  if (cta->tracer != nullptr) cta->tracer->collective_ends(warp_index, lanes, any.at);
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    Fiber& fiber = cta->fiber(warp_index, __builtin_ctz(rest));
    if (fiber.state == State::kCollective) wake(fiber);
  }
}

}  // namespace

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
  warp.expected |= mask;
  const unsigned lanes = mask & warp.live();
  if ((warp.waiting & lanes) == lanes) {
    complete_collective(me.warp, lanes, mask);
  } else {
    park(State::kCollective);
  }
}

void syncwarp(unsigned mask, Location at) {
  const Execute execute = [](void* const*, unsigned) {
    ++cta->counters.syncwarps;
    if (cta->options.race_detector) cta->races->warp_synchronised(cta->running_warp);
  };
  collective("__syncwarp", mask, nullptr, execute, at);
}

// ---- Shuffles and votes

namespace {

struct ShuffleArgs {
  uint64_t value;
  uint64_t result;
  ShuffleMode mode;
  unsigned operand;
  int width;
};

// The lane that `lane` reads; itself where CUDA says so.
int source_lane(int lane, const ShuffleArgs& args) {
  const int first = lane & ~(args.width - 1);
  const int end = first + args.width;
  const int operand = int(args.operand & 31);
  int source = lane;
  switch (args.mode) {
    case ShuffleMode::kIndex:
      return first + (operand & (args.width - 1));
    case ShuffleMode::kXor:
      source = lane ^ operand;  // may read lower segments, but none above its own
      return source < end ? source : lane;
    case ShuffleMode::kDown:
      source = lane + operand;
      return source < end ? source : lane;
    case ShuffleMode::kUp:
      source = lane - operand;
      return source >= first ? source : lane;
  }
  return lane;
}

void execute_shuffle(void* const* args, unsigned lanes) {
  ++cta->counters.shuffles;
  const int warp = cta->running_warp;
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    ShuffleArgs& mine = *static_cast<ShuffleArgs*>(args[lane]);
    const int source = source_lane(lane, mine);
    if (((lanes >> source) & 1) == 0) {
      const Fiber& reader = cta->fiber(warp, lane);
      fail(Bug::kBadShuffle, reader, [&] {
        return describe_collective(reader) + ": it reads lane " + std::to_string(source) +
               ", which does not take part";
      });
    }
    mine.result = static_cast<ShuffleArgs*>(args[source])->value;
  }
}

const char* name_of(ShuffleMode mode) {
  switch (mode) {
    case ShuffleMode::kIndex:
      return "__shfl_sync";
    case ShuffleMode::kXor:
      return "__shfl_xor_sync";
    case ShuffleMode::kDown:
      return "__shfl_down_sync";
    case ShuffleMode::kUp:
      return "__shfl_up_sync";
  }
  return "";
}

struct VoteArgs {
  bool predicate;
  Vote result;
};

void execute_vote(void* const* args, unsigned lanes) {
  ++cta->counters.votes;
  Vote result{0, lanes};
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (static_cast<VoteArgs*>(args[lane])->predicate) result.yes |= 1u << lane;
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    static_cast<VoteArgs*>(args[__builtin_ctz(rest)])->result = result;
  }
}

}  // namespace

uint64_t shuffle(ShuffleMode mode, unsigned mask, uint64_t value, unsigned operand, int width, Location at) {
  if (width < 1 || width > kWarpSize || (width & (width - 1)) != 0) {
    fail(Bug::kBadShuffle, *self, [&] {
      return std::string(name_of(mode)) + " at " + describe(at) + ": width " + std::to_string(width) +
             " is not a power of two up to 32";
    });
  }
  ShuffleArgs args{value, value, mode, operand, width};
  collective(name_of(mode), mask, &args, execute_shuffle, at);
  return args.result;
}

Vote vote(const char* op, unsigned mask, bool predicate, Location at) {
  VoteArgs args{predicate, {}};
  collective(op, mask, &args, execute_vote, at);
  return args.result;
}

// ---- Barriers

namespace {

bool same_place(Location a, Location b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

// bar.sync is executed by a warp, not by a thread: PTX wants all its lanes at the same one.
void check_barrier_convergence(const Fiber& me) {
  const Warp& warp = cta->warps[size_t(me.warp)];
  for (unsigned rest = warp.live() & ~warp.ready; rest != 0; rest &= rest - 1) {
    const Fiber& other = cta->fiber(me.warp, __builtin_ctz(rest));
    if (other.state != State::kBarrier) continue;
    if (other.barrier_id == me.barrier_id && same_place(other.at, me.at)) return;
    fail(Bug::kDivergence, me, [&] {
      return std::string("divergent barrier: this lane is at ") + me.op + " at " + describe(me.at) +
             ", but lane " + std::to_string(other.lane) + " of its warp is at " + other.op + " at " +
             describe(other.at);
    });
  }
}

void complete_barrier(int id) {
  Barrier& barrier = cta->barriers[id];
  const bool everyone = barrier.count == kEveryone;
  barrier.arrived = 0;
  cta->counters.barriers += uint64_t(__builtin_popcount(barrier.warps));
  const auto waits_here = [&](const Fiber& fiber) {
    return fiber.state == State::kBarrier && fiber.barrier_id == id;
  };
  unsigned waiting_warps = 0;
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    unsigned waiting = 0;
    for (unsigned rest = cta->warps[size_t(warp)].live(); rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
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
      for (unsigned rest = waiting_warps; rest != 0; rest &= rest - 1) {
        cta->races->barrier_departure(id, __builtin_ctz(rest));
      }
    }
  }
  for (int i = 0; i < cta->num_threads; ++i) {
    Fiber& fiber = cta->fibers[size_t(i)];
    if (waits_here(fiber)) wake(fiber);
  }
}

void arrive(const char* op, int id, int count, bool wait, Location at) {
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
    barrier.at = at;
  }
  if (barrier.count != count) {
    fail(Bug::kBadBarrier, me, [&] {
      const auto threads = [](int n) { return n == kEveryone ? std::string("all") : std::to_string(n); };
      return std::string(op) + " at " + describe(at) + ": barrier " + std::to_string(id) + " is used with " +
             threads(count) + " threads here, but with " + threads(barrier.count) + " at " +
             describe(barrier.at);
    });
  }
  ++barrier.arrived;
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

}  // namespace

void syncthreads(Location at) { arrive("__syncthreads", 0, kEveryone, true, at); }

void named_barrier(int id, int count, bool wait, Location at) {
  const char* op = wait ? "bar.sync" : "bar.arrive";
  if (id < 0 || id >= kNumBarriers || count <= 0 || count % kWarpSize != 0 || count > kMaxThreads) {
    fail(Bug::kBadBarrier, *self, [&] {
      return std::string(op) + " at " + describe(at) + ": barrier " + std::to_string(id) + " with " +
             std::to_string(count) +
             " threads; there are barriers 0 to 15, and threads come in multiples of 32";
    });
  }
  arrive(op, id, count, wait, at);
}

void reset_rendezvous() {
  for (Barrier& barrier : cta->barriers) barrier = {};
}

void leave_rendezvous(Fiber& exited) {
  // Lanes that waited for this one only.
  Warp& warp = cta->warps[size_t(exited.warp)];
  for (unsigned rest = warp.waiting; rest != 0;) {
    const unsigned mask = cta->fiber(exited.warp, __builtin_ctz(rest)).mask;
    rest &= ~mask;
    const unsigned lanes = mask & warp.live();
    if ((warp.waiting & lanes) == lanes) complete_collective(exited.warp, lanes, mask);
  }
  // A __syncthreads needs only the threads that are left.
  const Barrier& barrier = cta->barriers[0];
  const bool everyone = barrier.arrived > 0 && barrier.count == kEveryone;
  if (everyone && barrier.arrived >= cta->num_live) complete_barrier(0);
  if (cta->options.count && warp.live() == 0) cta->log->count_warp(exited.warp);
  if (cta->tracer != nullptr && warp.live() == 0) cta->tracer->warp_exited(exited.warp);
}

}  // namespace emulator
