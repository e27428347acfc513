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

// Runs the step once per mode (at least twice in all) into poisoned outputs and judges it; the outputs must
// be bitwise equal, whatever the mode. `trusted`, when given, holds v01's whole output. Throws DeviceError
// when a run does not come to its end.
Validation validate(Backend& backend, const Step& step, DeviceTensors& tensors, const Workload& workload,
                    const std::vector<ReferenceRow>& reference, const Outputs* trusted,
                    const std::vector<EmulatorMode>& modes);

// Runs the step on `tensors` and on another problem's `others`, first each alone and then both at the same
// time, on two streams. Empty when a call leaves the same in both cases; a problem whose result is merged
// with an earlier one cannot tell.
std::string disturbance(GpuBackend& gpu, const Step& step, DeviceTensors& tensors, DeviceTensors& others);

}  // namespace flashsteps
