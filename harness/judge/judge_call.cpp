#include "harness/judge/judge_call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "harness/base/call_tensors.h"
#include "harness/base/element.h"
#include "harness/base/text.h"

namespace flashsteps {
namespace {

// The largest value of a tensor, all of whose values must be finite. What lies beyond a length may be
// anything.
double largest_of(const Problem& p, const char* name, const CallTensor& tensor, bool of_keys) {
  const Rows rows(tensor.batch, tensor.heads, tensor.rows);
  std::vector<float> values(p.head_dim);
  double largest = 0;
  for (int64_t index = 0; index < int64_t(rows.size()); ++index) {
    const RowId row = rows[index];
    if (of_keys && p.kv_lengths == KvLengths::kGiven && row.i >= p.given_lengths[row.b]) continue;
    load_elements(p.dtype, tensor.row(index), p.head_dim, values.data());
    for (int d = 0; d < p.head_dim; ++d) {
      if (!std::isfinite(values[d]))
        throw std::invalid_argument(std::string(name) + ": is NaN or Inf in batch " + std::to_string(row.b) +
                                    ", head " + std::to_string(row.h) + ", row " + std::to_string(row.i) +
                                    ", column " + std::to_string(d) + ": nothing is right then");
      largest = std::max(largest, std::abs(double(values[d])));
    }
  }
  return largest;
}

}  // namespace

Problem problem_of(const AttentionCall& call) {
  Problem p;
  p.batch = call.batch;
  p.num_heads_q = call.num_heads_q;
  p.num_heads_kv = call.num_heads_kv;
  p.seqlen_q = call.seqlen_q;
  p.seqlen_kv = call.seqlen_kv;
  p.head_dim = call.head_dim;
  p.dtype = call.dtype;
  p.causal = call.causal;
  p.inputs = Inputs::kGiven;
  p.lse = call.lse != nullptr;
  if (call.softmax_scale != p.softmax_scale()) p.given_scale = nine_digits(call.softmax_scale);
  if (call.kv_lengths != nullptr) {
    p.kv_lengths = KvLengths::kGiven;
    p.given_lengths.assign(call.kv_lengths, call.kv_lengths + call.batch);
  }
  if (const std::string error = shape_error(p); !error.empty()) throw std::invalid_argument("q: " + error);
  const auto [q_tensor, k_tensor, v_tensor, o_tensor] = tensors_of(call);
  const double q = largest_of(p, "q", q_tensor, false), k = largest_of(p, "k", k_tensor, true),
               v = largest_of(p, "v", v_tensor, true);
  constexpr double kLimit = std::numeric_limits<float>::max();
  if (q * k * p.head_dim > kLimit)
    throw std::invalid_argument("q: holds values of up to " + format("%.3g", q) + ", and k of up to " +
                                format("%.3g", k) + ": their dot products may overflow float32");
  if (v * p.seqlen_kv > kLimit)
    throw std::invalid_argument("v: holds values of up to " + format("%.3g", v) +
                                ": sums over its rows may overflow float32");
  return p;
}

Validation judge_call(const AttentionCall& call, const Problem& problem) {
  const Workload workload(problem, call);
  return judge(workload, reference_rows(workload, choose_rows(problem)), Outputs(problem, call));
}

}  // namespace flashsteps
