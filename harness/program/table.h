// Results as text for people.
#pragma once

#include <string>
#include <vector>

#include "harness/run/step_result.h"

namespace flashsteps {

// Columns as wide as their content; the first one is left-aligned, the others right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// The table of one problem's steps: their times where there are some, or their counters; "" if there is
// neither. Few steps have a column each, and all that is known of them; many have a line each, and of that
// what fits into kColumns. A peak of 0 is none.
std::string format_run(const Run& run, double peak_tflops);

// The measured ceilings of a run, a line each.
std::string format_ceilings(const Ceilings& ceilings);

// What is said of a step when it is done with a problem: PASS, or what is wrong. `label`, the problem's, is
// empty where a heading names it; the step's name gets `name_width` characters.
std::string format_result(const StepResult& result, const std::string& label, size_t name_width = 0);

std::string verdict(Status status);  // "PASS", "HANG", ..., in its colour

}  // namespace flashsteps
