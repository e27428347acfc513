// Is a step's output right? The bookkeeping around the gates (gates.h), and a diagnosis when it is not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/base/json.h"
#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/judge/reference.h"

namespace flashsteps {

struct Validation {
  bool pass = false;
  std::string message;  // empty when it passes
  double nrmse = 0, worst_row_nrmse = 0, max_abs = 0, lse_max_abs = 0;
  // The worst element's error, in units of what roundings of P and O to the type may add up to there; at most
  // twice that of a naive implementation of the same type, and 1.
  double worst_element = 0, gate_element = 0;
  // By how much of itself the output is too long or too short. Roundings cancel over rows and keys,
  // truncation does not. Not judged where it says nothing: fp32, and inputs in which many scores are equal.
  std::optional<double> bias;
  double gate_bias = 0;
  int64_t nonfinite = 0, rows_checked = 0;
  bool runs_identical = true;
  bool compared_with_v01 = false;
};
json to_json(const Validation& validation, const Problem& problem);

// Judges outputs by the reference rows; scans every element for NaN, Inf and poison that no one overwrote.
// `outputs` is consumed: checking the guards destroys it. `runs_sound`: the runs were identical and changed
// no input. If so, a user's own inputs whose error alone is above its gate get no hint at a bug: there may be
// none.
Validation judge(const Workload& workload, const std::vector<ReferenceRow>& reference, Outputs outputs,
                 bool runs_sound = true);

// The whole output against another step's, every row: NRMSE and worst row as in `gates`, lse within twice its
// gate (each may be off by one). Empty when close enough.
std::string compare_outputs(const Workload& workload, const Outputs& outputs, const Outputs& trusted);

// Runs the step once per mode (at least twice in all) into poisoned outputs and judges it; the outputs must
// be bitwise equal, whatever the mode. `trusted`, when given, holds v01's whole output. `counters` receives
// what a counting run counted, by kernel. Throws DeviceError when a run does not come to its end.
Validation validate(Backend& backend, const Step& step, DeviceTensors& tensors, const Workload& workload,
                    const std::vector<ReferenceRow>& reference, const Outputs* trusted,
                    const std::vector<EmulatorMode>& modes, std::vector<json>& counters);

// Runs the step on `tensors` and on another problem's `others`, first each alone and then both at the same
// time, on two streams. Empty when a call leaves the same in both cases; a problem whose result is merged
// with an earlier one cannot tell. CUDA only.
std::string disturbance(Backend& backend, const Step& step, DeviceTensors& tensors, DeviceTensors& others);

}  // namespace flashsteps
