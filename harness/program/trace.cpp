// flashsteps trace: who waits for whom in one CTA of a step, on the emulator, as docs/pipeline.md shows it.
#include <iostream>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/program/commands.h"
#include "harness/program/prepare.h"
#include "harness/program/table.h"

namespace flashsteps {

int trace_step(const Options& options) {
  if (options.backend == "cuda") throw UsageError("trace: only the emulator can be traced, not a GPU");
  if (options.steps.size() > 1) throw UsageError("trace: shows one step; name it");
  if (options.problems.size() > 1)
    throw UsageError("trace: shows one problem, but there are " + std::to_string(options.problems.size()));
  if (options.json_path.empty()) throw UsageError("trace: needs --json FILE, which receives it");

  Runner runner("emulator", options.in_process, options.timeout_seconds);
  const StepChoice& step = options.steps.front();
  const Problem problem = prepare_problems(options, runner).front();
  const Probed probed = runner.probe({problem}, {step});
  refuse_named_steps(options, {problem}, probed);

  const auto& [x, y, z] = probed.resources[0][0].grid;
  const uint64_t num_ctas = uint64_t(x) * y * z;
  const uint64_t cta = options.cta < 0 ? num_ctas - 1 : uint64_t(options.cta);
  if (cta >= num_ctas)
    throw UsageError("--cta is " + std::to_string(cta) + ", but " + step.name + " has " +
                     std::to_string(num_ctas) + " CTAs for " + problem.label());

  json trace;
  const JobOutcome outcome =
      runner.job({{"job", "trace"}, {"step", step.name}, {"problem", to_json(problem)}, {"cta", cta}},
                 [&](const json& event) { trace = event.at("trace"); });
  if (!outcome.done()) {
    std::cout << format_result({.step = step.name, .status = outcome.status, .message = outcome.message},
                               problem.label());
    return exit_status({outcome.status});
  }
  trace["otherData"]["problem"] = to_json(problem);
  replace_file(options.json_path, trace.dump(0) + "\n");
  std::cout
      << step.name << ", " << problem.label() << ", CTA " << cta << " of " << num_ctas
      << "\ntrace: " << options.json_path
      << "\nopen it in https://ui.perfetto.dev or chrome://tracing; its times are nominal, not measured\n";
  return kAllPassed;
}

}  // namespace flashsteps
