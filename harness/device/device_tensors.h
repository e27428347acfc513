// A workload's tensors on a backend's device, and the call that a step gets.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/device/backend.h"
#include "harness/problem/tensors.h"

namespace flashsteps {

class DeviceTensors {
 public:
  // Allocates and uploads; throws when memory is short.
  DeviceTensors(Backend& backend, Workload& workload);
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

  const AttentionCall& call() const { return call_; }
  const Problem& problem() const { return workload_.problem(); }
  const Workload& workload() const { return workload_; }
  // From now on, call() is one for this step: with its configuration, and with a workspace and counters if it
  // needs them. Earlier calls keep theirs.
  void prepare_for(const Step& step, int configuration);
  // What the outputs, the workspace, and whatever else a step must not read hold from now on. Counters are
  // zero again.
  void poison(Poison poison);
  Outputs download_outputs() const;
  // The first input that no longer holds what was uploaded, or what is wrong with the workspace or the
  // counters after a run, as a sentence; empty when all is well. Inputs that have changed are uploaded again.
  std::string changed_input();

 private:
  // A stretch of a tensor that is one on the host and on the device. Offsets are in bytes.
  struct Piece {
    size_t host, device, bytes;
  };
  // Memory on the device and what it shares with the host's buffer: all of that in one piece, but for layout
  // `far`, where each row is a piece.
  struct Buffer {
    std::string name;
    void* memory;
    std::vector<Piece> pieces;
    uint64_t checksum = 0;  // of an input: what it must hold
  };
  void* allocate(size_t bytes);
  Buffer make_buffer(const char* name, const Placement& host, const Placement& device, int64_t elements,
                     DType dtype);
  void upload(const Buffer& to, std::span<const unsigned char> from);
  void download(std::span<unsigned char> to, const Buffer& from) const;
  void upload_inputs(bool only_unreadable);  // only what Workload::poison() changes
  uint64_t checksum_of(const Buffer& buffer) const;
  void clear_counters();
  // With a guard of poison behind it, which is looked for afterwards.
  void upload_guarded(void* to, const void* from, size_t bytes);
  bool is_guarded(const void* memory, size_t bytes) const;
  template <typename Number>
  bool holds(const Number* memory, const std::vector<Number>& numbers) const;
  template <typename Number>
  const Number* uploaded(const std::vector<Number>& numbers);

  Backend& backend_;
  Workload& workload_;
  Poison poison_ = Poison::kNan;
  AttentionCall call_{};
  std::vector<void*> allocations_;
  std::vector<Buffer> inputs_, outputs_;  // by their numbers in the plan
  Buffer lse_{};                          // an output, and an input of a backward pass
  void* workspace_ = nullptr;             // of all steps
  size_t workspace_capacity_ = 0;
  unsigned* counters_ = nullptr;  // of all steps that use some
};

// The call without memory: enough for refusal() and describe().
AttentionCall shape_of_call(const Problem& problem);

}  // namespace flashsteps
