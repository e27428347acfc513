// A kernel's thread that needs more than its stack, by a function that calls itself without end or by large
// local variables, touches the guard below it. That is a report, and no end of the program.
#pragma once

#include <signal.h>

#include <vector>

namespace emulator {

// Lives during a launch. Whoever handled SIGSEGV before still gets what is not the emulator's.
class OverflowHandler {
 public:
  OverflowHandler();
  ~OverflowHandler();
  OverflowHandler(const OverflowHandler&) = delete;
  OverflowHandler& operator=(const OverflowHandler&) = delete;
};

// Lives on a host thread while it runs kernels: a handler cannot run on a stack that is full.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::vector<char> memory_;
  stack_t before_;
};

}  // namespace emulator
