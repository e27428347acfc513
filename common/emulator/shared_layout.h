// Where the __shared__ variables of a program's kernel lie: see shared_variables.h.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/emulator/core.h"
#include "common/emulator/shared_variables.h"

namespace emulator {

// What a kernel refers to, directly or in the functions that it calls.
struct KernelNeeds {
  std::vector<SharedVariable*> variables;  // in the order of the source
  const ClusterDims* cluster = nullptr;
};
// Of what begins at these addresses.
KernelNeeds needs_of(const std::vector<uintptr_t>& roots);

// Of one launch. A variable that only a call through a pointer reaches may turn up while the kernel runs: it
// then lies behind all others.
class SharedLayout {
 public:
  // Throws Report if that is too much.
  SharedLayout(const std::vector<SharedVariable*>& variables, size_t dynamic_bytes);

  static constexpr size_t kReservedBytes = 1024;  // at the beginning of a CTA's window, for CUDA itself
  size_t bytes() const { return bytes_; }         // of all
  size_t dynamic_begin() const { return dynamic_begin_; }
  size_t dynamic_bytes() const { return dynamic_bytes_; }
  size_t static_bytes() const { return static_bytes_; }
  bool has(const SharedVariable& variable) const { return variable.place >> kOffsetBits == launch_; }
  size_t offset_of(const SharedVariable& variable) const { return uint32_t(variable.place); }  // from smem
  bool add_late(SharedVariable& variable);    // by the running thread. False: there is no room.
  std::string describe(size_t offset) const;  // "tile + 20 bytes"

 private:
  void add(SharedVariable& variable);    // behind all others
  bool has_room(size_t more = 0) const;  // for so many bytes more
  std::string too_much() const;          // "" if it is not

  static constexpr int kOffsetBits = 32;

  const uint64_t launch_;
  mutable std::mutex mutex_;  // protects the rest
  std::vector<std::pair<size_t, const SharedVariable*>> places_;
  std::atomic<size_t> bytes_ = 0;
  size_t static_bytes_ = 0;
  size_t dynamic_begin_ = 0, dynamic_bytes_ = 0;
};

// The CTA's shared memory holds all that has turned up.
void cover_layout(Cta& which);

}  // namespace emulator
