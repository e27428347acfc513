// The CTAs of a cluster, which one host thread runs together, and their barrier.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

// barrier.cluster: of all threads of the cluster that have not exited. Who exits has arrived.
class ClusterBarrier {
 public:
  void start(int num_threads);  // of the whole cluster
  // By the running thread.
  void arrive(Location at);
  void wait(Location at);
  void exit();
  std::string describe_wait(const Fiber& fiber) const;

 private:
  struct Thread {
    unsigned arrivals, waits;
    Location arrived;  // the last time
  };
  Thread& own();
  void complete_if_done();

  std::vector<Thread> threads_;
  unsigned rounds_ = 0;  // that have completed
  int missing_ = 0;      // threads that have not arrived in the round under way
};

struct NotedReport {
  uint64_t place;  // of its cluster
  Report report;
};
// The first of each, in the order in which the clusters start, whichever host threads have run them.
void hand_over(std::vector<NotedReport> noted, std::vector<Report>& to);

// What else a cluster's `standing` may be than a number of suspicions.
constexpr uint64_t kGoesOn = 0, kHasEnded = UINT64_MAX;

struct Cluster {
  std::vector<Cta*> ctas;  // by rank
  uint64_t place;          // in the order in which the clusters start
  ClusterBarrier barrier;
  Context host;                    // the host thread itself
  std::unique_ptr<Report> report;  // why it was given up
  // With Options::reports, of the whole launch, as far as this host thread has run it:
  std::vector<NotedReport> noted;
  std::set<std::array<uintptr_t, 3>> known;  // rules and places: see is_news()

  // See headway.h.
  bool suspected = false;   // to stand still
  uint64_t suspicions = 0;  // how many there were when its threads' reads began to be counted anew
  std::unique_ptr<std::atomic<uint64_t>> standing = std::make_unique<std::atomic<uint64_t>>(kGoesOn);
  void goes_on() {
    if (!suspected) [[likely]]
      return;
    suspected = false;
    *standing = kGoesOn;
  }

  bool all_exited() const {
    return std::all_of(ctas.begin(), ctas.end(), [](const Cta* c) { return c->num_live == 0; });
  }
};

// Lives while the running thread does something to another CTA of its cluster. Nobody may park meanwhile.
class InCta {
 public:
  explicit InCta(Cta& other) : home_(cta) { cta = &other; }
  ~InCta() { cta = home_; }
  InCta(const InCta&) = delete;
  InCta& operator=(const InCta&) = delete;

 private:
  Cta* const home_;
};

// The CTA of this rank in the running thread's cluster. Reports if there is none, or if it has exited.
Cta& cta_of_cluster(const char* op, int rank, Location at);
// Where the other CTA has what the running one has at this address, in its dynamic shared memory.
uintptr_t same_place_in(const Cta& other, uintptr_t address);
// Whose shared memory that is, anywhere in the cluster; null: nobody's.
Cta* cta_with(uintptr_t shared);
// With the race detector: what the running thread's CTA has done in global memory is known to those that
// acquire from now on. (To any of the grid: it errs on the side of silence.)
void release_to_cluster();
void acquire_from_cluster();

}  // namespace emulator
