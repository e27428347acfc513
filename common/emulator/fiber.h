// Fibers: execution contexts with a stack of their own that hand over to each other by an ordinary function
// call.
#pragma once

#include <signal.h>

#include <cstddef>
#include <vector>

// For thread-local variables that hooks and kernels touch: reached without a call, also in a shared library.
#define EMULATOR_FAST_TLS __attribute__((tls_model("initial-exec")))

namespace emulator {

// 256 KiB hold a kernel's locals many times over, also at -O0. Pages are backed by memory when first touched.
constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kStackGuardBytes = 768 << 10;  // below it, so that few local arrays reach beyond

// A context that is not running: where its registers are saved. The bounds are for AddressSanitizer only.
struct Context {
  void* stack_pointer = nullptr;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  bool finished = false;  // will never be resumed
};

// Makes `context` start in entry() on the given stack when it is first resumed. entry() must not return, and
// must begin with fiber_started(). `index` staggers the stacks: equal offsets in all of them would share
// cache sets. Its first kPoisonedBytes hold the byte `poison`, which a local variable has that nobody has
// given a value.
constexpr size_t kPoisonedBytes = 4 << 10;
void prepare_fiber(Context& context, char* stack, int index, int poison, void (*entry)());
void fiber_started();
void switch_context(Context& from, Context& to);

// Stacks of kStackBytes, each with kStackGuardBytes below it that nobody can touch.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();
  void reserve(int count);  // keeps the existing ones when there are enough
  char* operator[](int index) {
    return base_ + size_t(index) * (kStackGuardBytes + kStackBytes) + kStackGuardBytes;
  }

 private:
  void unmap();

  char* base_ = nullptr;
  int count_ = 0;
};

// ---- What the host's processor stops at. A kernel's thread that needs more than its stack, by a function
// that calls itself without end or by large local variables, touches the guard below it. And x86 stops at an
// integer that is divided by zero. These are reports, and no end of the program.

// Lives during a launch. Whoever handled these signals before still gets what is not the emulator's.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;
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
