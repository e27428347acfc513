// flashsteps source: a step as one file.
#include <algorithm>
#include <iostream>

#include "harness/base/text.h"
#include "harness/program/commands.h"

namespace flashsteps {

int print_source(const Options& options) {
  const StepChoice& step = options.steps.front();
  const std::vector<StepSource> sources = step_sources();
  const auto source = std::ranges::find(sources, step.step, &StepSource::step);
  if (source == sources.end())
    throw UsageError("source: this program does not have the source of " + step.step +
                     (sources.empty() ? ": it was built without Python 3.10 or newer" : ""));
  const std::string sm = step.info->needs_sm;
  const std::string architecture =
      Architecture(sm).exact ? "-gencode arch=compute_" + sm + ",code=sm_" + sm : "-arch=sm_" + sm;
  const std::string nvcc = std::string("nvcc ") + FLASHSTEPS_NVCC_OPTIONS + " -O3 " + architecture;
  std::cout << "// " << step.step << ": " << step.info->title << "\n//\n"
            << "// One file: the step's kernel, its launch_attention, and what both use of FlashSteps. To "
               "compile it:\n"
            << "//   " << nvcc << (options.with_main ? " -o " + step.step : " -c") << " " << step.step
            << ".cu\n";
  if (options.with_main)
    std::cout
        << "// The program checks one small problem, and prints PASS or FAIL with the largest errors.\n";
  std::cout << "\n// What the build of FlashSteps defines.\n"
            << "#define FLASHSTEPS_STEP " << step.step << "\n"
            << "#define FLASHSTEPS_NEEDS_SM \"" << sm << "\"\n"
            << "#define FLASHSTEPS_ARCHITECTURES \"sm_" << sm << "\"\n";
  if (options.with_main)
    std::cout << "// Of the kernel's instances, those that the main function below runs.\n"
              << "#define FLASHSTEPS_COMPILED(Element, HEAD_DIM, CAUSAL) (HEAD_DIM == 64 && CAUSAL)\n";
  std::cout << "\n" << source->file;
  if (options.with_main) std::cout << "\n" << source->main;
  return kAllPassed;
}

}  // namespace flashsteps
