// What a command that runs steps does before the first one runs.
#pragma once

#include <string>
#include <vector>

#include "harness/program/options.h"
#include "harness/run/runner.h"

namespace flashsteps {

// The problems of the command line, or else the program's own. Throws UsageError when there is no room for
// one of them.
std::vector<Problem> prepare_problems(const Options& options, const Runner& runner);

// Why the device has no room for the problem's tensors, or --memory allows none; empty when it has.
std::string lacks_memory(const Problem& problem, const Device& device, double memory_gib);

// A step that was asked for by name and cannot run a problem is wrong use; in a sweep it is a SKIP, and so it
// is where the step can run the problem with another type of K and V, which was asked for as well. Throws
// UsageError.
void refuse_named_steps(const Options& options, const std::vector<Problem>& problems, const Probed& probed);

// How the emulator runs each step, one run after the other; on a GPU, twice.
std::vector<EmulatorMode> modes(const Options& options, const Device& device);

}  // namespace flashsteps
