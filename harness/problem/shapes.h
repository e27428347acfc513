// The sizes of problems: how --shape is written, the grids, and the problems of a command that was given
// none. Which sizes are allowed is size_error()'s to say, in common/interface.cpp, for the program and for
// every other caller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/problem/problem.h"

namespace flashsteps {

// How --shape is written.
constexpr const char* kShapeForms = "B,H,S,D or B,Hq,Hkv,S,D or B,Hq,Hkv,Sq,Skv,D";

// Throws UsageError with one line.
Problem parse_shape(const std::string& text);

// The FlashAttention paper's: batch * seqlen = 16384, heads * head_dim = 2048.
std::vector<Problem> paper_grid();

// One query a sequence: 1, 8, 32 and 128 sequences of 1k to 128k keys, up to so many keys in all; 32 query heads
// to 8 of K and V, 64 to 8, and 16 to 16.
std::vector<Problem> decode_grid(int64_t most_keys);

// Of all that models call: 1 to 2048 queries of 32 heads, 8 of K and V, against 1k to 64k keys; short
// sequences; few heads. At D = 64 and 128.
std::vector<Problem> shapes_grid();

std::vector<Problem> default_problems(BackendKind backend);

}  // namespace flashsteps
