// The program's commands. Each returns an ExitStatus, and throws UsageError for what only the device can tell
// to be wrong use.
#pragma once

#include "harness/program/options.h"

namespace flashsteps {

enum ExitStatus { kAllPassed = 0, kSomethingFailed = 1, kWrongUse = 2, kCrashedOrHung = 3 };

int show_problems(const Options& options);

// A full disk or a closed pipe at the other end of stdout is no success: throws std::runtime_error.
void flush_output();

}  // namespace flashsteps
