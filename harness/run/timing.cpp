#include "harness/run/timing.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "harness/device/device_tensors.h"
#include "harness/problem/problem_json.h"
#include "harness/run/rounds.h"

namespace flashsteps {
namespace {

// `problem` is null without steps; `title` is shown meanwhile.
std::map<std::string, Samples> take_samples(Runner& runner, const std::string& title, const json& problem,
                                            std::vector<std::string> steps, int rounds, bool cold_l2,
                                            const OnFailure& failed) {
  std::map<std::string, Samples> samples;
  std::set<std::string> ceilings(std::begin(kCeilings), std::end(kCeilings));
  if (cold_l2) ceilings.insert(kReadKv);
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
                                           {"ceilings", samples_of(ceilings)},
                                           {"cold_l2", cold_l2}},
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

bool is_decode(const Problem& problem) { return purpose_of(shape_of_call(problem)) == Purpose::kDecode; }

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
                                             std::vector<std::string> steps, int rounds, bool cold_l2,
                                             const OnFailure& failed) {
  if (steps.empty()) return {};
  return take_samples(runner, "timing " + problem.label(), to_json(problem), std::move(steps), rounds,
                      cold_l2, failed);
}

std::map<std::string, Samples> time_ceilings(Runner& runner, int rounds) {
  return take_samples(runner, "measuring", json(nullptr), {}, rounds, /*cold_l2=*/false, {});
}

std::string limit_of(const StepInfo& info, const Problem& problem) {
  if (is_decode(problem)) return kReadKv;
  if (info.part == Part::kDecode) return "";
  if (info.part == Part::kHopper) return "wgmma";
  if (info.dtypes.has(DType::kFp32)) return "fma";  // tensor cores would round the inputs
  return "mma_sync";                                // WMMA is compiled to it, too
}

json ceilings_record(const std::map<std::string, Samples>& samples) {
  json record = json::object();
  const auto add = [&](const char* ceiling) {
    const auto found = samples.find(ceiling);
    if (found != samples.end() && !found->second.ms.empty()) record[ceiling] = ceiling_record(found->second);
  };
  std::ranges::for_each(kCeilings, add);
  add(kReadKv);
  return record;
}

json timing_record(const Samples& s, const Problem& problem, double peak_tflops, const json& ceilings,
                   const std::string& limit) {
  json record = times_record(s);
  const auto rate = [&](const char* time) { return problem.flops() / (record[time].get<double>() * 1e9); };
  const double tflops = rate("median_ms");
  const double kv_bytes_per_second = problem.kv_bytes() / (record["median_ms"].get<double>() * 1e-3);
  const auto percent_of = [&](const std::string& ceiling) {
    if (!ceilings.contains(ceiling)) return json(nullptr);
    const json& found = ceilings[ceiling];
    return json(100 * (found.contains("tflops") ? tflops / found["tflops"].get<double>()
                                                : kv_bytes_per_second / found["per_second"].get<double>()));
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
  if (is_decode(problem)) record["kv_bytes_per_second"] = kv_bytes_per_second;
  if (s.method.contains("l2")) record["l2"] = s.method["l2"];
  if (const json percent = percent_of(limit); !percent.is_null()) {
    record["limit"] = limit;
    record["percent_of_limit"] = percent;
  }
  return record;
}

}  // namespace flashsteps
