#include "harness/run/timing.h"

#include <algorithm>
#include <iterator>
#include <optional>
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

double tflops_at(const Problem& problem, double ms) { return problem.flops() / (ms * 1e9); }

json times_record(const Samples& s) {
  return {{"median_ms", percentile(s.ms, 0.5)},
          {"p10_ms", percentile(s.ms, 0.1)},
          {"p90_ms", percentile(s.ms, 0.9)},
          {"sm_clock_mhz", s.clocks.empty() ? json(nullptr) : json(int(percentile(s.clocks, 0.5)))}};
}

json ceiling_record(const Samples& s) {
  json record = times_record(s);
  for (const char* key : {"what", "work", "unit"}) record[key] = s.method.at(key);
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

json timing_record(const Samples& s, const Problem& problem, const json& ceilings, const std::string& limit) {
  json record = times_record(s);
  record.update({{"samples", s.ms.size()},
                 {"launches_per_sample", s.method.at("launches_per_sample")},
                 {"graph", s.method.at("graph")},
                 // It follows from the time, as all rates do; this one is there for people who read the file.
                 {"tflops", tflops_at(problem, record.at("median_ms"))}});
  if (s.method.contains("l2")) record["l2"] = s.method["l2"];
  if (ceilings.contains(limit)) record["limit"] = limit;
  return record;
}

bool is_decode(const Problem& problem) { return purpose_of(shape_of_call(problem)) == Purpose::kDecode; }

double per_second(const json& ceiling) {
  return ceiling.at("work").get<double>() / (ceiling.at("median_ms").get<double>() * 1e-3);
}

Rates rates_of(const json& timing, const Problem& problem, double peak_tflops, const json& ceilings) {
  // A fast call has a short time: the 10th percentile of rates is the 90th of times.
  Rates rates{.tflops = tflops_at(problem, timing.at("median_ms")),
              .tflops_p10 = tflops_at(problem, timing.at("p90_ms")),
              .tflops_p90 = tflops_at(problem, timing.at("p10_ms"))};
  const double kv_bytes_per_second = problem.kv_bytes() / (timing.at("median_ms").get<double>() * 1e-3);
  if (is_decode(problem)) rates.kv_bytes_per_second = kv_bytes_per_second;
  if (peak_tflops > 0) rates.percent_of_peak = 100 * rates.tflops / peak_tflops;
  const auto percent_of = [&](const std::string& name) -> std::optional<double> {
    if (!ceilings.contains(name)) return std::nullopt;
    const json& ceiling = ceilings[name];
    const double own = ceiling.at("unit") == "FLOP" ? rates.tflops * 1e12 : kv_bytes_per_second;
    return 100 * own / per_second(ceiling);
  };
  // The matmul's inputs are 16-bit.
  if (problem.dtype != DType::kFp32) rates.percent_of_matmul = percent_of("matmul");
  rates.percent_of_limit = percent_of(timing.value("limit", ""));
  return rates;
}

}  // namespace flashsteps
