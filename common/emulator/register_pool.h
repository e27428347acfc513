// How many registers the warps of a CTA have, and how many they have given back: setmaxnreg's accounts.
#pragma once

#include <array>
#include <string>

#include "common/emulator/core.h"

namespace emulator {

constexpr int kWarpsPerGroup = 4;

class RegisterPool {
 public:
  void start_cta() { *this = {}; }

  struct Change {
    bool increase;
    int registers;  // a thread, from now on
    int at_launch;
    Location at;
    const char* op() const { return increase ? "setmaxnreg.inc" : "setmaxnreg.dec"; }
  };
  // By all lanes of the running warp together. An increase may have to wait.
  void change(const Change& change);
  bool waits(int warp) const { return wants_[size_t(warp)] != 0; }

  std::string describe_wait(const Fiber& fiber) const;
  void check_exit(const Fiber& last);  // of the CTA's last thread

 private:
  struct Group {
    unsigned came = 0;  // its warps that have executed the latest change
    Change change = {};
  };
  void check(const Change& change);
  void serve();

  int at_launch_ = 0;  // 0: nobody has said it
  int pool_ = 0;
  std::array<int, kMaxWarps> has_ = {};    // a thread
  std::array<int, kMaxWarps> wants_ = {};  // 0: it does not wait
  std::array<Group, kMaxWarps / kWarpsPerGroup> groups_ = {};
};

}  // namespace emulator
