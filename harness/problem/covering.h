// A small sample of the problem contract in which every two choices meet.
#pragma once

#include <vector>

#include "harness/problem/problem.h"

namespace flashsteps {

// At least 60 problems such that every value of every axis appears, and every feasible pair of values of two
// axes (rows, how many keys for them, mask, kv_lengths, type, head_dim, batch, heads, layout, inputs,
// softmax_scale, whether the LSE is wanted, page size) appears in some problem. Of those that would do,
// mostly cheap ones: a long sequence meets many heads or batches only where it must. The same list every
// time. Axes shrink to what the step takes: fp32, rows without alignment, K and V in pages.
std::vector<Problem> covering_sample(bool with_fp32, bool with_unaligned_rows, bool with_pages = false);

}  // namespace flashsteps
