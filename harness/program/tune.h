// What `flashsteps tune` keeps of a run: see harness/device/tuning.h, which reads it.
#pragma once

#include <string>

#include "harness/run/step_result.h"

namespace flashsteps {

// Makes the folder of this file, and warns when the file that is there will be replaced as a whole, since it
// is of no use. Returns where it will be written: links are followed. Throws UsageError when it cannot be.
std::string prepare_tuning_file(const std::string& path);

// Adds the fastest configuration of each step of a run to the file at `path`, in place of what it says of
// such calls. Returns a line for people per step. `provenance` is that of the results file.
std::string keep_fastest(const std::string& path, const Run& run, const json& provenance);

}  // namespace flashsteps
