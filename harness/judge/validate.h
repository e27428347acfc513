// Runs a step as often as it takes to judge it.
#pragma once

#include <string>
#include <vector>

#include "harness/base/json.h"
#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/judge/judge.h"

namespace flashsteps {

json to_json(const Validation& validation, const Problem& problem);
json gates_by_type();  // those of gates.h, for scripts

// Simple enough to be believed, once it is checked itself: others' whole outputs may be compared with its
// own. And it leaves the o and lse of a large backward pass.
constexpr const char* kTrustedStep = "v01_scalar";
constexpr const char* kTrustedBackwardStep = "v51_delta_from_o";  // v50 has another D: it reads no o
inline const char* trusted_step(const Problem& problem) {
  return problem.backward ? kTrustedBackwardStep : kTrustedStep;
}

// What a step gets for this problem: of a backward pass also o and lse. They are the reference's, or where
// that takes long, what kTrustedStep leaves on a GPU. Throws std::runtime_error when it is not in the
// program.
Workload workload_of(Backend& backend, const Problem& problem);

// Runs the step once per mode (at least twice in all) into poisoned outputs and judges it; the outputs must
// be bitwise equal, whatever the mode, or if the step `varies`, each must be right. `trusted`, when given,
// holds the whole output of trusted_step(). Throws DeviceError when a run does not come to its end.
Validation validate(Backend& backend, const Step& step, DeviceTensors& tensors, const Workload& workload,
                    const std::vector<ReferenceRow>& reference, const Outputs* trusted,
                    const std::vector<EmulatorMode>& modes);

// Runs the step on `tensors` and on another problem's `others`, first each alone and then both at the same
// time, on two streams. Empty when a call leaves the same in both cases; a problem whose result is merged
// with an earlier one cannot tell.
std::string disturbance(GpuBackend& gpu, const Step& step, DeviceTensors& tensors, DeviceTensors& others);

}  // namespace flashsteps
