// A workload's tensors on a backend's device, and the call that a step gets.
#pragma once

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
  // From now on, call() is one for this step: with its configuration, and with a workspace if it needs one.
  // Earlier workspaces stay.
  void prepare_for(const Step& step, int configuration);
  // What the outputs, the workspace, and whatever else a step must not read hold from now on.
  void poison(Poison poison);
  Outputs download_outputs() const;
  // The first input that no longer holds what was uploaded, or that something was written beyond the
  // workspace, as a sentence; empty when all is well.
  std::string changed_input() const;

  // A stretch of a tensor's buffer that is one on the device as well. Offsets and size in bytes.
  struct Piece {
    size_t host, device, bytes;
  };

 private:
  void* allocate(size_t bytes);
  void upload_inputs();
  Backend& backend_;
  Workload& workload_;
  Poison poison_ = Poison::kNan;
  AttentionCall call_{};
  std::vector<void*> allocations_;
  std::vector<void*> inputs_;
  std::vector<std::vector<Piece>> input_pieces_;  // by buffer
  std::vector<Piece> output_pieces_;
  void* kv_lengths_ = nullptr;
  size_t workspace_capacity_ = 0;
  void* o_ = nullptr;
  void* lse_ = nullptr;
};

// The call without memory: enough for refusal() and describe().
AttentionCall shape_of_call(const Problem& problem);

}  // namespace flashsteps
