// Signs of life from inside of a CTA (Options::progress), which may run for minutes. A loop that never ends
// must not give any, whatever it does again and again: compute, copy, meet at barriers. So what counts is
// what can happen only so many times in a launch:
//
//  - a write to a place in global memory where no CTA of the launch has written before;
//  - a read of global memory below or above all that the CTA has read of that allocation since it last made
//    such a write, or since it began.
//
// Every sixteenth of these is a sign, and so is the end of a CTA.
//
// A launch whose threads only wait for each other's counters need not be waited for. A cluster is suspected
// to stand still when each of its threads is parked, has exited, or has read one volatile variable so many
// times in a row and found the same value. It stands still when all this has happened again since the last
// suspicion of any cluster. Whoever writes such a variable goes on, and if it is suspected later, all others
// must look again. So when all clusters that have started stand still since the same suspicion, and no more
// can start beside them, none of them will ever go on, and that is a deadlock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

// Which places of global memory the CTAs of a launch have written.
class WrittenPlaces {
 public:
  explicit WrittenPlaces(const std::vector<GlobalRange>& memory);
  ~WrittenPlaces();
  WrittenPlaces(const WrittenPlaces&) = delete;
  WrittenPlaces& operator=(const WrittenPlaces&) = delete;
  // Of one range, by its index, at an offset in bytes. True if it is the first there.
  bool add(size_t range, size_t offset);

 private:
  std::vector<size_t> begins_;  // of each range, in bits
  uint8_t* bits_;               // cost memory only where they are touched
  size_t num_bytes_;
};

// What a CTA has read of each range since it last made headway by a write.
class ReadExtents {
 public:
  void start(size_t num_ranges);  // forgets all
  bool add(size_t range, uintptr_t address);

  uint64_t headway = 0;  // how often the CTA has made some, by reads and by writes

 private:
  struct Extent {
    uintptr_t first, last;  // places of 64 bytes: a sign for each element would cost more than the read
    uint64_t time;
  };
  std::vector<Extent> extents_;
  uint64_t time_ = 0;
};

// By the running thread, for a volatile read.
void note_poll(uintptr_t address, size_t bytes, uintptr_t pc);
// Of the running thread's launch: clusters that wait for one of those under way to end.
uint64_t num_not_started();
// By the running thread, for every access to global memory that the emulator looks at.
void note_headway(const GlobalRange& range, uintptr_t address, bool write);

}  // namespace emulator
