// What other instructions cost beside mma.sync; docs/additive_law.md says what for.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace flashsteps {

// How many of an instruction stand beside eight products in each of the loops that are timed.
constexpr int kBesideEightProducts[] = {2, 4, 8};

struct InstructionCost {
  std::string instruction;  // in SASS
  double alone;             // clocks of one, without products; 0: not measured
  double product[3];        // clocks of a product beside which there are so many, as above
};

struct InstructionCosts {
  double product;  // clocks of an mma.sync.m16n8k16 with nothing beside it
  std::vector<InstructionCost> others;
};

// Clocks of one of an SM's schedulers, for which two warps compute; the other schedulers have nothing to do.
InstructionCosts measure_instruction_costs(cudaStream_t stream);

}  // namespace flashsteps
