// What other instructions cost beside mma.sync; docs/additive_law.md says what for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <vector>

namespace flashsteps {

constexpr int kProductsOfRound = 8;  // mma.sync.m16n8k16

// Of one instruction, in the loops with `beside` of it in a round.
struct InstructionCost {
  std::string instruction;  // in SASS
  int banks;                // of the register file, from which its operands come
  std::array<int, 3> beside;
  std::array<double, 3> spread, together;  // clocks of a round: behind each product, or behind the last one
};

struct InstructionCosts {
  int warps;                // that compute for the scheduler
  double spread, together;  // clocks of a round with nothing beside its products, in the same two loops
  std::vector<InstructionCost> others;
};

// Clocks that one of an SM's schedulers takes for a round of one warp; the other schedulers have nothing to
// do. Entry by entry with 1, 2 and 4 warps.
std::vector<InstructionCosts> measure_instruction_costs(cudaStream_t stream);

}  // namespace flashsteps
