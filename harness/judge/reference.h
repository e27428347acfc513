// The truth: attention on the CPU, row by row, from the same rounded inputs. FP32 products, double sums.
// Beside it, what a naive implementation makes of the row: everything in FP32, P and O rounded to the element
// type.
#pragma once

#include <vector>

#include "harness/judge/gates.h"
#include "harness/problem/tensors.h"

namespace flashsteps {

inline Gates gates(const Problem& p) { return gates(p.computed_dtype(), p.may_approximate(), p.lse); }

struct ReferenceRow {
  RowId id;
  int visible_keys;
  double lse;                // natural log; -inf when the row sees no key
  std::vector<double> o;     // head_dim; zeros when the row sees no key
  std::vector<float> naive;  // the naive o
  // In double: the squares of what is below 2^-75 are nothing in FP32.
  std::vector<double> rounding;  // sqrt(sum of (p v)^2): what errors of P's elements add up to, if each is 1
  // The same of what errors of P's elements may be beyond that: see excess_error() in reference.cpp
  std::vector<double> excess;
  // e4m3: what lse may lose where tensor cores sum the scores, see gates.h. Without an lse, o has as much
  // more.
  double cut_off = 0;
  // Where Problem::knows_quantization(): ||o - o of the inputs before they were rounded||^2.
  double quantization = 0;
};

// Which rows to check. All of them when that is cheap; otherwise at most 1024: the first, the last and both
// rows at every 64-row edge of one seeded (batch, head), where tiles begin and end, plus a seeded spread over
// all heads.
std::vector<RowId> choose_rows(const Problem& problem);

// On all cores.
std::vector<ReferenceRow> reference_rows(const Workload& workload, const std::vector<RowId>& rows);

}  // namespace flashsteps
