// What is said when no thread can proceed: who waits where, and for whom.
#include <map>

#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/mbarrier_table.h"
#include "common/emulator/register_pool.h"

namespace emulator {
namespace {

// "__syncthreads at kernel.cu:30, where 32 of 64 threads have arrived". Waits for an mbarrier: mbarrier.cpp.
std::string describe_wait(const Fiber& fiber) {
  std::string text = std::string(fiber.op) + " at " + describe(fiber.at);
  if (fiber.state == State::kBarrier) {
    const Barrier& barrier = cta->barriers[fiber.barrier_id];
    const int needed = barrier.count == kEveryone ? cta->num_live : barrier.count;
    if (fiber.barrier_id != 0) text += " on barrier " + std::to_string(fiber.barrier_id);
    text += ", where " + std::to_string(barrier.arrived) + " of " + std::to_string(needed) +
            " threads have arrived";
  } else if (fiber.state == State::kMbarrier) {
    return cta->mbarriers->describe_wait(fiber);
  } else if (fiber.state == State::kRegisters) {
    return cta->registers->describe_wait(fiber);
  } else if (fiber.state == State::kCluster) {
    return cta->cluster->barrier.describe_wait(fiber);
  } else {
    const Warp& warp = cta->warps[size_t(fiber.warp)];
    unsigned missing = fiber.mask & warp.live();
    for (unsigned rest = missing & warp.waiting; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (in_same_collective(fiber, cta->fiber(fiber.warp, lane))) missing &= ~(1u << lane);
    }
    text += ", for " + describe_lanes(missing);
  }
  return text;
}

// Who of the CTA waits where and for what, grouped.
std::string describe_waits() {
  std::map<std::string, std::map<int, unsigned>> groups;
  std::map<int, unsigned> exited;
  for (int i = 0; i < cta->num_threads; ++i) {
    const Fiber& fiber = cta->fibers[size_t(i)];
    auto& lanes = fiber.state == State::kExited ? exited : groups[describe_wait(fiber)];
    lanes[fiber.warp] |= 1u << fiber.lane;
  }
  const auto describe_threads = [](const std::map<int, unsigned>& warps) {
    std::string text;
    for (const auto& [warp, lanes] : warps) {
      text += (text.empty() ? "warp " : ", warp ") + std::to_string(warp);
      if (lanes != 0xffffffff) text += " " + describe_lanes(lanes);
    }
    return text;
  };
  std::string text;
  for (const auto& [wait, warps] : groups)
    text += " Waiting in " + wait + ": " + describe_threads(warps) + ".";
  if (!exited.empty()) text += " Exited: " + describe_threads(exited) + ".";
  return text;
}

}  // namespace

void report_deadlock() {
  const std::vector<Cta*>& ctas = cta->cluster->ctas;
  std::string text = describe_block(*ctas[0]);
  if (ctas.size() > 1) text += " to " + describe_block(*ctas.back()) + ", a cluster";
  text += ": deadlock, no thread can proceed.";
  for (Cta* const one : ctas) {
    const InCta there(*one);
    if (ctas.size() > 1) text += " In " + describe_block(*one) + ":";
    text += describe_waits();
  }
  record_report(Bug::kDeadlock, std::move(text));
  abandon_cta();
}

}  // namespace emulator
