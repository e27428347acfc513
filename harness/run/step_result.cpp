#include "harness/run/step_result.h"

#include "harness/problem/problem_json.h"

namespace flashsteps {
namespace {

json to_record(const Times& times) {
  return {{"median_ms", times.median_ms},
          {"p10_ms", times.p10_ms},
          {"p90_ms", times.p90_ms},
          {"sm_clock_mhz", times.sm_clock_mhz ? json(*times.sm_clock_mhz) : json(nullptr)}};
}

}  // namespace

void to_json(json& record, const Timing& timing) {
  record = to_record(timing);
  record.update({{"samples", timing.samples},
                 {"launches_per_sample", timing.launches_per_sample},
                 {"graph", timing.graph},
                 {"tflops", timing.tflops}});
  if (timing.cold_l2) record["l2"] = "cold";
  if (!timing.limit.empty()) record["limit"] = timing.limit;
}

void to_json(json& record, const Ceiling& ceiling) {
  record = to_record(ceiling);
  record.update({{"what", ceiling.what}, {"unit", ceiling.unit}, {"work", ceiling.work}});
}

void to_json(json& record, const StepResult& result) {
  record = result.details;
  record.update({{"step", result.step}, {"status", result.status}, {"message", result.message}});
  if (!result.part.empty()) record["part"] = result.part;
  if (!result.configuration.empty())
    record.update({{"configuration", result.configuration}, {"tuned", result.tuned}});
  if (result.timing) record["timing"] = *result.timing;
}

void from_json(const json& record, StepResult& result) {
  result = {.step = record.at("step"),
            .status = record.at("status"),
            .message = record.at("message"),
            .part = record.value("part", ""),
            .configuration = record.value("configuration", ""),
            .tuned = record.value("tuned", false),
            .timing = {},
            .details = record};
}

void to_json(json& record, const Run& run) {
  record = {{"problem", to_json(run.problem)}, {"steps", run.steps}};
  if (!run.ceilings.empty()) record["ceilings"] = run.ceilings;
}

// The emulator has no registers.
void to_json(json& record, const LaunchRecord& launch) {
  record = {{"grid", launch.grid}, {"block", launch.block}, {"smem_bytes", launch.smem_bytes}};
  if (launch.registers > 0)
    record.update({{"registers", launch.registers},
                   {"spill_bytes", launch.spill_bytes},
                   {"ctas_per_sm", launch.ctas_per_sm}});
}

void from_json(const json& record, LaunchRecord& launch) {
  if (record.is_null()) return;
  record.at("grid").get_to(launch.grid);
  record.at("block").get_to(launch.block);
  record.at("smem_bytes").get_to(launch.smem_bytes);
}

}  // namespace flashsteps
