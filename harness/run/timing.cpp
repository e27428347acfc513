#include "harness/run/timing.h"

#include <iterator>
#include <set>

#include "harness/run/rounds.h"

namespace flashsteps {

using nlohmann::json;

std::map<std::string, Samples> time_in_turns(Runner& runner, const Problem& problem,
                                             std::vector<std::string> steps, int rounds,
                                             const OnFailure& failed) {
  std::map<std::string, Samples> samples;
  std::set<std::string> ceilings(std::begin(kCeilings), std::end(kCeilings));
  const auto samples_of = [&](const auto& names) {
    json taken = json::object();
    for (const std::string& name : names) taken[name] = samples[name].ms.size();
    return taken;
  };
  while (!steps.empty()) {
    std::string current;
    const auto on_event = [&](const json& event) {
      const std::string what = event.at("event");
      current = event.at("step");
      if (what == "begin") runner.progress().show("timing " + problem.label() + ": " + current);
      if (what == "method") samples[current].method = event;
      if (what == "sample") {
        samples[current].ms.push_back(event.at("ms"));
        if (event.at("sm_clock_mhz").get<int>() > 0)
          samples[current].clocks.push_back(event.at("sm_clock_mhz"));
      }
    };
    const JobOutcome outcome = runner.job({{"job", "bench"},
                                           {"problem", to_request(problem)},
                                           {"steps", samples_of(steps)},
                                           {"rounds", rounds},
                                           {"ceilings", samples_of(ceilings)}},
                                          on_event);
    if (outcome.done()) break;
    // The step at hand is out; what the others have measured so far stays.
    samples.erase(current);
    if (ceilings.erase(current) > 0) continue;
    if (std::erase(steps, current) == 0)
      throw std::runtime_error("timing " + problem.label() + ": " + outcome.message);
    failed(current, outcome);
  }
  runner.progress().clear();
  return samples;
}

json timing_record(const Samples& s, const Problem& problem, double peak_tflops, double matmul_tflops) {
  const double flops = problem.flops();
  const double median = percentile(s.ms, 0.5), fast = percentile(s.ms, 0.1), slow = percentile(s.ms, 0.9);
  const double tflops = flops / (median * 1e9);
  const bool comparable =
      matmul_tflops > 0 && problem.dtype != DType::kFp32;  // the matmul's inputs are 16-bit
  return {{"median_ms", median},
          {"p10_ms", fast},
          {"p90_ms", slow},
          {"samples", s.ms.size()},
          {"launches_per_sample", s.method.at("launches_per_sample")},
          {"graph", s.method.at("graph")},
          {"tflops", tflops},
          {"tflops_p10", flops / (slow * 1e9)},
          {"tflops_p90", flops / (fast * 1e9)},
          {"percent_of_peak", peak_tflops > 0 ? json(100 * tflops / peak_tflops) : json(nullptr)},
          {"percent_of_matmul", comparable ? json(100 * tflops / matmul_tflops) : json(nullptr)},
          {"sm_clock_mhz", s.clocks.empty() ? json(nullptr) : json(int(percentile(s.clocks, 0.5)))}};
}

json ceiling_record(const Samples& s) {
  const double median = percentile(s.ms, 0.5);
  return {{"what", s.method.at("what")},
          {"median_ms", median},
          {"p10_ms", percentile(s.ms, 0.1)},
          {"p90_ms", percentile(s.ms, 0.9)},
          {"tflops", s.method.at("flops").get<double>() / (median * 1e9)}};
}

}  // namespace flashsteps
