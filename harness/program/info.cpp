// flashsteps info: the device, and what was built.
#include <iostream>

#include "harness/program/commands.h"
#include "harness/program/results.h"

namespace flashsteps {

int show_info(const Options& options) {
  const Runner runner(options.backend, options.in_process, options.timeout_seconds);
  const BuildInfo& build = build_info();
  std::cout << "device    " << runner.device().description.dump(1) << "\nbuild     " << to_json(build).dump(1)
            << "\ncommit    " << (build.commit.empty() ? "unknown" : build.commit)
            << (build.dirty.value_or(false) ? " (with uncommitted changes)" : "") << "\n";
  return kAllPassed;
}

}  // namespace flashsteps
