// A user's own q, k and v (--tensors), and a step's outputs (--save), in safetensors files.
//
// A file is read more than once. Its header says which problem it is, before anything runs. Once there is
// memory for it, its contents are judged. Then every worker that needs it reads it again to fill its buffers,
// and refuses a file that has changed since.
#pragma once

#include <array>
#include <span>
#include <string>

#include "harness/problem/problem.h"
#include "harness/problem/tensors.h"

namespace flashsteps {

// What the header says; the contents are not read. Throws UsageError.
Problem problem_of_file(const std::string& given, Layout layout);

// Reads the contents: fills in the lengths and the hash. Throws UsageError for what no step can be judged by:
// NaN, Inf, lengths out of range. The problems are all of one file, and differ in the mask only; `given` is
// its name for messages.
void examine_tensors(std::span<Problem> problems, const std::string& given);

// Reads q, k and v, in this order, to where each has room. Throws std::runtime_error when they are not those
// that were examined; by then they may have been read.
void read_tensors(const Problem& problem, const std::array<unsigned char*, 3>& to);

// `o` like q and `lse`, to the file that is open elsewhere under `path`. Throws std::runtime_error.
void write_outputs(const Outputs& outputs, const Problem& problem, const std::string& step,
                   BackendKind backend, const std::string& path);

}  // namespace flashsteps
