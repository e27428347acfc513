// flashsteps problems: what the command line's words for problems mean, by what an output is judged, and in
// which order rounds of timing take their contenders. For scripts that measure something else on the same
// problems.
#include <iostream>

#include "harness/judge/gates.h"
#include "harness/problem/problem_json.h"
#include "harness/problem/shapes.h"
#include "harness/program/commands.h"
#include "harness/program/results.h"
#include "harness/run/rounds.h"

namespace flashsteps {

int show_problems(const Options& options) {
  std::vector<Problem> problems = options.problems;
  if (problems.empty()) problems = default_problems(BackendKind::kCuda);

  json answer = {{"problems", json::array()}};
  for (const Problem& problem : problems) answer["problems"].push_back(to_json(problem));
  for (const auto& [text, dtype] : kDTypeNames) {
    const Gates gate = gates(dtype);
    answer["gates"][text] = {{"nrmse", gate.nrmse},
                             {"row", gate.row_nrmse},
                             {"lse", gate.lse_abs},
                             {"lse_relative", kLseRelative}};
  }
  for (int round = 0; options.contenders > 0 && round < options.rounds; ++round)
    answer["orders"].push_back(order_of_round(size_t(options.contenders), round));

  const std::string text = answer.dump(1) + "\n";
  if (options.json_path.empty())
    std::cout << text;
  else
    ResultsFile::replace(options.json_path, text);
  return kAllPassed;
}

}  // namespace flashsteps
