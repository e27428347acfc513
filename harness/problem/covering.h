// A small sample of the problem contract in which every two choices meet.
#pragma once

#include <vector>

#include "harness/problem/problem.h"

namespace flashsteps {

// At least 60 problems such that every value of every axis appears, and every feasible pair of values of two
// axes (rows, how many keys for them, mask, kv_lengths, type, head_dim, batch, heads, layout, inputs,
// softmax_scale, what becomes of the LSE, page size) appears in some problem. Of those that would do,
// mostly cheap ones: a long sequence meets many heads or batches only where it must. Then come some that no
// pair brings, such as one query of each of 33 sequences, 17,000 keys, or scores that grow by 2^16. The same
// list every time. It has what the step takes: fp32, rows without alignment, K and V in pages, an earlier
// result.
std::vector<Problem> covering_sample(const StepInfo& step);

}  // namespace flashsteps
