// setmaxnreg, of which only the accounts are kept: registers are no matter here.
#include "common/emulator/register_pool.h"

namespace emulator {
namespace {

constexpr int kRegistersOfAnSm = 65536;

std::string describe_change(const RegisterPool::Change& change) {
  return std::string(change.op()) + " to " + std::to_string(change.registers) + " registers";
}

constexpr unsigned kWholeGroup = (1u << kWarpsPerGroup) - 1;

}  // namespace

void RegisterPool::check(const Change& change) {
  const auto refuse = [&](Bug bug) { return Failure(bug, *self, describe_change(change), change.at); };
  const int warp = cta->running_warp;
  const int first_warp = warp / kWarpsPerGroup * kWarpsPerGroup;
  if (first_warp + kWarpsPerGroup > cta->num_warps) {
    refuse(Bug::kDivergence) << "needs a warpgroup, four warps, and the CTA has " << cta->num_warps
                             << " warps in all";
  }
  if (at_launch_ == 0) {
    at_launch_ = change.at_launch;
    has_.fill(at_launch_);
  }
  if (change.at_launch != at_launch_) {
    refuse(Bug::kBadRegisters) << "says that a thread has " << change.at_launch
                               << " registers at launch, but an earlier one said " << at_launch_;
  }
  if (at_launch_ * cta->num_warps * kWarpSize > kRegistersOfAnSm) {
    refuse(Bug::kBadRegisters) << cta->num_warps * kWarpSize << " threads of " << at_launch_
                               << " registers at launch are more than the " << kRegistersOfAnSm
                               << " of an SM";
  }

  Group& group = groups_[size_t(warp / kWarpsPerGroup)];
  const unsigned bit = 1u << (warp - first_warp);
  if (group.came == kWholeGroup) group.came = 0;
  if (group.came == 0) group.change = change;
  const Change& theirs = group.change;
  const bool is_same = theirs.increase == change.increase && theirs.registers == change.registers &&
                       same_place(theirs.at, change.at);
  if ((group.came & bit) != 0) {
    refuse(Bug::kDivergence) << describe_warps(first_warp, kWholeGroup & ~group.came)
                             << " of the warpgroup have not executed the " << describe_change(theirs)
                             << " at " << theirs.at
                             << " yet. All four warps must execute it before any of them goes on to this one";
  }
  if (!is_same) {
    refuse(Bug::kDivergence) << "the four warps of a warpgroup must execute the same one, but "
                             << describe_warps(first_warp, group.came) << " executed the "
                             << describe_change(theirs) << " at " << theirs.at;
  }
  group.came |= bit;

  const int has = has_[size_t(warp)];
  if (change.increase ? change.registers < has : change.registers > has) {
    refuse(Bug::kBadRegisters) << "the warp has " << has << " registers a thread, and " << change.op()
                               << (change.increase ? " can only raise that" : " can only lower that");
  }
}

void RegisterPool::change(const Change& change) {
  check(change);
  const size_t warp = size_t(cta->running_warp);
  if (change.increase) {
    wants_[warp] = change.registers;
  } else {
    pool_ += (has_[warp] - change.registers) * kWarpSize;
    has_[warp] = change.registers;
  }
  serve();
}

// The warps that wait and can be given what they want.
void RegisterPool::serve() {
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    int& has = has_[size_t(warp)];
    int& wants = wants_[size_t(warp)];
    if (wants == 0 || (wants - has) * kWarpSize > pool_) continue;
    pool_ -= (wants - has) * kWarpSize;
    has = wants;
    wants = 0;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if (cta->fiber(warp, lane).state == State::kRegisters) wake(cta->fiber(warp, lane));
    }
  }
}

std::string RegisterPool::describe_wait(const Fiber& fiber) const {
  const int has = has_[size_t(fiber.warp)], wants = wants_[size_t(fiber.warp)];
  return std::string(fiber.op) + " at " + describe(fiber.at) + " for " + std::to_string(wants) +
         " registers a thread, " + std::to_string(wants - has) +
         " more than it has: " + std::to_string((wants - has) * kWarpSize) +
         " for the warp, and the CTA's pool has " + std::to_string(pool_) +
         ". Do other warps release too few, or wait before they do?";
}

void RegisterPool::check_exit(const Fiber& last) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    if (group.came == 0 || group.came == kWholeGroup) continue;
    const int first_warp = int(i) * kWarpsPerGroup;
    fail(Bug::kDivergence, last) << "the CTA ends, and only " << describe_warps(first_warp, group.came)
                                 << " of their warpgroup executed the " << describe_change(group.change)
                                 << " at " << group.change.at << ", but not "
                                 << describe_warps(first_warp, kWholeGroup & ~group.came);
  }
}

void set_max_registers(bool increase, int registers, int at_launch, Location at) {
  RegisterPool::Change change{increase, registers, at_launch, at};
  const Execute execute = [](void* const* changes, unsigned lanes) {
    check_aligned(lanes);
    cta->registers->change(*static_cast<RegisterPool::Change*>(changes[0]));
  };
  collective(change.op(), 0xffffffff, &change, execute, at);
  const InRuntime in_runtime;
  if (cta->registers->waits(self->warp)) park(State::kRegisters);
}

}  // namespace emulator
