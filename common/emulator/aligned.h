// What the .aligned instructions (ldmatrix, mma.sync, WMMA) demand of their callers: that all 32 lanes of the
// warp execute the same one.
#pragma once

#include <cstring>
#include <string>

#include "common/emulator/core.h"

namespace emulator {

// To be called first by the instruction's execute(). `lanes` are those that came. The running thread need not
// be one of them: it may be one that exits and so completes what the others wait for.
inline void check_aligned(unsigned lanes) {
  const auto fiber_of = [](int lane) -> const Fiber& { return cta->fiber(cta->running_warp, lane); };
  const Fiber& first = fiber_of(__builtin_ctz(lanes));
  const auto describe_instruction = [](const Fiber& fiber) {
    return std::string(fiber.op) + " at " + describe(fiber.at);
  };
  if (lanes != 0xffffffff) {
    fail(Bug::kDivergence, first, [&] {
      return describe_instruction(first) + " needs all 32 lanes of the warp, but " + describe_lanes(~lanes) +
             " will not come: they have exited or do not exist";
    });
  }
  for (int lane = 1; lane < kWarpSize; ++lane) {
    const Fiber& other = fiber_of(lane);
    const bool same_file = other.at.file == first.at.file || std::strcmp(other.at.file, first.at.file) == 0;
    if (same_file && other.at.line == first.at.line) continue;
    fail(Bug::kDivergence, other, [&] {
      return "warp divergence: this lane is in " + describe_instruction(other) + ", but lane 0 is in " +
             describe_instruction(first) + ". All 32 lanes must execute the same one";
    });
  }
}

}  // namespace emulator
