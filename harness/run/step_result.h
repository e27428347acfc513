// What became of a step on a problem: as it comes from a worker, and goes into tables and results files.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/base/json.h"
#include "harness/problem/problem.h"

namespace flashsteps {

enum class Status { kPass, kFail, kError, kSkip, kCrash, kTimeout };
NLOHMANN_JSON_SERIALIZE_ENUM(Status, {{Status::kPass, "pass"},
                                      {Status::kFail, "fail"},
                                      {Status::kError, "error"},
                                      {Status::kSkip, "skip"},
                                      {Status::kCrash, "crash"},
                                      {Status::kTimeout, "timeout"}})

struct Times {
  double median_ms, p10_ms, p90_ms;
  std::optional<int> sm_clock_mhz;
};

struct Timing : Times {
  size_t samples;
  int launches_per_sample;
  bool graph, cold_l2;
  double tflops;      // follows from the time, as all rates do: it is there for people who read the file
  std::string limit;  // the ceiling that bounds its rate; empty: none was measured
};

// What a device can do at most: see kCeilings.
struct Ceiling : Times {
  std::string what, unit;
  double work;
  double per_second() const { return work / (median_ms * 1e-3); }
};
using Ceilings = std::map<std::string, Ceiling>;

struct StepResult {
  std::string step;  // "v20_by_shape@128x64", or "v20_by_shape"
  Status status = Status::kError;
  std::string message = {};        // what is wrong
  std::string part = {};           // of the ladder; empty: it was not begun
  std::string configuration = {};  // empty: the step has one only
  bool tuned = false;
  std::optional<Timing> timing = {};
  // What else the file says of it: validation, resources, kernels, counters, seconds.
  json details = json::object();

  bool passed() const { return status == Status::kPass; }
};

// All steps on a problem.
struct Run {
  Problem problem;
  std::vector<StepResult> steps;
  Ceilings ceilings;
};

// As in docs/results-schema.md, and as workers are told of a problem.
json to_json(const Problem& problem);
Problem problem_from_json(const json& record);
void to_json(json& record, const Timing& timing);
void to_json(json& record, const Ceiling& ceiling);
void to_json(json& record, const StepResult& result);
void from_json(const json& record, StepResult& result);  // of a worker's, which has not been timed
void to_json(json& record, const Run& run);

void to_json(json& record, const LaunchRecord& launch);
void from_json(const json& record, LaunchRecord& launch);  // what all backends know of it; null changes nothing

}  // namespace flashsteps
