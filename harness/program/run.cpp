// flashsteps run, bench, tune, count, and check with problems: every step is validated, and on a GPU timed.
#include <algorithm>
#include <iostream>
#include <map>

#include "harness/base/text.h"
#include "harness/device/tuning.h"
#include "harness/program/commands.h"
#include "harness/program/prepare.h"
#include "harness/program/results.h"
#include "harness/program/table.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

// Without a GPU they have nothing to do.
bool only_times(const Options& options) { return options.command == "bench" || options.command == "tune"; }

std::string wanted_backend(const Options& options) {
  if (options.command == "count" && options.backend == "cuda")
    throw UsageError(
        "count: only the emulator has these counters; for a GPU's, see scripts/measure/profile_ncu.py");
  if (only_times(options) && options.backend == "emulator")
    throw UsageError(options.command + ": times a GPU; the emulator has no timing model");
  return options.command == "count" ? "emulator" : options.backend;
}

// Times the steps that passed, and adds that to the problem's run.
void time_problem(Runner& runner, const Options& options, Run& run) {
  const Problem& problem = run.problem;
  std::vector<std::string> contenders;
  for (const StepResult& result : run.steps) {
    if (result.passed()) contenders.push_back(result.step);
  }
  const auto on_failure = [&](const std::string& step, const JobOutcome& outcome) {
    StepResult& result = *std::ranges::find(run.steps, step, &StepResult::step);
    result.status = outcome.status;
    result.message = "while being timed: " + outcome.message;
    runner.progress().clear();
    std::cout << format_result(result, problem.label()) << std::flush;
  };
  const auto samples =
      time_in_turns(runner, problem, contenders, options.rounds, options.cold_l2, on_failure);

  run.ceilings = ceilings_of(samples);
  const double peak = runner.device().peak_tflops(problem.computed_dtype());
  for (StepResult& result : run.steps) {
    if (!result.passed()) continue;
    const std::string limit = limit_of(*find_steps(result.step).front().info, problem);
    const Timing timing = timing_of(samples.at(result.step), problem, run.ceilings, limit);
    // Nothing is faster than the hardware: such a figure means that the step, the clock or the FLOP count is
    // wrong.
    if (peak > 0 && timing.tflops > peak) {
      result.status = Status::kFail;
      result.message = fixed(timing.tflops, 1) + " TFLOPS is above the card's peak of " + fixed(peak, 1) +
                       ": a bug in the step or in the measurement, not recorded";
      std::cout << format_result(result, problem.label()) << std::flush;
    } else {
      result.timing = timing;
    }
  }
}

// How many passed, and which are wrong: below the tables, where there are several results. "": all passed.
std::string what_did_not_pass(ResultsFile& results, const std::vector<Problem>& problems) {
  size_t num_results = 0;
  std::map<Status, std::vector<std::string>> steps;
  for (const Problem& problem : problems) {
    for (const StepResult& result : results.run_of(problem).steps) {
      ++num_results;
      steps[result.status].push_back(result.step);
    }
  }
  const size_t num_passed = steps[Status::kPass].size(), num_skipped = steps[Status::kSkip].size();
  if (num_results < 2 || num_passed == num_results) return "";
  std::string text = "\n" + std::to_string(num_passed) + " of " + std::to_string(num_results) + " passed" +
                     (num_skipped > 0 ? ", " + std::to_string(num_skipped) + " skipped" : "") + "\n";
  for (const auto& [status, its] : steps) {
    if (status != Status::kPass && status != Status::kSkip)
      text += verdict(status) + "  " + wrapped(join(its, " "), 6, 6) + "\n";
  }
  return text;
}

}  // namespace

int run_steps(const Options& options) {
  Runner runner(wanted_backend(options), options.in_process, options.timeout_seconds);
  const Device& device = runner.device();
  if (only_times(options) && !device.is_gpu())
    throw std::runtime_error(options.command + ": there is no GPU to time: " + device.no_cuda);
  if (options.tuned) {
    TuningFile tuning = read_tuning_file(options.tuning_path);
    if (!tuning.ignored.empty()) std::cerr << "flashsteps: " << tuning.ignored << "\n";
    runner.use_tuning(std::move(tuning.text));
  }
  const bool tunes = options.command == "tune";
  const std::string tuning_path = tunes ? prepare_tuning_file(options.tuning_path) : "";
  const std::vector<Problem> problems = prepare_problems(options, runner);
  const Probed probed = runner.probe(problems, options.steps);
  refuse_named_steps(options, problems, probed);
  const bool timed = device.is_gpu() && options.command != "check";

  std::cout << "device: " << device.line() << "\n" << std::flush;
  ResultsFile results(options.json_path, options.command, device);
  if (timed) {
    results.root()["provenance"]["method"] = {
        {"timer", "CUDA events, interleaved, in another order every round"},
        {"rounds", options.rounds},
        {"l2", options.cold_l2 ? "cold: flushed before every launch, outside of its time"
                               : "warm: no flush between launches"},
        {"flops",
         "4 * head_dim * unmasked (query, key) pairs over batch and query heads; of a backward pass 10 *"
         " head_dim * these"}};
  }
  for (const Problem& problem : problems) results.run_of(problem);
  results.save();

  // Problem by problem: its inputs, its reference and what v01 makes of it are computed once for all steps.
  size_t name_width = 0;
  for (const StepChoice& step : options.steps) name_width = std::max(name_width, step.name.size());
  for (size_t p = 0; p < problems.size(); ++p) {
    std::vector<size_t> ended;  // which steps, in their order
    std::cout << "\n" << problems[p].label() << "\n" << std::flush;
    const auto finish = [&](int s, const StepResult& result) {
      runner.progress().clear();
      // What is wrong may be copied out of here, with its problem.
      const bool is_wrong = !result.passed() && result.status != Status::kSkip;
      std::cout << (is_wrong ? format_result(result, problems[p].label())
                             : format_result(result, "", name_width))
                << std::flush;
      const auto place = ended.insert(std::ranges::lower_bound(ended, size_t(s)), size_t(s));
      std::vector<StepResult>& all = results.run_of(problems[p]).steps;
      all.insert(all.begin() + (place - ended.begin()), result);
      results.save();
    };
    std::vector<Task> tasks;
    for (size_t s = 0; s < options.steps.size(); ++s) {
      const std::string& step = options.steps[s].name;
      if (const std::string& reason = probed.refusals[p][s]; !reason.empty())
        finish(int(s), {.step = step, .status = Status::kSkip, .message = reason});
      else
        tasks.push_back({int(s), step, problems[p]});
    }
    const std::string place = "[" + std::to_string(p + 1) + "/" + std::to_string(problems.size()) + "]";
    runner.validate(tasks, modes(options, device), place + " checking " + problems[p].label(), finish);
    const std::string counted = format_run(results.run_of(problems[p]), 0);
    if (!counted.empty()) std::cout << "\n" << counted << std::flush;
  }
  std::string kept;
  for (size_t p = 0; timed && p < problems.size(); ++p) {
    Run& run = results.run_of(problems[p]);
    time_problem(runner, options, run);
    results.save();
    std::cout << "\n"
              << problems[p].label() << "\n"
              << format_run(run, device.peak_tflops(problems[p].computed_dtype())) << std::flush;
    if (tunes) kept += keep_fastest(tuning_path, run, results.root()["provenance"]);
  }
  results.save_complete();
  if (!device.is_gpu() && options.command != "check")
    std::cout
        << "\nCounts are exact. The emulator has no timing model: it cannot say which step is faster.\n";
  std::cout << what_did_not_pass(results, problems);
  if (tunes) std::cout << "\nkept in " << tuning_path << ":\n" << kept;
  return results.finish();
}

}  // namespace flashsteps
