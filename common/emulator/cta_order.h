// In which order the CTAs of a launch start, and, where a seed says how they run, who of those under way
// comes next where they can notice each other. The unit is a cluster, by its place in the order.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

// The clusters' numbers, in the order in which they start.
class StartOrder {
 public:
  StartOrder(const Options& options, uint64_t num_clusters);
  uint64_t cluster_at(uint64_t place) const;

 private:
  const uint64_t num_clusters_;
  const bool descending_;
  std::vector<uint64_t> shuffled_;  // empty unless Options::shuffle
};

// Clusters run on several host threads, and which of those is faster is a matter of luck. So an atomic
// operation or a volatile access in global memory waits for its cluster's turn, and the seed says whose turn
// it is: of a few clusters that count as under way, however many are. Any number of host threads then gives
// the run that one would give.
class Turns {
 public:
  // A turn comes to clusters that have not started, too: there must be a host thread for every slot.
  Turns(uint64_t seed, uint64_t num_clusters, size_t num_slots);
  void take(uint64_t place);  // returns when its turn has come, or when the launch is cancelled
  // By whose turn it is. After many, most are followed by one of the same cluster: a host thread that is
  // woken for each addition to a sum would take longer than all else.
  void pass();
  bool all_wait() const;  // so it seems; maybe for a cluster that has no slot
  void add_slot();
  size_t num_slots() const { return slots_.size(); }

  // It has exited or was given up. It keeps its slot until its turn comes.
  void exit(uint64_t place);
  void stop(uint64_t num_started);  // the others will not start

 private:
  void choose();
  void vacate_slots();

  const uint64_t num_clusters_;
  std::mutex mutex_;
  // By place: only who waits for the turn is woken. Of those under way hardly two share one.
  std::array<std::condition_variable, 64> come_;
  Random random_;
  std::vector<uint64_t> slots_;  // places
  size_t chosen_ = 0;            // the slot whose turn it is
  uint64_t next_;                // the first place that has not had a slot
  uint64_t turns_ = 0;
  uint64_t turns_since_exit_ = 0;  // or since there was a new slot
  std::vector<bool> exited_;
};

}  // namespace emulator
