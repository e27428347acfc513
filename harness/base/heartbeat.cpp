#include "harness/base/heartbeat.h"

#include <atomic>
#include <chrono>

namespace flashsteps {
namespace {

std::function<void()> on_beat;
std::atomic<int64_t> next_beat{0};   // milliseconds of the steady clock
constexpr int64_t kMsBetween = 250;  // the shortest time limit is a second

int64_t now_ms() {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  return duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void set_heartbeat(std::function<void()> beat) { on_beat = std::move(beat); }

void heartbeat() {
  if (!on_beat) return;
  const int64_t now = now_ms();
  int64_t due = next_beat.load(std::memory_order_relaxed);
  // Of several threads that find it due, one gets to beat.
  if (now < due || !next_beat.compare_exchange_strong(due, now + kMsBetween)) return;
  on_beat();
}

}  // namespace flashsteps
