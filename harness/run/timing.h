// Times steps in turns, and goes on without those that fail on the way.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/base/json.h"
#include "harness/run/runner.h"

namespace flashsteps {

// The order in which a round takes the contenders 0, 1, ...: Williams' design. Of as many rounds as
// contenders (of twice as many, if their number is odd) each follows each other equally often. In a fixed
// order each would always come after the same neighbour, and have its clock: after the matmul, which heats
// the GPU most, a lower one.
std::vector<size_t> order_of_round(size_t num_entries, int round);

struct Samples {
  std::vector<double> ms, clocks;
  json method;  // Timer::method()
};

// By step: those that were sampled to the end, and the ceilings that the device has (kCeilings and, with a
// cold L2, kReadKv). Calls failed() at once for each of the others.
using OnFailure = std::function<void(const std::string& step, const JobOutcome& outcome)>;
std::map<std::string, Samples> time_in_turns(Runner& runner, const Problem& problem,
                                             std::vector<std::string> steps, int rounds, bool cold_l2,
                                             const OnFailure& failed);
// The same for the ceilings alone.
std::map<std::string, Samples> time_ceilings(Runner& runner, int rounds);

// The ceiling that bounds a step's rate: of memory, where there are few queries, or of the instructions that
// compute its products. Empty where a step for few queries has many.
std::string limit_of(const StepInfo& info, const Problem& problem);

Ceilings ceilings_of(const std::map<std::string, Samples>& samples);
Timing timing_of(const Samples& samples, const Problem& problem, const Ceilings& ceilings,
                 const std::string& limit);

// Are there so few queries that memory decides?
bool is_decode(const Problem& problem);

// What follows from the times in a results file, which leaves it to its readers.
struct Rates {
  double tflops, tflops_p10, tflops_p90;           // of the median time, of the slow end, of the fast one
  std::optional<double> kv_bytes_per_second = {};  // with few queries only
  std::optional<double> percent_of_peak = {}, percent_of_matmul = {}, percent_of_limit = {};
};
// A peak of 0 is none.
Rates rates_of(const Timing& timing, const Problem& problem, double peak_tflops, const Ceilings& ceilings);

}  // namespace flashsteps
