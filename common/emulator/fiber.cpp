#include "common/emulator/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "common/emulator/core.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers on the running stack, stores its pointer in *save, and continues on the
// stack `load` where that one was left. All other registers are the caller's to save, as at any call.
extern "C" void flashsteps_emulator_switch(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
  .text
  .globl flashsteps_emulator_switch
  .type flashsteps_emulator_switch, @function
flashsteps_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
  .size flashsteps_emulator_switch, . - flashsteps_emulator_switch
)");

// What the switch pops at a fiber's first resume: six registers and the address to continue at. Above it, a
// null return address, which also makes the stack 16-byte aligned the way a function expects it at entry.
static void* initial_frame(char* top, void (*entry)()) {
  void** frame = reinterpret_cast<void**>(top) - 8;
  std::memset(frame, 0, 8 * sizeof(void*));
  frame[6] = reinterpret_cast<void*>(entry);
  return frame;
}

#elif defined(__aarch64__)
asm(R"(
  .text
  .globl flashsteps_emulator_switch
  .type flashsteps_emulator_switch, %function
flashsteps_emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size flashsteps_emulator_switch, . - flashsteps_emulator_switch
)");

// What the switch loads at a fiber's first resume; x30, at offset 88, is the address to continue at.
static void* initial_frame(char* top, void (*entry)()) {
  char* frame = top - 160;
  std::memset(frame, 0, 160);
  std::memcpy(frame + 88, &entry, sizeof(entry));
  return frame;
}

#else
#error "the emulator's context switch is written for x86-64 and aarch64"
#endif

namespace emulator {
namespace {

// The context that the running one was resumed from. Only AddressSanitizer needs to know.
constinit thread_local Context* resumed_from = nullptr;

}  // namespace

void prepare_fiber(Context& context, char* stack, int index, int poison, void (*entry)()) {
  context.stack = stack;
  context.stack_bytes = kStackBytes;
  context.finished = false;
#ifdef EMULATOR_ASAN
  // A fiber that was given up after a report left its frames' poison behind.
  __asan_unpoison_memory_region(stack, kStackBytes);
#endif
  const size_t stagger = size_t(index % 61) * 192;
  char* const top = stack + kStackBytes - stagger;
  std::memset(top - kPoisonedBytes, poison, kPoisonedBytes);
  context.stack_pointer = initial_frame(top, entry);
}

static void resumed([[maybe_unused]] void* fake_stack) {
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, &resumed_from->stack, &resumed_from->stack_bytes);
#endif
}

void fiber_started() { resumed(nullptr); }

void switch_context(Context& from, Context& to) {
  void* fake_stack = nullptr;
  resumed_from = &from;
#ifdef EMULATOR_ASAN
  __sanitizer_start_switch_fiber(from.finished ? nullptr : &fake_stack, to.stack, to.stack_bytes);
#endif
  flashsteps_emulator_switch(&from.stack_pointer, to.stack_pointer);
  resumed(fake_stack);
}

Stacks::~Stacks() { unmap(); }

void Stacks::unmap() {
  if (base_ == nullptr) return;
#ifdef EMULATOR_ASAN
  // What is mapped here next must not find the poison that frames have left.
  for (int i = 0; i < count_; ++i) __asan_unpoison_memory_region((*this)[i], kStackBytes);
#endif
  munmap(base_, size_t(count_) * (kStackGuardBytes + kStackBytes));
  base_ = nullptr;
  count_ = 0;
}

void Stacks::reserve(int count) {
  if (count <= count_) return;
  unmap();
  void* memory = mmap(nullptr, size_t(count) * (kStackGuardBytes + kStackBytes), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(memory);
  count_ = count;
  for (int i = 0; i < count; ++i) {
    if (mprotect((*this)[i], kStackBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  }
}

// ---- What the host's processor stops at

namespace {

struct sigaction before_segv, before_fpe;
constinit thread_local uintptr_t stopped_at = 0;

// On the fiber's own stack, from its top: nobody will need what is there.
[[noreturn]] void report_overflow() {
  fail(rule_named("stack-overflow"), *self)
      << "the thread needs more than its stack of " << (kStackBytes >> 10) << " KiB, at "
      << Place{.pc = stopped_at} << ". " << ReportWriter::Advice()
      << "Does a function call itself too often, or are local variables too large?";
}

[[noreturn]] void report_division() {
  fail(rule_named("division-by-zero"), *self)
      << "an integer is divided by zero, or the least one by -1, at " << Place{.pc = stopped_at}
      << ". On a GPU the quotient is undefined";
}

void handle(int number, siginfo_t* info, void* opaque) {
  const uintptr_t stack = self == nullptr ? 0 : uintptr_t(self->context.stack);
  const bool overflow = number == SIGSEGV && stack - uintptr_t(info->si_addr) - 1 < kStackGuardBytes;
  const bool division = number == SIGFPE && info->si_code == FPE_INTDIV && in_kernel();
  if (overflow || division) {
    auto& machine = static_cast<ucontext_t*>(opaque)->uc_mcontext;
    const uintptr_t top = stack + kStackBytes - kPoisonedBytes;  // aligned
#if defined(__x86_64__)
    auto& pc = machine.gregs[REG_RIP];
    machine.gregs[REG_RSP] = greg_t(top - sizeof(void*));  // as behind a call
#else
    auto& pc = machine.pc;
    machine.sp = top;
#endif
    stopped_at = uintptr_t(pc) + 1;  // as a return address
    pc = decltype(+pc)(uintptr_t(overflow ? &report_overflow : &report_division));
    return;
  }
  const struct sigaction& before = number == SIGSEGV ? before_segv : before_fpe;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, opaque);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    sigaction(number, &before, nullptr);  // the access comes again, and ends the program
  }
}

}  // namespace

FaultHandler::FaultHandler() {
  struct sigaction mine = {};
  mine.sa_sigaction = handle;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&mine.sa_mask);
  sigaction(SIGSEGV, &mine, &before_segv);
  sigaction(SIGFPE, &mine, &before_fpe);
}

FaultHandler::~FaultHandler() {
  sigaction(SIGSEGV, &before_segv, nullptr);
  sigaction(SIGFPE, &before_fpe, nullptr);
}

SignalStack::SignalStack() : memory_(64 << 10) {
  const stack_t mine = {.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
  sigaltstack(&mine, &before_);
}

SignalStack::~SignalStack() { sigaltstack(&before_, nullptr); }

}  // namespace emulator
