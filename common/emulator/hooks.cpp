// What the compiler calls before every load and store of a kernel.
//
// Kernels are compiled with -fsanitize=thread, which inserts these calls, but not linked with
// ThreadSanitizer's runtime: the functions here take its place. So an ordinary `tile[i] = x` is seen with its
// address, size and place in the program, and the kernel's source knows nothing of it.
#include <atomic>
#include <cstring>

#include "common/emulator/async_products.h"
#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/global_races.h"
#include "common/emulator/headway.h"
#include "common/emulator/shared_races.h"

namespace emulator {
namespace {

enum class Kind { kPlain, kPartOfRange, kVolatile };

void global_access(uintptr_t address, size_t bytes, bool write, Site site) {
  if (write) cta->races->global_write(*self, address, bytes, site);
  cta->launch->global_races->access(address, bytes, write, site);
  if (!write && !cta->options.count) cta->recent_reads.add(address, bytes);
}

void access_cluster(uintptr_t address, size_t bytes, bool write, Site site) {
  if (!cta->options.race_detector) return;
  const InCta there(*cta_with(address));
  cta->races->remote_access(kind_of_access(write), *self, address, bytes, write, site);
}

[[gnu::always_inline]] inline void shared_access(uintptr_t address, size_t bytes, bool write, Site site,
                                                 Kind kind) {
  const Options& options = cta->options;
  if (options.shuffle && cta->random.one_in(64)) yield();
  if (options.count) add_to_log({address, site, uint8_t(bytes), /*shared=*/true, write});
  if (options.race_detector)
    cta->races->shared_access(*self, address, bytes, write, site, kind == Kind::kPlain);
}

[[gnu::noinline]] void look_closer(uintptr_t address, size_t bytes, bool write, uintptr_t pc, Kind kind) {
  if (self->registers_watched && address - uintptr_t(self->context.stack) < kStackBytes) {
    const InRuntime in_runtime;
    cta->products->register_access(address, bytes, write, site_of(pc));
    return;
  }
  const uintptr_t in_smem = address - uintptr_t(cta->smem);
  if (in_smem < cta->smem_bytes && bytes <= cta->smem_bytes - in_smem && kind != Kind::kVolatile) {
    const InRuntime in_runtime;
    return shared_access(address, bytes, write, site_of(pc), kind);
  }
  // Filled for the race detector only, and empty at the start of every CTA.
  if (!write && in_smem >= kMaxSmemBytes && kind != Kind::kVolatile && cta->recent_reads.has(address, bytes))
    return;
  const InRuntime in_runtime;
  const Space space = check_access(address, bytes, write, {.pc = pc});
  if (kind == Kind::kVolatile) {
    // Somebody may be spinning here. It is neither a race nor counted: how often it runs is a matter of luck.
    if (!write) poll();
    if (space == Space::kGlobal) {
      take_turn();
      if (GlobalRaces* const races = cta->launch->global_races; races != nullptr) {
        write ? races->publish() : races->poll();
      }
    }
    write ? cta->cluster->goes_on() : note_poll(address, bytes, pc);
    return;
  }
  if (space == Space::kPrivate) return;
  if (space == Space::kCluster) return access_cluster(address, bytes, write, site_of(pc));
  if (space == Space::kShared) return shared_access(address, bytes, write, site_of(pc), kind);
  log_access({address, site_of(pc), uint8_t(bytes), /*shared=*/false, write});
  if (cta->options.race_detector) global_access(address, bytes, write, site_of(pc));
}

[[gnu::always_inline]] inline bool is_known_good(uintptr_t address) {
  return windows.stack.holds(address) || windows.global[0].holds(address) ||
         windows.global[1].holds(address) || windows.shared.holds(address);
}

template <size_t BYTES, bool WRITE, bool ALIGNED = true>
[[gnu::always_inline]] inline void plain_access(void* pointer, void* pc) {
  const uintptr_t address = uintptr_t(pointer);
  if (ALIGNED && address % BYTES != 0 && in_kernel()) [[unlikely]] {
    check_alignment(address, BYTES, WRITE, {.pc = uintptr_t(pc)});
  }
  if (is_known_good(address)) [[likely]]
    return;
  look_closer(address, BYTES, WRITE, uintptr_t(pc), Kind::kPlain);
}

template <size_t BYTES, bool WRITE>
void volatile_access(void* pointer, void* pc) {
  if (in_kernel()) look_closer(uintptr_t(pointer), BYTES, WRITE, uintptr_t(pc), Kind::kVolatile);
}

// Copies and fills of any size, as so many accesses of 16 bytes and one of the rest.
void access_range(const void* pointer, size_t bytes, bool write, void* pc) {
  if (!in_kernel()) return;
  uintptr_t address = uintptr_t(pointer);
  while (bytes > 0) {
    const size_t piece = bytes < 16 ? bytes : 16;
    if (!is_known_good(address)) look_closer(address, piece, write, uintptr_t(pc), Kind::kPartOfRange);
    address += piece;
    bytes -= piece;
  }
}

}  // namespace

void check_shared(const char* op, const void* pointer, size_t bytes, size_t alignment, bool write,
                  uintptr_t pc) {
  const InRuntime in_runtime;
  const uintptr_t address = uintptr_t(pointer);
  const Space space = check_access(address, bytes, write, {.pc = pc});
  if (space != Space::kShared) {
    fail(Bug::kSharedOutOfBounds, *self)
        << op << " at " << Place{.pc = pc} << ": the address is not in shared memory";
  }
  if (address % alignment != 0) {
    const bool has_name = address - uintptr_t(cta->smem) < kMaxSmemBytes;
    fail(Bug::kMisaligned, *self) << op << " at " << Place{.pc = pc} << ": the address"
                                  << (has_name ? " " + describe_shared(address) : "")
                                  << " is not a multiple of " << alignment;
  }
  if (cta->options.shuffle && cta->random.one_in(64)) yield();
}

void touch_shared(const char* op, const void* pointer, size_t bytes, size_t alignment, bool write,
                  uintptr_t pc) {
  check_shared(op, pointer, bytes, alignment, write, pc);
  if (!cta->options.race_detector) return;
  const InRuntime in_runtime;
  cta->races->shared_access(*self, uintptr_t(pointer), bytes, write, site_of(pc));
}

void touch_volatile(uintptr_t address, size_t bytes, bool write, uintptr_t pc) {
  look_closer(address, bytes, write, pc, Kind::kVolatile);
}

void touch_global(const char* op, uintptr_t address, size_t bytes, bool write, uintptr_t pc) {
  // As for plain accesses.
  if (windows.global[0].holds(address) || windows.global[1].holds(address)) return;
  if (!write && cta->recent_reads.has(address, bytes)) return;
  const InRuntime in_runtime;
  if (check_access(address, bytes, write, {.pc = pc}) != Space::kGlobal) {
    fail(Bug::kGlobalOutOfBounds, *self)
        << op << " at " << Place{.pc = pc} << ": the address is not in global memory";
  }
  log_access({address, site_of(pc), uint8_t(bytes), /*shared=*/false, write, /*async=*/true});
  if (cta->options.race_detector) global_access(address, bytes, write, site_of(pc));
}

void add_to_log(const Access& access) {
  if (cta->log->full(*self)) {
    cta->warps[size_t(self->warp)].log_full |= 1u << self->lane;
    park(State::kLogFull);
  }
  cta->log->add(*self, access);
}

void wait_for_previous_kernel() { cta->order.previous_runs = false; }

void thread_fence() {
  const InRuntime in_runtime;
  if (cta->launch->global_races != nullptr) cta->launch->global_races->fence();
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace emulator

// One access each, by size. gcc has no names for unaligned ones: it calls the range functions.
#define FLASHSTEPS_CALLER __builtin_return_address(0)
#define FLASHSTEPS_HOOK(NAME, ...) \
  void __tsan_##NAME(void* p) { emulator::__VA_ARGS__(p, FLASHSTEPS_CALLER); }
#define FLASHSTEPS_HOOKS(BYTES)                                                  \
  FLASHSTEPS_HOOK(read##BYTES, plain_access<BYTES, false>)                       \
  FLASHSTEPS_HOOK(write##BYTES, plain_access<BYTES, true>)                       \
  FLASHSTEPS_HOOK(unaligned_read##BYTES, plain_access<BYTES, false, false>)      \
  FLASHSTEPS_HOOK(unaligned_write##BYTES, plain_access<BYTES, true, false>)      \
  FLASHSTEPS_HOOK(volatile_read##BYTES, volatile_access<BYTES, false>)           \
  FLASHSTEPS_HOOK(volatile_write##BYTES, volatile_access<BYTES, true>)           \
  FLASHSTEPS_HOOK(unaligned_volatile_read##BYTES, volatile_access<BYTES, false>) \
  FLASHSTEPS_HOOK(unaligned_volatile_write##BYTES, volatile_access<BYTES, true>)

extern "C" {
FLASHSTEPS_HOOKS(1)
FLASHSTEPS_HOOKS(2)
FLASHSTEPS_HOOKS(4)
FLASHSTEPS_HOOKS(8)
FLASHSTEPS_HOOKS(16)

// The signatures are those that gcc declares when any sanitizer is on.
void __tsan_read_range(void* p, intptr_t bytes) {
  emulator::access_range(p, size_t(bytes), false, FLASHSTEPS_CALLER);
}
void __tsan_write_range(void* p, intptr_t bytes) {
  emulator::access_range(p, size_t(bytes), true, FLASHSTEPS_CALLER);
}

// clang 15 and later call these for copies and fills.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  emulator::access_range(from, bytes, false, FLASHSTEPS_CALLER);
  emulator::access_range(to, bytes, true, FLASHSTEPS_CALLER);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  emulator::access_range(from, bytes, false, FLASHSTEPS_CALLER);
  emulator::access_range(to, bytes, true, FLASHSTEPS_CALLER);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  emulator::access_range(to, bytes, true, FLASHSTEPS_CALLER);
  return std::memset(to, value, bytes);
}

// Of no interest here, but called.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
}
