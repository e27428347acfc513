// Signs of life from long work, so that a time limit ends what hangs and not what is slow.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace flashsteps {

// Called a few times a second at most, from whichever thread reports progress.
inline std::function<void()> on_heartbeat;

// To be called wherever a bounded piece of work is done: a row, a CTA. Cheap.
inline void heartbeat() {
  using Clock = std::chrono::steady_clock;
  static std::atomic<Clock::time_point> next_beat{};
  if (!on_heartbeat) return;
  const Clock::time_point now = Clock::now();
  Clock::time_point due = next_beat.load(std::memory_order_relaxed);
  // The shortest time limit is a second. Of several threads that find it due, one gets to beat.
  if (now < due || !next_beat.compare_exchange_strong(due, now + std::chrono::milliseconds(250))) return;
  on_heartbeat();
}

}  // namespace flashsteps
