// Data races in global memory, between CTAs.
//
// During a launch the detector remembers which CTA wrote and which read, by blocks of 16 bytes, and by cells
// of two bytes where somebody has touched a part of a block. Single bytes are not looked at: the other byte
// of their cell may be another CTA's. Launches are independent of each other.
//
// An update is what is atomic in itself: a bulk copy's reduction, or an atomic operation on floating-point
// numbers. Updates are no race among each other, but with reads and writes. Integers may be the counters by
// which CTAs put themselves in order, so atomic operations on these are not looked at.
//
// Within a launch, CTAs run in no order unless they make one: what a CTA has done before a __threadfence() is
// published by its next atomic operation or volatile write, and known to a CTA that has carried out an atomic
// operation or a volatile read after that. What a bulk copy writes or updates comes before a fence only if
// its thread has waited for the copy to be complete: to have read its source is not enough. This errs on the
// side of silence: all threads of a CTA count as one, whatever the addresses are, what a CTA reads again
// before its next fence is not looked at again, and no second fence is demanded of the CTA that reads
// (CUDA's own guide has none), nor a proxy fence.
//
// A kernel that launch_overlapping() has launched may begin before the previous one has ended. Whatever a CTA
// touches before one of its threads has waited for that end is a race (check_previous_kernel of core.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "common/emulator/core.h"

namespace emulator {

class GlobalRaces {
 public:
  explicit GlobalRaces(Launch& launch);
  ~GlobalRaces();

  // All of them by the running thread.
  void start_cta();
  void access(uintptr_t address, size_t bytes, bool write, Site site);
  void update(uintptr_t address, size_t bytes, Site site);
  void fence();
  void publish();
  void acquire();
  void poll() { cta->order.polls = true; }
  // A group of bulk copies to global memory: its epoch; and what they have done there.
  uint32_t start_group();
  void group_access(uint32_t group, uintptr_t address, size_t bytes, bool update, Site site);
  void group_complete(uint32_t group);

 private:
  enum class Use { kRead, kWrite, kUpdate };
  struct Part;
  static Part next_part(const GlobalRange& range, uintptr_t address, uintptr_t end);
  void access_cell(GlobalCell& cell, uintptr_t address, Use use, Site site);
  void check_cell(const GlobalCell& cell, uintptr_t address, Use use, Site site);
  uint64_t cta_of(uint32_t epoch);
  bool is_mine(uint64_t access);
  bool happened_before(uint64_t access);
  // Returns only where the launch goes on after reports.
  [[gnu::cold]] void report(uintptr_t address, uint64_t earlier, Use earlier_use, Site site, Use use);

  Launch& launch_;
  std::mutex mutex_;  // protects the rest
  uint32_t num_epochs_;
  std::unordered_map<uint32_t, uint64_t> ctas_;       // of epochs; a CTA's first one is its number + 1
  std::unordered_map<uint32_t, uint64_t> published_;  // when each epoch was, if it was
  uint64_t num_publications_ = 0;
};

}  // namespace emulator
