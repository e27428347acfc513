// flashsteps check without a problem: every step on the covering sample of what it takes.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>

#include "harness/base/text.h"
#include "harness/problem/problem.h"
#include "harness/program/commands.h"
#include "harness/program/prepare.h"
#include "harness/program/results.h"
#include "harness/program/table.h"

namespace flashsteps {
namespace {

// A step that was asked for by name and can run none of the sample is wrong use.
void refuse_steps_that_run_nothing(const Options& options, const Runner& runner) {
  if (!options.steps_named) return;
  for (const StepChoice& step : options.steps) {
    const Probed probed = runner.probe(covering_sample(*step.info), {step});
    const auto refused = [](const std::vector<std::string>& reasons) { return !reasons[0].empty(); };
    if (std::ranges::all_of(probed.refusals, refused))
      throw UsageError(step.name + " cannot run here: " + probed.refusals[0][0]);
  }
}

// The emulator needs a while for each CTA. No configuration makes more of them for the small problems.
constexpr int kMostCtas = 300;

bool has_many_ctas(const LaunchRecord& kernel) {
  return uint64_t(kernel.grid[0]) * kernel.grid[1] * kernel.grid[2] > kMostCtas;
}

void check_step(const StepChoice& step, const Options& options, Runner& runner, ResultsFile& results) {
  const std::vector<Problem> sample = covering_sample(*step.info);
  // The step as it chooses, and in each of its configurations.
  std::vector<StepChoice> contenders{step};
  if (step.name == step.step && step.info->num_configurations() > 0)
    std::ranges::copy(find_steps(step.name + "@all"), std::back_inserter(contenders));
  const Probed probed = runner.probe(sample, contenders);

  size_t passed = 0, skipped = 0, done = 0;
  std::string skipped_because;  // the first reason
  const auto count = [&] {
    return std::to_string(done) + " of " + std::to_string(sample.size()) + " problems";
  };
  const auto record = [&](int p, const StepResult& result) {
    const bool is_skipped = result.status == Status::kSkip;
    passed += result.passed();
    if (is_skipped && skipped++ == 0) skipped_because = result.message;
    ++done;
    if (options.verbose || !(result.passed() || is_skipped)) {
      runner.progress().clear();
      std::cout << format_result(result, sample[p].label()) << std::flush;
    }
    runner.progress().show(step.name + ": " + count());
    results.run_of(sample[p]).steps.push_back(result);
    results.save();
  };
  std::vector<Task> tasks, large;
  std::vector<size_t> problems_of(contenders.size());
  for (size_t p = 0; p < sample.size(); ++p) {
    // The contenders take turns, where they take the problem. What the step does with many SMs is its own
    // choice.
    size_t c = sample[p].num_sms != 0 ? 0 : p % contenders.size();
    if (!probed.refusals[p][c].empty() ||
        (!runner.device().is_gpu() && has_many_ctas(probed.resources[p][c])))
      c = 0;
    std::string reason = probed.refusals[p][c];
    if (reason.empty()) reason = lacks_memory(sample[p], runner.device(), options.memory_gib);
    if (!reason.empty()) {
      record(int(p), {.step = step.name, .status = Status::kSkip, .message = reason});
      continue;
    }
    ++problems_of[c];
    // With more tiles than there are counters, the race detector would need as long as for half of the
    // sample.
    const bool is_large = !runner.device().is_gpu() && sample[p].batch > kNumCounters;
    (is_large ? large : tasks).push_back({int(p), contenders[c].name, sample[p]});
  }
  const auto started = std::chrono::steady_clock::now();
  std::vector<EmulatorMode> all_modes = modes(options, runner.device());
  runner.validate(tasks, all_modes, step.name + ": " + count(), record);
  for (EmulatorMode& mode : all_modes) mode.race_detector = false;
  if (!large.empty()) runner.validate(large, all_modes, step.name + ": " + count(), record);
  runner.progress().clear();

  const bool all_right = passed + skipped == sample.size();
  std::cout << verdict(!all_right   ? Status::kFail
                       : passed > 0 ? Status::kPass
                                    : Status::kSkip)
            << "  " << step.name << "  " << passed << " of " << sample.size() << " problems";
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::cout << ", " << fixed(seconds, 1) << " s\n";
  if (skipped > 0) std::cout << "      " << skipped << " skipped (" << skipped_because << ")\n";
  for (size_t c = 1; c < contenders.size(); ++c)
    std::cout << "      " << contenders[c].name << ": " << problems_of[c] << " of them\n";
  std::cout << std::flush;
}

}  // namespace

int check_sample(const Options& options) {
  Runner runner(options.backend, options.in_process, options.timeout_seconds);
  ResultsFile results(options.json_path, options.command, runner.device());
  refuse_steps_that_run_nothing(options, runner);
  std::cout << "device: " << runner.device().line() << "\nproblems: the covering sample of each step";
  if (!runner.device().is_gpu())
    std::cout << ", modes " << join(options.modes, " ") << ", race detector "
              << (options.race_detector ? "on" : "off");
  std::cout << "\n\n" << std::flush;
  for (const StepChoice& step : options.steps) check_step(step, options, runner, results);
  results.save_complete();
  return results.finish();
}

}  // namespace flashsteps
