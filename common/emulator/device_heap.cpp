// What a program's kernels ask of the C library: malloc() and new, which have a heap of their own, and
// assert(). `flashsteps emulate` has the linker pass calls of these functions here (--wrap).
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include "common/emulator/core.h"

namespace emulator {

// cuda_program.cpp: cudaLimitMallocHeapSize, and why the kernel fails.
extern size_t device_heap_bytes;
extern std::atomic<bool> assertion_failed;

namespace {

// No address comes twice, or the race detector would take two blocks for one.
constexpr size_t kAddressBytes = 256 << 20;

class DeviceHeap {
 public:
  DeviceHeap() : begin_(static_cast<unsigned char*>(allocate_sparse(kAddressBytes))) {}

  // Null where CUDA's would be.
  void* allocate(size_t bytes) {
    const size_t rounded = (bytes + 15) / 16 * 16;
    const std::lock_guard lock(mutex_);
    if (bytes > device_heap_bytes || in_use_ + rounded > device_heap_bytes ||
        rounded + 16 > kAddressBytes - end_)
      return nullptr;
    void* const block = begin_ + end_;
    end_ += rounded + 16;
    in_use_ += rounded;
    sizes_[block] = rounded;
    std::memset(block, 0xff, rounded);
    return block;
  }

  // False: it is none, or no longer.
  bool release(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(block);
    if (found == sizes_.end()) return false;
    in_use_ -= found->second;
    sizes_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  unsigned char* const begin_;
  size_t end_ = 0, in_use_ = 0;
  std::unordered_map<void*, size_t> sizes_;
};

// There before the first launch, which then knows its memory.
DeviceHeap& heap = *new DeviceHeap;

void* allocate_in_kernel(size_t bytes) {
  const InRuntime in_runtime;
  return heap.allocate(bytes);
}

// `caller`: a return address into the kernel.
void release_in_kernel(void* block, void* caller) {
  if (block == nullptr) return;
  const InRuntime in_runtime;
  if (heap.release(block)) return;
  fail(rule_named("heap-misuse"), *self) << "free() at " << Place{.pc = uintptr_t(caller)} << " of "
                                         << ReportWriter::Address{describe_address(uintptr_t(block))}
                                         << ", which is free, or which no malloc() of a kernel has returned";
}

}  // namespace
}  // namespace emulator

using emulator::in_kernel;

extern "C" {

void* __real_malloc(size_t bytes);
void __real_free(void* block);
[[noreturn]] void __real___assert_fail(const char* condition, const char* file, unsigned line,
                                       const char* function);

void* __wrap_malloc(size_t bytes) {
  return in_kernel() ? emulator::allocate_in_kernel(bytes) : __real_malloc(bytes);
}
void __wrap_free(void* block) {
  in_kernel() ? emulator::release_in_kernel(block, __builtin_return_address(0)) : __real_free(block);
}

#define FLASHSTEPS_NEW(NAME)                                                         \
  void* __real_##NAME(size_t bytes);                                                 \
  void* __wrap_##NAME(size_t bytes) {                                                \
    return in_kernel() ? emulator::allocate_in_kernel(bytes) : __real_##NAME(bytes); \
  }
FLASHSTEPS_NEW(_Znwm)
FLASHSTEPS_NEW(_Znam)
#define FLASHSTEPS_DELETE(NAME)                                                                           \
  void __real_##NAME(void* block);                                                                        \
  void __wrap_##NAME(void* block) {                                                                       \
    in_kernel() ? emulator::release_in_kernel(block, __builtin_return_address(0)) : __real_##NAME(block); \
  }
FLASHSTEPS_DELETE(_ZdlPv)
FLASHSTEPS_DELETE(_ZdaPv)
#define FLASHSTEPS_SIZED_DELETE(NAME)                                             \
  void __real_##NAME(void* block, size_t bytes);                                  \
  void __wrap_##NAME(void* block, size_t bytes) {                                 \
    in_kernel() ? emulator::release_in_kernel(block, __builtin_return_address(0)) \
                : __real_##NAME(block, bytes);                                    \
  }
FLASHSTEPS_SIZED_DELETE(_ZdlPvm)
FLASHSTEPS_SIZED_DELETE(_ZdaPvm)

[[noreturn]] void __wrap___assert_fail(const char* condition, const char* file, unsigned line,
                                       const char* function) {
  if (!in_kernel()) __real___assert_fail(condition, file, line, function);
  const emulator::InRuntime in_runtime;
  emulator::assertion_failed = true;
  emulator::fail(emulator::rule_named("device-assert"), *emulator::self)
      << "the assertion `" << condition << "` does not hold, at " << emulator::Location{file, line};
  __builtin_unreachable();
}
}
