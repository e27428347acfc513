// Is what somebody's own call has left right?
#pragma once

#include "harness/judge/judge.h"

namespace flashsteps {

// The problem that a call on the host is. Throws std::invalid_argument, whose text begins with the argument,
// where nothing can be judged: NaN or Inf among the inputs that count, or values so large that sums overflow
// in FP32.
Problem problem_of(const AttentionCall& call);

// By the reference rows of that problem, problem_of(call). The call has run: o, and lse if it has one, hold
// its result.
Validation judge_call(const AttentionCall& call, const Problem& problem);

}  // namespace flashsteps
