// Is an output right? The bookkeeping around the gates (gates.h), and a diagnosis when it is not.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/judge/reference.h"

namespace flashsteps {

struct Validation {
  bool pass = false;
  std::string message;  // empty when it passes
  // Of several outputs, each of these is of the one that comes closest to its gate.
  double nrmse = 0, gate_nrmse = 0, max_abs = 0;
  double worst_row_nrmse = 0, gate_row = 0;  // of the row whose error is the largest part of its gate
  std::optional<double> lse_max_abs;         // where there is an lse
  // The worst element's error, in units of what roundings of P and O to the type may add up to there; at most
  // twice that of a naive implementation of the same type, and 1.
  double worst_element = 0, gate_element = 0;
  // By how much of itself the output is too long or too short. Roundings cancel over rows and keys,
  // truncation does not. Not judged where it says nothing: fp32, and inputs in which many scores are equal.
  std::optional<double> bias;
  double gate_bias = 0;
  std::map<std::string, double> nrmse_of;  // by output
  // The NRMSE that rounding the inputs has caused, of which the kernel's is free: for people, not judged.
  std::optional<double> quantization_nrmse;
  int64_t nonfinite = 0, rows_checked = 0;
  bool runs_identical = true;
  bool compared_with_v01 = false;
  std::vector<std::map<std::string, uint64_t>> counters;  // of a counting run, by kernel
};

// Judges outputs by the reference rows; scans every element for NaN, Inf and poison that no one overwrote.
// `outputs` is consumed: checking the guards destroys it. `runs_sound`: the runs were identical and changed
// no input. If so, a user's own inputs whose error alone is above its gate get no hint at a bug: there may be
// none.
Validation judge(const Workload& workload, const std::vector<ReferenceRow>& reference, Outputs outputs,
                 bool runs_sound = true);

// Is what somebody's own call has left right? It has run: o, and lse if it has one, hold its result.
// `problem` is problem_of(call).
Validation judge_call(const AttentionCall& call, const Problem& problem);

// All of the outputs against `other`, which `whose` names ("v01_scalar's"), every row: NRMSE and worst row as
// in `gates`, lse within twice its gate (each may be off by one). Gradients may differ by as much more as
// the rows of `reference` may be off by. Empty when close enough.
std::string compare_outputs(const Workload& workload, const std::vector<ReferenceRow>& reference,
                            const Outputs& outputs, const Outputs& other,
                            const std::string& whose = "v01_scalar's");

// The first row of an output, or of lse, that is not the same in both, bit by bit.
std::optional<RowId> first_difference(const Problem& problem, const Outputs& one, const Outputs& other);

// Of a row of an output, for people.
std::string place(const Problem& problem, const RowId& row);

}  // namespace flashsteps
