// Times steps in turns, and goes on without those that fail on the way.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/run/runner.h"

namespace flashsteps {

struct Samples {
  std::vector<double> ms, clocks;
  nlohmann::json method;
};

// By step: those that were sampled to the end, and the ceilings (see kCeilings) that the device has. Calls
// failed() at once for each of the others.
using OnFailure = std::function<void(const std::string& step, const JobOutcome& outcome)>;
std::map<std::string, Samples> time_in_turns(Runner& runner, const Problem& problem,
                                             std::vector<std::string> steps, int rounds,
                                             const OnFailure& failed);

// What the results file says of them. A peak or a ceiling of 0 is none.
nlohmann::json timing_record(const Samples& samples, const Problem& problem, double peak_tflops,
                             double matmul_tflops);
nlohmann::json ceiling_record(const Samples& samples);

}  // namespace flashsteps
