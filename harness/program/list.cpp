// flashsteps list: the steps of this program, and what they need.
#include <iostream>

#include "harness/program/commands.h"
#include "harness/program/table.h"
#include "harness/run/runner.h"

namespace flashsteps {
namespace {

// Who the step is and what it takes, in a few lines.
std::string describe(const StepChoice& step) {
  const StepInfo& info = *step.info;
  std::string text = step.name + "\n  " + info.title + "\n  removes " + info.removes +
                     "\n  part: " + kPartNames[int(info.part)] + "; for " + kPurposeNames[int(info.purpose)] +
                     "; types:";
  for (const auto& [type, dtype] : kDTypeNames) {
    if (info.dtypes.has(dtype)) text += " " + type;
  }
  text += "; rows must be aligned to " +
          (info.alignment_bytes ? std::to_string(info.alignment_bytes) + " bytes" : "their element") +
          "; GPU: sm_" + info.needs_sm +
          (Architecture(info.needs_sm).exact ? " and nothing else\n" : " or newer\n");
  for (int c = 0; c < info.num_configurations(); ++c)
    text += (c > 0 ? "; " : "  configurations: ") + std::string(info.configurations[c]);
  if (info.num_configurations() > 0) text += "\n";
  if (info.spills) text += "  spills registers: " + std::string(info.spills) + "\n";
  return text;
}

}  // namespace

int list_steps(const Options& options) {
  const Runner runner(options.backend, options.in_process, options.timeout_seconds);
  const std::vector<StepChoice> steps = all_steps();
  // Every step is asked about one problem of each kind.
  std::vector<Problem> problems;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    for (const int head_dim : {64, 128}) problems.push_back({.head_dim = head_dim, .dtype = dtype});
  }
  const Probed probed = runner.probe(problems, steps);

  std::vector<std::vector<std::string>> rows{
      {"step", "16-bit D=64", "16-bit D=128", "fp32 D=64", "fp32 D=128"}};
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto bytes = [&](size_t problem) {
      return probed.refusals[problem][s].empty() ? std::to_string(probed.resources[problem][s].smem_bytes)
                                                 : "-";
    };
    const auto either = [&](size_t fp16, size_t bf16) {
      return bytes(fp16) != "-" ? bytes(fp16) : bytes(bf16);
    };
    rows.push_back({steps[s].name, either(0, 2), either(1, 3), bytes(4), bytes(5)});

    std::cout << describe(steps[s]);
    // Of the problem that comes closest to what the step computes: the first with a type that it knows.
    const auto knows = [&](DType dtype) { return steps[s].info->dtypes.has(dtype); };
    const size_t closest = knows(DType::kFp16) ? 0 : knows(DType::kBf16) ? 2 : 4;
    if (const std::string& reason = probed.refusals[closest][s]; !reason.empty())
      std::cout << "  cannot run on this device: " << reason << "\n";
  }
  std::cout << "\nbytes of shared memory per CTA (device: " << runner.device().line() << ")\n"
            << format_table(rows);
  return kAllPassed;
}

}  // namespace flashsteps
