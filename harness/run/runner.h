// Has jobs done in worker processes, and goes on when one of them dies: the step at which it did bears the
// blame.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/base/json.h"
#include "harness/base/text.h"
#include "harness/device/backend.h"
#include "harness/problem/problem.h"
#include "harness/run/jobs.h"
#include "harness/run/step_choice.h"

namespace flashsteps {

// Where the steps run.
struct Device {
  BackendKind backend;
  std::string no_cuda;  // why "auto" did not choose the GPU
  json description;     // see docs/results-schema.md, "device"
  size_t free_bytes;
  bool is_gpu() const { return backend == BackendKind::kCuda; }
  double peak_tflops(DType dtype) const;  // 0 when the card is not in the table
  std::string line() const;               // for people
};

// What a device says to each problem (first index) and step (second index).
struct Probed {
  std::vector<std::vector<std::string>> refusals;    // why it cannot; empty: it can
  std::vector<std::vector<LaunchRecord>> resources;  // zeros where it is refused, or launches nothing
};

struct Task {
  int id;  // the caller's
  std::string step;
  Problem problem;
};

class Runner {
 public:
  // Looks for "cuda", "emulator", or with "auto" for a GPU and else the emulator. Throws UsageError when
  // there is no "cuda". In process: without workers, so that what crashes or hangs takes all with it.
  Runner(const std::string& backend, bool in_process, double timeout_seconds);

  const Device& device() const { return device_; }
  Progress& progress() { return progress_; }  // what is under way, for people

  // From now on, steps get their configurations by this tuning file.
  void use_tuning(std::string text) { tuning_ = std::move(text); }

  // One of the jobs that jobs.h describes, on this device.
  JobOutcome job(json request, const EmitEvent& on_event) const;

  Probed probe(const std::vector<Problem>& problems, const std::vector<StepChoice>& steps) const;

  // Calls done(id, result) once per task, whatever happens to the workers on the way. On a GPU, whole outputs
  // are compared with trusted_step()'s, where it passes itself; if it has not been judged on a problem yet, it
  // is now, silently.
  using OnDone = std::function<void(int id, const StepResult& result)>;
  void validate(const std::vector<Task>& tasks, const std::vector<EmulatorMode>& modes,
                const std::string& progress, const OnDone& done);

 private:
  void establish_trust(const std::vector<Task>& tasks, const std::vector<EmulatorMode>& modes);
  void run_tasks(std::vector<Task> tasks, const std::vector<EmulatorMode>& modes, const OnDone& done);

  bool in_process_;
  std::string tuning_;  // empty: none
  double timeout_seconds_;
  Progress progress_;
  Device device_;
  std::map<std::string, int> hangs_in_a_row_;  // of each step
  std::map<std::string, bool> trusted_;        // problems on which trusted_step() was run: whether it passed
};

}  // namespace flashsteps
