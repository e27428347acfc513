#include "harness/base/heartbeat.h"

#include <atomic>
#include <chrono>

namespace flashsteps {
namespace {

using Clock = std::chrono::steady_clock;

std::function<void()> on_beat;
std::atomic<Clock::time_point> next_beat{};
constexpr std::chrono::milliseconds kBetween{250};  // the shortest time limit is a second

}  // namespace

void set_heartbeat(std::function<void()> beat) { on_beat = std::move(beat); }

void heartbeat() {
  if (!on_beat) return;
  const Clock::time_point now = Clock::now();
  Clock::time_point due = next_beat.load(std::memory_order_relaxed);
  // Of several threads that find it due, one gets to beat.
  if (now < due || !next_beat.compare_exchange_strong(due, now + kBetween)) return;
  on_beat();
}

}  // namespace flashsteps
