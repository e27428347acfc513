// The program's commands, each in a file of its own. They return an ExitStatus, and throw UsageError for what
// only the device can tell to be wrong use.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "harness/program/options.h"
#include "harness/run/step_result.h"

namespace flashsteps {

enum ExitStatus { kAllPassed = 0, kSomethingFailed = 1, kWrongUse = 2, kCrashedOrHung = 3 };

int run_steps(const Options& options);     // run, bench, tune, count, and check with problems
int check_sample(const Options& options);  // check without
int trace_step(const Options& options);
int list_steps(const Options& options);
int show_info(const Options& options);
int print_source(const Options& options);
int emulate_program(const Options& options);

int exit_status(const std::set<Status>& statuses);  // by what became of the steps

// What `source` prints. The build has scripts/steps/one_file.py make its definition.
struct StepSource {
  const char* step;
  const char* file;  // without the lines above it, which say how to compile it
  const char* main;  // below it, if asked for
};
std::vector<StepSource> step_sources();  // empty in a program that was built without Python

// What `tune` keeps of a run: see harness/device/tuning.h, which reads it.

// Makes the folder of this file, and warns when the file that is there will be replaced as a whole, since it
// is of no use. Returns where it will be written: links are followed. Throws UsageError when it cannot be.
std::string prepare_tuning_file(const std::string& path);

// Adds the fastest configuration of each step of a run to the file at `path`, in place of what it says of
// such calls. Returns a line for people per step. `provenance` is that of the results file.
std::string keep_fastest(const std::string& path, const Run& run, const json& provenance);

}  // namespace flashsteps
