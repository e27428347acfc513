// The program's commands, each in a file of its own. They return an ExitStatus, and throw UsageError for what
// only the device can tell to be wrong use.
#pragma once

#include <set>
#include <string>

#include "harness/program/options.h"
#include "harness/run/step_result.h"

namespace flashsteps {

enum ExitStatus { kAllPassed = 0, kSomethingFailed = 1, kWrongUse = 2, kCrashedOrHung = 3 };

int run_steps(const Options& options);     // run, bench, tune, count, and check with problems
int check_sample(const Options& options);  // check without
int trace_step(const Options& options);
int show_problems(const Options& options);
int list_steps(const Options& options);
int show_info(const Options& options);
int print_source(const Options& options);

int exit_status(const std::set<Status>& statuses);  // by what became of the steps

}  // namespace flashsteps
