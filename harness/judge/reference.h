// The truth: attention and its gradients on the CPU, row by row, from the same rounded inputs. FP32 products,
// double sums. Beside it, what a naive implementation makes of the row: everything in FP32; P, dS and the
// outputs rounded to the element type.
#pragma once

#include <vector>

#include "harness/judge/gates.h"
#include "harness/problem/tensors.h"

namespace flashsteps {

// fp32 rounds neither P nor O. Its other gates find an element that is off by 1 % anyway.
inline bool has_roundings(const Problem& p) { return p.dtype != DType::kFp32; }

inline Gates gates(const Problem& p) {
  Gates found = gates(p.computed_dtype(), p.may_approximate(), p.lse);
  if (p.backward) found.row_nrmse = std::max(found.row_nrmse, kRoundingsOfGradient * found.unit);
  return found;
}

// Of a backward pass, the row may be one of dk or dv, which are sums over queries: what is said of keys here
// is then said of queries, and what is said of o and of P, of the gradient and of dS, or of dv and P.
struct ReferenceRow {
  RowId id;
  int visible_keys;          // or how many queries see the key, of each head
  double lse;                // natural log; -inf when the row sees no key. Of dk and dv, the farthest from 0
  std::vector<double> o;     // head_dim; zeros when the row sees no key
  std::vector<float> naive;  // the naive o
  // In double: the squares of what is below 2^-75 are nothing in FP32.
  std::vector<double> rounding;  // sqrt(sum of (p v)^2): what errors of P's elements add up to, if each is 1
  // The same of what errors of P's elements may be beyond that, in units of the type's roundoff: see
  // excess_error() in reference.cpp, and Sum::lost in gradients.cpp
  std::vector<double> excess;
  // e4m3: what lse may lose where tensor cores sum the scores, see gates.h. Without an lse, o has as much
  // more.
  double cut_off = 0;
  // Where Problem::knows_quantization(): ||o - o of the inputs before they were rounded||^2.
  double quantization = 0;
};

// Which rows to check. All of them when that is cheap; otherwise at most 1024: the first, the last and both
// rows at every 64-row edge of one seeded (batch, head), where tiles begin and end, plus a seeded spread over
// all heads. Of a backward pass that many rows of dq, and 512 of dk and of dv, for the same keys.
std::vector<RowId> choose_rows(const Problem& problem);

// On all cores.
std::vector<ReferenceRow> reference_rows(const Workload& workload, const std::vector<RowId>& rows);
// The same of a backward pass.
std::vector<ReferenceRow> reference_gradients(const Workload& workload, const std::vector<RowId>& rows);

// Gives a backward pass its o and lse: those of the reference.
void set_forward_results(Workload& workload);
// Is that a matter of seconds?
bool is_cheap_on_the_cpu(const Problem& forward);

}  // namespace flashsteps
