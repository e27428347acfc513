#include "harness/run/timing.h"

#include <iterator>
#include <set>

#include "harness/run/rounds.h"

namespace flashsteps {
namespace {

// `problem` is null without steps; `title` is shown meanwhile.
std::map<std::string, Samples> take_samples(Runner& runner, const std::string& title, const json& problem,
                                            std::vector<std::string> steps, int rounds,
                                            const OnFailure& failed) {
  std::map<std::string, Samples> samples;
  std::set<std::string> ceilings(std::begin(kCeilings), std::end(kCeilings));
  const auto samples_of = [&](const auto& names) {
    json taken = json::object();
    for (const std::string& name : names) taken[name] = samples[name].ms.size();
    return taken;
  };
  for (;;) {
    std::string current;
    const auto on_event = [&](const json& event) {
      const std::string what = event.at("event");
      current = event.at("step");
      if (what == "begin") runner.progress().show(title + ": " + current);
      if (what == "method") samples[current].method = event;
      if (what == "sample") {
        samples[current].ms.push_back(event.at("ms"));
        if (event.at("sm_clock_mhz").get<int>() > 0)
          samples[current].clocks.push_back(event.at("sm_clock_mhz"));
      }
    };
    const JobOutcome outcome = runner.job({{"job", "bench"},
                                           {"problem", problem},
                                           {"steps", samples_of(steps)},
                                           {"rounds", rounds},
                                           {"ceilings", samples_of(ceilings)}},
                                          on_event);
    if (outcome.done()) break;
    // The step at hand is out; what the others have measured so far stays.
    samples.erase(current);
    if (ceilings.erase(current) > 0) continue;
    if (std::erase(steps, current) == 0) throw std::runtime_error(title + ": " + outcome.message);
    failed(current, outcome);
    if (steps.empty()) break;
  }
  runner.progress().clear();
  return samples;
}

json times_record(const Samples& s) {
  return {{"median_ms", percentile(s.ms, 0.5)},
          {"p10_ms", percentile(s.ms, 0.1)},
          {"p90_ms", percentile(s.ms, 0.9)},
          {"sm_clock_mhz", s.clocks.empty() ? json(nullptr) : json(int(percentile(s.clocks, 0.5)))}};
}

json ceiling_record(const Samples& s) {
  json record = times_record(s);
  const double median = record["median_ms"], work = s.method.at("work");
  record["what"] = s.method.at("what");
  if (const std::string unit = s.method.at("unit"); unit == "FLOP") {
    record["tflops"] = work / (median * 1e9);
  } else {
    record["unit"] = unit;
    record["per_second"] = work / (median * 1e-3);
  }
  return record;
}

}  // namespace

std::map<std::string, Samples> time_in_turns(Runner& runner, const Problem& problem,
                                             std::vector<std::string> steps, int rounds,
                                             const OnFailure& failed) {
  if (steps.empty()) return {};
  return take_samples(runner, "timing " + problem.label(), to_request(problem), std::move(steps), rounds,
                      failed);
}

std::map<std::string, Samples> time_ceilings(Runner& runner, int rounds) {
  return take_samples(runner, "measuring", json(nullptr), {}, rounds, {});
}

std::string limit_of(const StepInfo& info) {
  if (info.part == Part::kDecode) return "";  // memory, whose rate is not in FLOP
  if (info.part == Part::kHopper) return "wgmma";
  if (info.dtypes.has(DType::kFp32)) return "fma";  // tensor cores would round the inputs
  return "mma_sync";                                // WMMA is compiled to it, too
}

json ceilings_record(const std::map<std::string, Samples>& samples) {
  json record = json::object();
  for (const char* const ceiling : kCeilings) {
    const auto found = samples.find(ceiling);
    if (found != samples.end() && !found->second.ms.empty()) record[ceiling] = ceiling_record(found->second);
  }
  return record;
}

json timing_record(const Samples& s, const Problem& problem, double peak_tflops, const json& ceilings,
                   const std::string& limit) {
  json record = times_record(s);
  const auto rate = [&](const char* time) { return problem.flops() / (record[time].get<double>() * 1e9); };
  const double tflops = rate("median_ms");
  const auto percent_of = [&](const std::string& ceiling) {
    return ceilings.contains(ceiling) ? json(100 * tflops / ceilings[ceiling].at("tflops").get<double>())
                                      : json(nullptr);
  };
  record.update(
      {{"samples", s.ms.size()},
       {"launches_per_sample", s.method.at("launches_per_sample")},
       {"graph", s.method.at("graph")},
       {"tflops", tflops},
       {"tflops_p10", rate("p90_ms")},
       {"tflops_p90", rate("p10_ms")},
       {"percent_of_peak", peak_tflops > 0 ? json(100 * tflops / peak_tflops) : json(nullptr)},
       // The matmul's inputs are 16-bit.
       {"percent_of_matmul", problem.dtype == DType::kFp32 ? json(nullptr) : percent_of("matmul")}});
  if (const json percent = percent_of(limit); !percent.is_null()) {
    record["limit"] = limit;
    record["percent_of_limit"] = percent;
  }
  return record;
}

}  // namespace flashsteps
