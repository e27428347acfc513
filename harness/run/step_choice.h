// Which steps the words of a command line or of a request mean.
#pragma once

#include <string>
#include <vector>

#include "common/interface.h"

namespace flashsteps {

// A step in one of its configurations, or as it chooses one itself.
struct StepChoice {
  std::string name;  // in full: "v20_tiles@128x64", or "v20_tiles"
  std::string step;  // "v20_tiles"
  const StepInfo* info;
  int configuration = AttentionCall::kChosenByStep;

  const Step* built_for(BackendKind backend) const { return find_step(step, backend); }  // nullptr: it is not
};

// The step called so, or the only one whose name begins so: "v20". "v20@128x64" is its configuration 128x64,
// "v20@all" each one that it has. Throws UsageError.
std::vector<StepChoice> find_steps(const std::string& text);

// Every step of this program.
std::vector<StepChoice> all_steps();

// Each once: the ladder's, vNN_idea, in the order of their names, and then the others.
std::vector<StepChoice> in_order(std::vector<StepChoice> steps);

}  // namespace flashsteps
