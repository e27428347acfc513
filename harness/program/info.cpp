// flashsteps info: the device, what was built, and on a GPU what the device can do at most.
#include <iostream>

#include "harness/base/text.h"
#include "harness/program/commands.h"
#include "harness/program/results.h"
#include "harness/program/table.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

void show_ceilings(Runner& runner, int rounds) {
  const Ceilings ceilings = ceilings_of(time_ceilings(runner, rounds));
  std::cout << "ceilings  measured now, medians of " << rounds << " rounds\n" << format_ceilings(ceilings);
  for (const std::string name : kCeilings) {
    if (!ceilings.contains(name))
      std::cout << "    " << name << ": " << (name == "wgmma" ? "not on this card" : "could not be measured")
                << "\n";
  }
}

void show_instructions(const Runner& runner, const std::string& json_path) {
  if (!runner.device().is_gpu())  // "auto", that is: see show_info()
    throw std::runtime_error("info --instructions: there is no GPU to time: " + runner.device().no_cuda);
  ResultsFile results(json_path, "info", runner.device());
  json& instructions = results.root()["instructions"];
  const JobOutcome outcome = runner.job({{"job", "instructions"}},
                                        [&](const json& event) { instructions = event.at("instructions"); });
  if (!outcome.done()) throw std::runtime_error("timing instructions: " + outcome.message);
  results.save_complete();
  std::cout << "\nClocks of one scheduler for " << instructions.at("products_of_round")
            << " mma.sync.m16n8k16 and the instructions beside them:\n"
            << format_instructions(instructions);
  if (!json_path.empty()) std::cout << "\nresults: " << json_path << "\n";
}

}  // namespace

int show_info(const Options& options) {
  if (options.instructions && options.backend == "emulator")
    throw UsageError("info --instructions: times a GPU; the emulator has no timing model");
  Runner runner(options.backend, options.in_process, options.timeout_seconds);
  const BuildInfo& build = build_info();
  std::cout << "device    " << runner.device().description.dump(1) << "\nbuild     " << to_json(build).dump(1)
            << "\ncommit    " << (build.commit.empty() ? "unknown" : build.commit)
            << (build.dirty.value_or(false) ? " (with uncommitted changes)" : "") << "\n";
  if (options.instructions)
    show_instructions(runner, options.json_path);
  else if (runner.device().is_gpu())
    show_ceilings(runner, options.rounds);
  return kAllPassed;
}

}  // namespace flashsteps
