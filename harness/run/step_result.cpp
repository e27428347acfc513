#include "harness/run/step_result.h"

#include <algorithm>

namespace flashsteps {
namespace {

template <typename Enum>
Enum find_value(const Names<Enum>& names, const std::string& text) {
  const auto found = std::ranges::find(names, text, &std::pair<std::string, Enum>::first);
  if (found == names.end()) throw std::runtime_error("unknown name '" + text + "'");
  return found->second;
}

json to_record(const Times& times) {
  return {{"median_ms", times.median_ms},
          {"p10_ms", times.p10_ms},
          {"p90_ms", times.p90_ms},
          {"sm_clock_mhz", times.sm_clock_mhz ? json(*times.sm_clock_mhz) : json(nullptr)}};
}

}  // namespace

// By name, as results files have them.
void to_json(json& record, DType value) { record = name(value); }
void to_json(json& record, Layout value) { record = name(value); }
void to_json(json& record, Inputs value) { record = name(value); }
void to_json(json& record, KvLengths value) { record = name(value); }
void from_json(const json& record, DType& value) { value = find_value(kDTypeNames, record); }
void from_json(const json& record, Layout& value) { value = find_value(kLayoutNames, record); }
void from_json(const json& record, Inputs& value) { value = find_value(kInputsNames, record); }
void from_json(const json& record, KvLengths& value) { value = find_value(kKvLengthsNames, record); }
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Problem, batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_kv, head_dim,
                                   dtype, causal, kv_lengths, layout, inputs, seed)

json to_json(const Problem& p) {
  json record = p;
  if (p.kv_lengths != KvLengths::kFull) record["lengths"] = p.draw_kv_lengths();
  if (p.page_size != 0) record["page_size"] = p.page_size;
  if (!p.lse) record["lse"] = "none";
  if (p.earlier) record["earlier"] = "merged";
  if (p.fast) record["fast"] = "yes";
  if (p.fp8_cache) record["cache"] = name(p.kv_dtype());
  if (p.quantize) record["quantize"] = "yes";
  if (p.backward) record["backward"] = "yes";
  if (p.num_sms != 0) record["num_sms"] = p.num_sms;
  if (p.given_scale != 0) record["softmax_scale"] = p.given_scale;
  return record;
}

Problem problem_from_json(const json& record) {
  Problem p = record;
  p.page_size = record.value("page_size", 0);
  p.lse = !record.contains("lse");
  p.earlier = record.contains("earlier");
  p.fast = record.contains("fast");
  p.fp8_cache = record.contains("cache");
  p.quantize = record.contains("quantize");
  p.backward = record.contains("backward");
  p.num_sms = record.value("num_sms", 0);
  p.given_scale = record.value("softmax_scale", 0.0);
  return p;
}

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
