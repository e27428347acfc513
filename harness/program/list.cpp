// flashsteps list: the steps of this program, and what they need.
#include <algorithm>
#include <iostream>

#include "harness/base/text.h"
#include "harness/program/commands.h"
#include "harness/program/table.h"
#include "harness/run/runner.h"

namespace flashsteps {
namespace {

// Below a line for each part of the ladder.
void list_titles(const std::vector<StepChoice>& steps) {
  size_t width = 0;
  for (const StepChoice& step : steps) width = std::max(width, step.name.size() + 4);
  std::string part;
  for (const StepChoice& step : steps) {
    if (part != kPartNames[int(step.info->part)])
      std::cout << (part.empty() ? "" : "\n") << (part = kPartNames[int(step.info->part)]) << "\n";
    std::cout << "  " << step.name << std::string(width - 2 - step.name.size(), ' ')
              << wrapped(step.info->title, width, width) << "\n";
  }
}

// Who the step is and what it takes, in a few lines.
std::string describe(const StepChoice& step) {
  const StepInfo& info = *step.info;
  const auto line = [](const std::string& text) { return "  " + wrapped(text, 4, 2) + "\n"; };
  std::string kind = "part: " + std::string(kPartNames[int(info.part)]) + "; for " +
                     kPurposeNames[int(info.purpose)] + "; types:";
  for (const auto& [type, dtype] : kDTypeNames) {
    if (info.dtypes.has(dtype)) kind += " " + type;
  }
  if (info.fp8_cache) kind += ", with K and V in e4m3";
  if (info.quantizes) kind += ", rounded to e4m3";
  if (info.backward) kind += "; computes gradients";
  const std::string needs =
      "rows must be aligned to " +
      (info.alignment_bytes ? std::to_string(info.alignment_bytes) + " bytes" : "their element") +
      "; GPU: sm_" + info.needs_sm + (Architecture(info.needs_sm).exact ? " and nothing else" : " or newer");
  std::string text = step.name + "\n" + line(info.title) + line("removes " + std::string(info.removes)) +
                     line(kind) + line(needs);
  if (info.num_configurations() > 0)
    text += line("configurations: " +
                 join({info.configurations, info.configurations + info.num_configurations()}, "; "));
  if (info.spills) text += line("spills registers: " + std::string(info.spills));
  return text;
}

}  // namespace

int list_steps(const Options& options) {
  if (options.is_short) {
    list_titles(options.steps);
    return kAllPassed;
  }
  const Runner runner(options.backend, options.in_process, options.timeout_seconds);
  const std::vector<StepChoice>& steps = options.steps;
  // Every step is asked about one problem of each kind, in which it may approximate and computes O alone.
  // Then come two that have K and V alone in FP8, two that are rounded to it, and six of a backward pass.
  std::vector<Problem> problems;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32, DType::kE4m3}) {
    for (const int head_dim : {64, 128})
      problems.push_back({.head_dim = head_dim, .dtype = dtype, .lse = false, .fast = dtype == DType::kE4m3});
  }
  for (const int head_dim : {64, 128})
    problems.push_back({.head_dim = head_dim, .dtype = DType::kFp16, .fp8_cache = true});
  for (const int head_dim : {64, 128})
    problems.push_back({.head_dim = head_dim, .dtype = DType::kFp16, .quantize = true});
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    for (const int head_dim : {64, 128})
      problems.push_back({.head_dim = head_dim, .dtype = dtype, .backward = true});
  }
  const Probed probed = runner.probe(problems, steps);

  std::vector<std::vector<std::string>> rows{
      {"step", "16-bit D=64", "D=128", "fp32 D=64", "D=128", "FP8 D=64", "D=128"}};
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto bytes = [&](size_t problem) {
      return probed.refusals[problem][s].empty() ? grouped(uint64_t(probed.resources[problem][s].smem_bytes))
                                                 : "-";
    };
    const auto any = [&](std::initializer_list<size_t> kinds) {
      for (const size_t kind : kinds)
        if (bytes(kind) != "-") return bytes(kind);
      return std::string("-");
    };
    rows.push_back({steps[s].name, any({0, 2, 12, 14}), any({1, 3, 13, 15}), any({4, 16}), any({5, 17}),
                    any({6, 8, 10}), any({7, 9, 11})});

    std::cout << describe(steps[s]);
    // Of the problem that comes closest to what the step computes: the first with a type that it knows.
    const auto knows = [&](DType dtype) { return steps[s].info->dtypes.has(dtype); };
    const size_t closest = steps[s].info->fp8_cache   ? 8
                           : steps[s].info->quantizes ? 10
                           : steps[s].info->backward  ? (knows(DType::kFp16)   ? 12
                                                         : knows(DType::kBf16) ? 14
                                                                               : 16)
                           : knows(DType::kFp16)      ? 0
                           : knows(DType::kBf16)      ? 2
                           : knows(DType::kFp32)      ? 4
                                                      : 6;
    if (const std::string& reason = probed.refusals[closest][s]; !reason.empty())
      std::cout << "  cannot run on this device: " << reason << "\n";
  }
  std::cout << "\ndevice: " << runner.device().line() << "\nbytes of shared memory per CTA:\n"
            << format_table(rows);
  return kAllPassed;
}

}  // namespace flashsteps
