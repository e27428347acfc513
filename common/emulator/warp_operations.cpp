// What the lanes of a warp tell each other: shuffles, votes, matches, reductions, __activemask, elect.sync.
// And what a thread asks for on its own.
#include <cstring>

#include "common/elect.h"
#include "common/emulator/core.h"

namespace emulator {
namespace {

struct ShuffleArgs {
  uint64_t value;
  uint64_t result;
  int source;  // lane
};

void execute_shuffle(void* const* args, unsigned lanes) {
  ++cta->counters.shuffles;
  for (const int lane : Bits{lanes}) {
    ShuffleArgs& mine = *static_cast<ShuffleArgs*>(args[lane]);
    if (((lanes >> mine.source) & 1) != 0) {
      mine.result = static_cast<ShuffleArgs*>(args[mine.source])->value;
    } else {
      std::memset(&mine.result, int(cta->options.poison), sizeof(mine.result));
    }
  }
}

// By ShuffleMode.
constexpr const char* kShuffleNames[] = {"__shfl_sync", "__shfl_xor_sync", "__shfl_down_sync",
                                         "__shfl_up_sync"};

struct GatherArgs {
  uint64_t value;
  Gathered result;
};

void execute_gather(void* const* args, unsigned lanes) {
  ++cta->counters.votes;
  Gathered result{lanes, {}};
  for (const int lane : Bits{lanes}) result.values[lane] = static_cast<GatherArgs*>(args[lane])->value;
  for (const int lane : Bits{lanes}) static_cast<GatherArgs*>(args[lane])->result = result;
}

}  // namespace

// PTX ISA, "shfl.sync".
FromLane shuffle_within(ShuffleMode mode, unsigned mask, uint64_t value, unsigned operand, unsigned clamp,
                        Location at) {
  const int lane = self->lane, by = int(operand & 31);
  const int segment = int(clamp >> 8 & 31);
  const int first = lane & segment, limit = first | (int(clamp & 31) & ~segment);
  const int source = mode == ShuffleMode::kUp     ? lane - by
                     : mode == ShuffleMode::kDown ? lane + by
                     : mode == ShuffleMode::kXor  ? lane ^ by
                                                  : first | (by & ~segment);
  const bool inside = mode == ShuffleMode::kUp ? source >= limit : source <= limit;
  ShuffleArgs args{value, value, inside ? source : lane};
  collective(kShuffleNames[int(mode)], mask, &args, execute_shuffle, at);
  return {args.result, inside};
}

// As __shfl_sync and the others make of it.
uint64_t shuffle(ShuffleMode mode, unsigned mask, uint64_t value, unsigned operand, int width, Location at) {
  const char* const op = kShuffleNames[int(mode)];
  if (width < 1 || width > kWarpSize || (width & (width - 1)) != 0) {
    fail(Bug::kBadShuffle, *self) << op << " at " << at << ": width " << width
                                  << " is not a power of two up to 32";
  }
  const unsigned segment = unsigned(kWarpSize - width) << 8;
  return shuffle_within(mode, mask, value, operand, segment | (mode == ShuffleMode::kUp ? 0u : 31u), at)
      .value;
}

Gathered gather(const char* op, unsigned mask, uint64_t value, Location at) {
  GatherArgs args{value, {}};
  collective(op, mask, &args, execute_gather, at);
  return args.result;
}

unsigned Gathered::lanes_with(uint64_t value) const {
  unsigned same = 0;
  for (const int lane : Bits{lanes}) same |= unsigned(values[lane] == value) << lane;
  return same;
}

// ---- __activemask

unsigned active_mask(Location at) {
  const InRuntime in_runtime;
  Fiber& me = *self;
  me.op = "__activemask";
  me.at = at;
  cta->warps[size_t(me.warp)].asking |= 1u << me.lane;
  park(State::kActiveMask);
  return me.mask;
}

void answer_active_mask(Warp& warp) {
  const int index = int(&warp - cta->warps.data());
  for (const int lane : Bits{warp.asking}) {
    Fiber& me = cta->fiber(index, lane);
    me.mask = 0;
    for (const int other : Bits{warp.asking}) {
      if (same_place(cta->fiber(index, other).at, me.at)) me.mask |= 1u << other;
    }
  }
  wake_lanes(index, warp.asking);
  warp.asking = 0;
}

// ---- What a thread asks for on its own

void nap() {
  const InRuntime in_runtime;
  poll();
}

int64_t ticks() { return ++cta->ticks; }

void trap(Location at) { fail(Bug::kTrap, *self) << "__trap() at " << at; }

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

bool elect_one(Location at) {
  bool elected = false;
  // Which lane it is, is the hardware's business: a kernel that counts on lane 0 is found out by a random
  // one.
  const Execute execute = [](void* const* args, unsigned lanes) {
    check_aligned(lanes);
    const int lane = cta->options.shuffle ? int(cta->random.next() % kWarpSize) : 0;
    *static_cast<bool*>(args[lane]) = true;
  };
  collective("elect.sync", 0xffffffff, &elected, execute, at);
  return elected;
}

}  // namespace flashsteps::on_emulator
