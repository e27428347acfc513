// The mbarriers of a CTA, as the runtime knows them. In shared memory there is only a mark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

struct Mbarrier {
  // Bytes that were announced, or copied, and where in the source.
  struct Bytes {
    int64_t count;
    Location at;
  };

  uint64_t* address = nullptr;
  const Fiber* initialiser = nullptr;
  Location initialised = {};
  bool known_to_copies = false;  // a fence lies behind its initialisation

  int arrivals = 0;                   // that complete a phase
  int missing = 0;                    // of them, in the phase under way
  int64_t tx = 0;                     // bytes announced in the phase under way that have not been copied yet
  uint64_t phase = 0;                 // under way; so many have completed
  std::vector<Bytes> announced = {};  // in the phase under way
  std::vector<Bytes> copied = {};     // in the phase under way

  Bytes last_announced = {};
  Location last_load = {};
  uint64_t load_phase = 0;     // in which the last load was issued
  uint64_t waited_phases = 0;  // somebody has waited for so many
  bool has_let_pass = false;   // some wait has succeeded

  bool has_completed(int parity) const { return int(phase % 2) != parity; }
};

class MbarrierTable {
 public:
  void start_cta() { table_.clear(); }
  Mbarrier& operator[](int number) { return table_[size_t(number)]; }

  int initialise(uint64_t* address, int arrivals, Location at);
  void fence_initialised();  // by the running thread
  // The number of the mbarrier at this address. Reports if there is none.
  int find(const char* op, const uint64_t* address, Location at);
  void arrive(const char* op, int number, int64_t expected_bytes, Location at, bool relaxed = false);
  void announce(int number, int64_t bytes, Location at);
  void invalidate(int number) { table_[size_t(number)].address = nullptr; }
  void complete_bytes(int number, uint64_t phase, int64_t bytes, const Fiber& issuer, Location issued);

  // Nobody can run: all waits time out, but for those that have done so often since the last
  // progress. False: there are no others.
  bool time_out();
  std::string describe_wait(const Fiber& fiber);
  void check_exit(const Fiber& last);  // of the CTA's last thread

 private:
  void complete_if_done(int number, const Fiber& who);

  std::vector<Mbarrier> table_;
};

}  // namespace emulator
