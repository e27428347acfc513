// flashsteps info: the device, what was built, and on a GPU what the device can do at most.
#include <algorithm>
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
      std::cout << "    " << name << ": "
                << (name.ends_with("wgmma") ? "not on this card" : "could not be measured") << "\n";
  }
}

// A line for each; text stands there without quotes.
std::string format_facts(const json& facts) {
  size_t width = 0;
  for (const auto& [name, value] : facts.items()) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : facts.items())
    text += "  " + name + std::string(width - name.size() + 2, ' ') +
            wrapped(value.is_string() ? value.get<std::string>() : value.dump(), width + 4, width + 4) + "\n";
  return text;
}

}  // namespace

int show_info(const Options& options) {
  Runner runner(options.backend, options.in_process, options.timeout_seconds);
  const BuildInfo& build = build_info();
  std::cout << "device\n"
            << format_facts(runner.device().description) << "build\n"
            << format_facts(to_json(build)) << "commit    "
            << (build.commit.empty() ? "unknown" : build.commit)
            << (build.dirty.value_or(false) ? " (with uncommitted changes)" : "") << "\n";
  if (runner.device().is_gpu()) show_ceilings(runner, options.rounds);
  return kAllPassed;
}

}  // namespace flashsteps
