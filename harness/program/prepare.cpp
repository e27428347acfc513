#include "harness/program/prepare.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "harness/base/text.h"
#include "harness/problem/shapes.h"
#include "harness/problem/tensors.h"

namespace flashsteps {
namespace {

// What the kernel would give without swapping, within the limits of a container.
double available_host_memory() {
  const auto read_number = [](const char* path, const std::string& key) {
    std::ifstream in(path);
    std::string word;
    double number = 0;
    while (in >> word) {
      if (key.empty()) return std::strtod(word.c_str(), nullptr);  // "max" reads as 0: no limit
      if (word == key && in >> number) return number;
    }
    return 0.0;
  };
  const double available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
  const double limit = read_number("/sys/fs/cgroup/memory.max", "");
  if (limit <= 0) return available;
  return std::min(available, limit - read_number("/sys/fs/cgroup/memory.current", ""));
}

// Throws UsageError when the device or the host has no room for one of the problems.
void require_memory(const std::vector<Problem>& problems, const Device& device, const Options& options) {
  // Checking holds the inputs and several copies of the outputs on the host; on the emulator the device's
  // tensors are there as well, and its race detector remembers 16 bytes for every 2. Measured: up to 12 times
  // the tensors.
  const double copies = device.is_gpu() ? 6 : 13;
  const double host_bytes = available_host_memory();
  for (const Problem& problem : problems) {
    const double on_host = copies * total_bytes(problem, plan_tensors(problem));
    if (const std::string why = lacks_memory(problem, device, options.memory_gib); !why.empty())
      throw UsageError("--shape: " + problem.label() + " " + why);
    if (on_host > host_bytes)
      throw UsageError("--shape: checking " + problem.label() + " needs " + gibibytes(on_host) +
                       " of host memory, of which " + gibibytes(host_bytes) + " are free");
  }
}

}  // namespace

std::string lacks_memory(const Problem& problem, const Device& device, double memory_gib) {
  const double bytes = total_bytes(problem, plan_on_device(problem));
  const std::string needs = "needs " + gibibytes(bytes) + " on the device, ";
  if (const double allowed = memory_gib * (1 << 30); !(bytes <= allowed))
    return needs + "of which --memory allows " + gibibytes(allowed);
  if (device.is_gpu() && bytes > double(device.free_bytes))
    return needs + "which has " + gibibytes(double(device.free_bytes)) + " free";
  return "";
}

std::vector<Problem> prepare_problems(const Options& options, const Runner& runner) {
  std::vector<Problem> problems = options.problems;
  if (problems.empty()) {
    problems = default_problems(runner.device().backend);
    const auto goes_backward = [](const StepChoice& step) { return step.info->backward; };
    for (Problem& problem : problems) problem.backward = std::ranges::all_of(options.steps, goes_backward);
  }
  require_memory(problems, runner.device(), options);
  return problems;
}

void refuse_named_steps(const Options& options, const std::vector<Problem>& problems, const Probed& probed) {
  if (!options.steps_named) return;
  for (size_t s = 0; s < options.steps.size(); ++s) {
    for (size_t p = 0; p < problems.size(); ++p) {
      const std::string& reason = probed.refusals[p][s];
      // Of the configurations that tune compares, some may be unable to run it.
      const auto is_compared = [&](const StepChoice& other) {
        return other.step == options.steps[s].step && probed.refusals[p][&other - &options.steps[0]].empty();
      };
      // Of the types that --cache names, a step may be able to read only one.
      const auto has_other_cache = [&](const Problem& other) {
        Problem same = other;
        same.fp8_cache = problems[p].fp8_cache;
        return same == problems[p] && probed.refusals[&other - &problems[0]][s].empty();
      };
      if (!reason.empty() && !std::ranges::any_of(problems, has_other_cache) &&
          !(options.command == "tune" && std::ranges::any_of(options.steps, is_compared)))
        throw UsageError(options.steps[s].name + " cannot run " + problems[p].label() + ": " + reason);
    }
  }
}

std::vector<EmulatorMode> modes(const Options& options, const Device& device) {
  if (device.is_gpu()) return {{}, {}};
  if (options.command != "check") {
    return {{.async = "early", .count = true}, {.async = "random", .hostile = true, .race_detector = true}};
  }
  std::vector<EmulatorMode> modes;
  for (const std::string& async : options.modes) {
    const bool random = async == "random";
    for (int seed = 1; seed <= (random ? options.seeds : 1); ++seed)
      modes.push_back({.async = async,
                       .hostile = random,
                       .last_cta_first = async == "late",  // each mode has an order of its own
                       .race_detector = options.race_detector,
                       .seed = uint64_t(seed)});
  }
  if (modes.size() == 1) modes.push_back(modes.front());  // what is run once differs from nothing
  return modes;
}

}  // namespace flashsteps
