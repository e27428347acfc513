#include "common/emulator/cta_order.h"

#include <chrono>
#include <numeric>
#include <utility>

namespace emulator {

StartOrder::StartOrder(const Options& options, uint64_t num_clusters)
    : num_clusters_(num_clusters), descending_(options.last_cta_first) {
  if (!options.shuffle) return;
  shuffled_.resize(num_clusters);
  std::iota(shuffled_.begin(), shuffled_.end(), 0);
  Random random{options.seed};
  for (uint64_t i = num_clusters; i > 1; --i) std::swap(shuffled_[i - 1], shuffled_[random.next() % i]);
}

uint64_t StartOrder::cluster_at(uint64_t place) const {
  if (!shuffled_.empty()) return shuffled_[place];
  return descending_ ? num_clusters_ - 1 - place : place;
}

Turns::Turns(uint64_t seed, uint64_t num_clusters, size_t num_slots)
    : num_clusters_(num_clusters), random_{~seed}, next_(num_slots), exited_(num_clusters) {
  slots_.resize(num_slots);
  std::iota(slots_.begin(), slots_.end(), 0);
  choose();
}

void Turns::take(uint64_t place) {
  std::unique_lock lock(mutex_);
  while (slots_[chosen_] != place && !is_cancelled()) {
    // Nobody tells of a cancellation.
    come_[place % come_.size()].wait_for(lock, std::chrono::milliseconds(100));
  }
}

void Turns::pass() {
  const std::lock_guard lock(mutex_);
  ++turns_since_exit_;
  constexpr uint64_t kFew = 4096;
  if (++turns_ < kFew || random_.one_in(16)) choose();
  vacate_slots();
}

bool Turns::all_wait() const {
  constexpr uint64_t kPatience = 1024;
  return turns_since_exit_ > kPatience * slots_.size() && next_ < num_clusters_;
}

void Turns::add_slot() {
  const std::lock_guard lock(mutex_);
  slots_.push_back(next_++);
  turns_since_exit_ = 0;
}

void Turns::exit(uint64_t place) {
  const std::lock_guard lock(mutex_);
  exited_[place] = true;
  vacate_slots();
}

void Turns::stop(uint64_t num_started) {
  const std::lock_guard lock(mutex_);
  for (uint64_t place = num_started; place < num_clusters_; ++place) exited_[place] = true;
  vacate_slots();
}

void Turns::choose() { chosen_ = size_t(random_.next() % slots_.size()); }

// It makes no difference whether a cluster exits before its turn comes or after.
void Turns::vacate_slots() {
  while (!slots_.empty() && exited_[slots_[chosen_]]) {
    turns_since_exit_ = 0;
    if (next_ < num_clusters_) {
      slots_[chosen_] = next_++;
    } else {
      slots_.erase(slots_.begin() + std::ptrdiff_t(chosen_));
    }
    if (!slots_.empty()) choose();
  }
  if (!slots_.empty()) come_[slots_[chosen_] % come_.size()].notify_all();
}

}  // namespace emulator
