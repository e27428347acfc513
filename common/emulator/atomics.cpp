// Atomic operations on shared and global memory.
#include <atomic>
#include <bit>
#include <cmath>
#include <type_traits>

#include "common/atomic_acq_rel.h"
#include "common/emulator/cluster_state.h"
#include "common/emulator/copy_engine.h"
#include "common/emulator/core.h"
#include "common/emulator/global_races.h"
#include "common/emulator/half.h"
#include "common/vector_add.h"

namespace emulator {
namespace {

// What the host can swap in one piece.
template <typename T>
using Word =
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <typename T>
Space begin_atomic(T* address, Location at) {
  const Space space = check_access(uintptr_t(address), sizeof(T), true, {.at = at});
  check_alignment(uintptr_t(address), sizeof(T), true, {.at = at});
  ++cta->counters.atomics;
  cta->cluster->goes_on();
  poll();
  if (space == Space::kGlobal) take_turn();
  return space;
}

// Lives while an atomic operation is carried out, by which CTAs can put themselves in order.
class Ordering {
 public:
  Ordering() {
    if (races_ != nullptr) races_->publish();
  }
  ~Ordering() {
    if (races_ != nullptr) races_->acquire();
    pass_turn();
  }

 private:
  GlobalRaces* const races_ = cta->launch->global_races;
};

template <typename T>
T updated(Atomic operation, T old, T operand) {
  if (operation == Atomic::kExchange) return operand;
  if constexpr (std::is_class_v<T>) {
    return old + operand;  // of 16-bit types there is only an addition
  } else {
    // Integers wrap around.
    if (operation == Atomic::kAdd) {
      if constexpr (std::is_floating_point_v<T>) return old + operand;
      return T(Word<T>(old) + Word<T>(operand));
    }
    if constexpr (std::is_integral_v<T>) {
      switch (operation) {
        case Atomic::kSub:
          return T(Word<T>(old) - Word<T>(operand));
        case Atomic::kMin:
          return operand < old ? operand : old;
        case Atomic::kMax:
          return old < operand ? operand : old;
        case Atomic::kIncrement:
          return old >= operand ? 0 : old + 1;
        case Atomic::kDecrement:
          return old == 0 || old > operand ? operand : old - 1;
        case Atomic::kAnd:
          return old & operand;
        case Atomic::kOr:
          return old | operand;
        case Atomic::kXor:
          return old ^ operand;
        default:
          break;
      }
    }
    return old;
  }
}

template <typename T>
T update(Atomic operation, T* element, T operand) {
  std::atomic_ref<Word<T>> target(*reinterpret_cast<Word<T>*>(element));
  Word<T> old = target.load();
  while (!target.compare_exchange_weak(
      old, std::bit_cast<Word<T>>(updated(operation, std::bit_cast<T>(old), operand)))) {
  }
  return std::bit_cast<T>(old);
}

template <typename T>
T carry_out(Atomic operation, T* address, T operand) {
  const Ordering ordering;
  return update(operation, address, operand);
}

// For the race detector, to which integers may be counters.
void note_update(Space space, const void* address, size_t bytes, uintptr_t pc) {
  GlobalRaces* const races = cta->launch->global_races;
  if (races != nullptr && space == Space::kGlobal) races->update(uintptr_t(address), bytes, site_of(pc));
}

}  // namespace

template <typename T>
T atomic(Atomic operation, T* address, T operand, Location at) {
  const InRuntime in_runtime;
  const Space space = begin_atomic(address, at);
  if constexpr (!std::is_integral_v<T>)
    note_update(space, address, sizeof(T), uintptr_t(__builtin_return_address(0)));
  return carry_out(operation, address, operand);
}

template <typename T>
void update_elements(Atomic operation, void* elements, const void* operands, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(T); ++i)
    update(operation, static_cast<T*>(elements) + i, static_cast<const T*>(operands)[i]);
}

template <typename T>
T atomic_compare_and_swap(T* address, T expected, T desired, Location at) {
  const InRuntime in_runtime;
  begin_atomic(address, at);
  const Ordering ordering;
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, desired);
  return expected;
}

#define FLASHSTEPS_ATOMIC(T)                     \
  template T atomic<T>(Atomic, T*, T, Location); \
  template void update_elements<T>(Atomic, void*, const void*, size_t);
FLASHSTEPS_ATOMIC(int)
FLASHSTEPS_ATOMIC(unsigned)
FLASHSTEPS_ATOMIC(long long)
FLASHSTEPS_ATOMIC(unsigned long long)
FLASHSTEPS_ATOMIC(float)
FLASHSTEPS_ATOMIC(double)
FLASHSTEPS_ATOMIC(cuda::__half)
FLASHSTEPS_ATOMIC(cuda::__half2)
FLASHSTEPS_ATOMIC(cuda::__nv_bfloat16)
FLASHSTEPS_ATOMIC(cuda::__nv_bfloat162)

#define FLASHSTEPS_COMPARE_AND_SWAP(T) template T atomic_compare_and_swap<T>(T*, T, T, Location);
FLASHSTEPS_COMPARE_AND_SWAP(unsigned short)
FLASHSTEPS_COMPARE_AND_SWAP(int)
FLASHSTEPS_COMPARE_AND_SWAP(unsigned)
FLASHSTEPS_COMPARE_AND_SWAP(unsigned long long)

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

namespace {
unsigned atomic_acq_rel(Atomic operation, unsigned* counter, unsigned value, Location at) {
  thread_fence();
  const unsigned before = atomic(operation, counter, value, at);
  thread_fence();
  return before;
}
}  // namespace

unsigned atomic_inc_acq_rel(unsigned* counter, unsigned limit, Location at) {
  return atomic_acq_rel(Atomic::kIncrement, counter, limit, at);
}

unsigned atomic_add_acq_rel(unsigned* counter, unsigned value, Location at) {
  return atomic_acq_rel(Atomic::kAdd, counter, value, at);
}

unsigned load_acquire(const unsigned* counter, Location) {
  touch_volatile(uintptr_t(counter), sizeof(*counter), /*write=*/false,
                 uintptr_t(__builtin_return_address(0)));
  const unsigned value = *static_cast<const volatile unsigned*>(counter);
  thread_fence();
  return value;
}

void atomic_add_4(float* to, const float (&values)[4], Location at) {
  const InRuntime in_runtime;
  const Space space = check_access(uintptr_t(to), sizeof(values), true, {.at = at});
  check_alignment(uintptr_t(to), sizeof(values), true, {.at = at});
  note_update(space, to, sizeof(values), uintptr_t(__builtin_return_address(0)));
  for (int i = 0; i < 4; ++i) {
    begin_atomic(&to[i], at);
    carry_out(Atomic::kAdd, &to[i], values[i]);
  }
}

}  // namespace flashsteps::inline on_emulator
