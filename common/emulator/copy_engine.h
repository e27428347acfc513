// The copies of a CTA that are under way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/emulator/core.h"
#include "common/emulator/cuda_driver.h"
#include "common/emulator/shared_races.h"
#include "common/tensor_map.h"

namespace emulator {

// What cuTensorMapEncodeTiled() puts into a CUtensorMap. The real contents are the hardware's secret.
struct TypedTensorMap {
  flashsteps::TensorMapShape shape;
  cuda::CUtensorMapDataType type;
};
static_assert(sizeof(TypedTensorMap) <= sizeof(cuda::CUtensorMap));

// In elements, as the kernel counts them; [0] is the contiguous dimension.
struct BoxOrigin {
  int at[flashsteps::TensorMapShape::RANK];
};

struct Copy {
  flashsteps::TensorMapShape map;
  BoxOrigin origin;
  uintptr_t shared;
  size_t bytes;  // of the whole box
  const Fiber* issuer;
  Location at;
  Site site = 0;
  bool done = false;

  // Of a load.
  int mbarrier = -1;
  uint64_t phase = 0;            // of the mbarrier
  SharedRaces::Time issued = 0;  // only with the race detector

  // Of a store.
  unsigned group = 0;  // how many groups its thread had committed before it
  // Of a reduction: update_elements<T> and its operation.
  void (*reduce)(Atomic, void*, const void*, size_t) = nullptr;
  Atomic operation = {};

  bool is_load() const { return mbarrier >= 0; }
};

// elements[i] = operation(elements[i], operands[i]), each atomically and in no order with anything else. In
// atomics.cpp.
template <typename T>
void update_elements(Atomic operation, void* elements, const void* operands, size_t bytes);

// Loads are forgotten when they are done, stores when their thread has waited until they have read.
class CopyEngine {
 public:
  void start_cta() {
    copies_.clear();
    writing_.clear();
  }

  void issue(const Copy& copy);
  // All of this thread's stores that are part of its first `groups` groups: until they have read shared
  // memory, and until they are complete.
  void wait_for_stores(const Fiber& who, unsigned groups);
  void wait_for_writes(const Fiber& who, unsigned groups);
  // Of the running thread's current group, for the race detector.
  uint32_t epoch_of_group();
  void check_exit(const Fiber& who);  // of a thread

  // A moment at which copies may be done, as options.async wants.
  void pass_moment() {
    if (!copies_.empty() && cta->options.async == AsyncMode::kRandom) finish_some();
  }
  bool has_loads() const { return std::ranges::any_of(copies_, &Copy::is_load); }
  // Nobody can run before a load is done. False: there is none.
  bool finish_a_load();

 private:
  void finish_some();
  void finish(size_t index);

  struct Writing {
    const Fiber* issuer;
    unsigned group;
    uint32_t epoch;
  };

  std::vector<Copy> copies_;        // the oldest first
  std::vector<Writing> writing_;    // the same; groups that no thread has waited to be complete
  std::vector<size_t> candidates_;  // of finish_a_load()
};

}  // namespace emulator
