// Results as text for people.
#pragma once

#include <string>
#include <vector>

#include "harness/run/step_result.h"

namespace flashsteps {

// Columns as wide as their content; the first one is left-aligned, the others right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// The table of one problem's finished steps: timing where there is one, counters where there are some. A peak
// of 0 is none.
std::string format_run(const Run& run, double peak_tflops);

// The measured ceilings of a run, a line each.
std::string format_ceilings(const Ceilings& ceilings);

// What is said of a step when it is done with a problem: PASS, or what is wrong.
std::string format_result(const StepResult& result, const std::string& label);

}  // namespace flashsteps
