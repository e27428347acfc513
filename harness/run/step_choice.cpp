#include "harness/run/step_choice.h"

#include <algorithm>
#include <cctype>
#include <tuple>

#include "harness/base/text.h"

namespace flashsteps {
namespace {

// "; did you mean v05_padded_smem?" for v5, v05_paded or padded. "": none is like it.
std::string likely_steps(std::string typed, const std::vector<std::string>& known) {
  std::ranges::transform(typed, typed.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto is_digit = [&](size_t at) {
    return at < typed.size() && std::isdigit(static_cast<unsigned char>(typed[at]));
  };
  if (is_digit(0)) typed = "v" + typed;
  if (typed[0] == 'v' && is_digit(1) && !is_digit(2)) typed.insert(1, "0");
  for (const std::string& name : known) {
    if (typed.size() > 3 && name.find(typed) != std::string::npos) return did_you_mean(name, known);
  }
  return did_you_mean(typed, known);
}

// An ablation's name begins with its step's, which is then the one that is meant.
StepChoice find_step_by_beginning(const std::string& wanted) {
  std::vector<std::string> known, found;
  for (const StepChoice& candidate : all_steps()) {
    if (candidate.name == wanted) return candidate;
    known.push_back(candidate.name);
    if (candidate.name.starts_with(wanted) &&
        (found.empty() || !candidate.name.starts_with(found.front() + "_")))
      found.push_back(candidate.name);
  }
  if (found.empty())
    throw UsageError("unknown step '" + wanted + "'" + likely_steps(wanted, known) +
                     " (flashsteps list --short names all)");
  if (found.size() > 1) throw UsageError("'" + wanted + "' may be " + join(found, " or "));
  return find_step_by_beginning(found.front());
}

}  // namespace

std::vector<StepChoice> find_steps(const std::string& text) {
  const size_t at = text.find('@');
  const StepChoice step = find_step_by_beginning(text.substr(0, at));
  if (at == std::string::npos) return {step};
  const std::string wanted = text.substr(at + 1);
  std::vector<std::string> known{"all"};
  std::vector<StepChoice> found;
  for (int c = 0; c < step.info->num_configurations(); ++c) {
    known.push_back(step.info->configurations[c]);
    if (wanted == "all" || wanted == known.back())
      found.push_back({step.name + "@" + known.back(), step.name, step.info, c});
  }
  if (found.empty())
    throw UsageError("'" + text + "': " + step.name + " has " +
                     (known.size() == 1 ? "no configurations" : "the configurations " + join(known, ", ")));
  return found;
}

std::vector<StepChoice> all_steps() {
  std::vector<StepChoice> steps;
  for (const Step& step : registered_steps()) steps.push_back({step.name, step.name, &step.info});
  return in_order(std::move(steps));  // a step that is built for both backends is registered twice
}

std::vector<StepChoice> in_order(std::vector<StepChoice> steps) {
  const auto key = [](const StepChoice& step) {
    const std::string& name = step.step;
    const bool in_ladder =
        name.size() > 1 && name[0] == 'v' && std::isdigit(static_cast<unsigned char>(name[1]));
    return std::tuple<bool, const std::string&, int>(!in_ladder, name, step.configuration);
  };
  std::ranges::sort(steps, {}, key);
  // Not std::ranges::unique, of libstdc++'s ranges: clang 14 cannot compile what it returns.
  const auto same = [](const StepChoice& one, const StepChoice& other) { return one.name == other.name; };
  steps.erase(std::unique(steps.begin(), steps.end(), same), steps.end());
  return steps;
}

}  // namespace flashsteps
