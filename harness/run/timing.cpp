#include "harness/run/timing.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "harness/device/device_tensors.h"

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

// Linear between the two neighbours; the median is 0.5. There must be samples.
double percentile(std::vector<double> samples, double fraction) {
  std::ranges::sort(samples);
  const double at = fraction * double(samples.size() - 1);
  const size_t below = size_t(at);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (at - double(below)) * (samples[above] - samples[below]);
}

Times times_of(const Samples& s) {
  return {percentile(s.ms, 0.5), percentile(s.ms, 0.1), percentile(s.ms, 0.9),
          s.clocks.empty() ? std::nullopt : std::optional(int(percentile(s.clocks, 0.5)))};
}

}  // namespace

std::vector<size_t> order_of_round(size_t num_entries, int round) {
  const bool odd = num_entries % 2 == 1;
  const size_t shift = size_t(odd ? round / 2 : round);
  std::vector<size_t> order;
  for (size_t at = 0; at < num_entries; ++at) {  // 0 1 n-1 2 n-2 ..., shifted
    const size_t place = at % 2 == 1 ? (at + 1) / 2 : num_entries - at / 2;
    order.push_back((place + shift) % num_entries);
  }
  if (odd && round % 2 == 1) std::ranges::reverse(order);
  return order;
}

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
  if (info.part == Part::kDecode || info.part == Part::kFp8) return "";
  if (info.part == Part::kHopper || (info.part == Part::kBackward && Architecture(info.needs_sm).exact))
    return "wgmma";
  if (info.dtypes.has(DType::kFp32)) return "fma";  // tensor cores would round the inputs
  return "mma_sync";                                // WMMA is compiled to it, too
}

Ceilings ceilings_of(const std::map<std::string, Samples>& samples) {
  Ceilings ceilings;
  const auto add = [&](const char* name) {
    const auto found = samples.find(name);
    if (found == samples.end() || found->second.ms.empty()) return;
    const json& method = found->second.method;
    ceilings[name] = {times_of(found->second), method.at("what"), method.at("unit"), method.at("work")};
  };
  std::ranges::for_each(kCeilings, add);
  add(kReadKv);
  return ceilings;
}

Timing timing_of(const Samples& s, const Problem& problem, const Ceilings& ceilings,
                 const std::string& limit) {
  const Times times = times_of(s);
  return {times,
          s.ms.size(),
          s.method.at("launches_per_sample"),
          s.method.at("graph"),
          s.method.contains("l2"),
          tflops_at(problem, times.median_ms),
          ceilings.contains(limit) ? limit : ""};
}

bool is_decode(const Problem& problem) {
  return !problem.backward && purpose_of(shape_of_call(problem)) == Purpose::kDecode;
}

Rates rates_of(const Timing& timing, const Problem& problem, double peak_tflops, const Ceilings& ceilings) {
  // A fast call has a short time: the 10th percentile of rates is the 90th of times.
  Rates rates{.tflops = timing.tflops,
              .tflops_p10 = tflops_at(problem, timing.p90_ms),
              .tflops_p90 = tflops_at(problem, timing.p10_ms)};
  const double kv_bytes_per_second = problem.kv_bytes() / (timing.median_ms * 1e-3);
  if (is_decode(problem)) rates.kv_bytes_per_second = kv_bytes_per_second;
  if (peak_tflops > 0) rates.percent_of_peak = 100 * rates.tflops / peak_tflops;
  const auto percent_of = [&](const std::string& name) -> std::optional<double> {
    const auto ceiling = ceilings.find(name);
    if (ceiling == ceilings.end()) return std::nullopt;
    const double own = ceiling->second.unit == "FLOP" ? rates.tflops * 1e12 : kv_bytes_per_second;
    return 100 * own / ceiling->second.per_second();
  };
  // The matmul's operands are 16-bit.
  if (element_bytes(problem.computed_dtype()) == 2) rates.percent_of_matmul = percent_of("matmul");
  rates.percent_of_limit = percent_of(timing.limit);
  return rates;
}

}  // namespace flashsteps
