#include "harness/problem/problem_json.h"

#include <algorithm>

namespace flashsteps {
namespace {

template <typename Enum>
Enum find_value(const Names<Enum>& names, const std::string& text) {
  const auto found = std::ranges::find(names, text, &std::pair<std::string, Enum>::first);
  if (found == names.end()) throw std::runtime_error("unknown name '" + text + "'");
  return found->second;
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
  if (p.num_sms != 0) record["num_sms"] = p.num_sms;
  if (p.given_scale != 0) record["softmax_scale"] = p.given_scale;
  return record;
}

Problem problem_from_json(const json& record) {
  Problem p = record;
  p.page_size = record.value("page_size", 0);
  p.lse = !record.contains("lse");
  p.earlier = record.contains("earlier");
  p.num_sms = record.value("num_sms", 0);
  p.given_scale = record.value("softmax_scale", 0.0);
  return p;
}

}  // namespace flashsteps
