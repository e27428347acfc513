#include "common/emulator/stack_overflow.h"

#include <ucontext.h>

#include "common/emulator/core.h"

namespace emulator {
namespace {

struct sigaction before;
constinit thread_local uintptr_t pc_of_overflow = 0;

// On the fiber's own stack, from its top: nobody will need what is there.
[[noreturn]] void report_overflow() {
  fail(Bug::kGlobalOutOfBounds, *self, [] {
    return "the thread needs more than its stack of " + std::to_string(kStackBytes >> 10) + " KiB, at " +
           describe(pc_of_overflow) +
           ". Does a function call itself too often, or are local variables too large?";
  });
}

void handle(int number, siginfo_t* info, void* opaque) {
  const uintptr_t stack = self == nullptr ? 0 : uintptr_t(self->context.stack);
  if (stack - uintptr_t(info->si_addr) - 1 < kStackGuardBytes) {
    auto& machine = static_cast<ucontext_t*>(opaque)->uc_mcontext;
    const uintptr_t top = stack + kStackBytes - kPoisonedBytes;  // aligned
#if defined(__x86_64__)
    auto& pc = machine.gregs[REG_RIP];
    machine.gregs[REG_RSP] = greg_t(top - sizeof(void*));  // as behind a call
#else
    auto& pc = machine.pc;
    machine.sp = top;
#endif
    pc_of_overflow = uintptr_t(pc) + 1;  // as a return address
    pc = decltype(+pc)(uintptr_t(&report_overflow));
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, opaque);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    sigaction(number, &before, nullptr);  // the access comes again, and ends the program
  }
}

}  // namespace

OverflowHandler::OverflowHandler() {
  struct sigaction mine = {};
  mine.sa_sigaction = handle;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&mine.sa_mask);
  sigaction(SIGSEGV, &mine, &before);
}

OverflowHandler::~OverflowHandler() { sigaction(SIGSEGV, &before, nullptr); }

SignalStack::SignalStack() : memory_(64 << 10) {
  const stack_t mine = {.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
  sigaltstack(&mine, &before_);
}

SignalStack::~SignalStack() { sigaltstack(&before_, nullptr); }

}  // namespace emulator
