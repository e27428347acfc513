// flashsteps problems: what the command line's words for problems mean, and by what an output is judged. For
// scripts that measure something else on the same problems.
#include <iostream>

#include "harness/base/atomic_file.h"
#include "harness/judge/validate.h"
#include "harness/problem/shapes.h"
#include "harness/program/commands.h"

namespace flashsteps {

int show_problems(const Options& options) {
  std::vector<Problem> problems = options.problems;
  if (problems.empty()) problems = default_problems(BackendKind::kCuda);

  json answer = {{"problems", json::array()}};
  for (const Problem& problem : problems) {
    json told = to_json(problem);
    // What follows from it, which a results file leaves to its readers.
    told.update({{"label", problem.label()}, {"flops", problem.flops()}, {"kv_bytes", problem.kv_bytes()}});
    answer["problems"].push_back(told);
  }
  answer["gates"] = gates_by_type();

  const std::string text = answer.dump(1) + "\n";
  if (options.json_path.empty())
    std::cout << text;
  else
    replace_file(options.json_path, text);
  return kAllPassed;
}

}  // namespace flashsteps
