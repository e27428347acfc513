// The tolerances: what an output may differ from the reference by, for each type. Of two more gates that
// judge.cpp computes from each problem, the worst element's and the bias's, the constants are here as
// well. docs/measuring.md has what right kernels reach.
#pragma once

#include <stdexcept>

#include "common/call.h"

namespace flashsteps {

// A correct kernel with FP32 accumulation stays well below: measured floors for N(0, 1) inputs are a third of
// these or less, and doubling an error source shows.
struct Gates {
  double nrmse;      // ||o - ref|| / ||ref|| over the rows that see a key
  double row_nrmse;  // the same for the worst row
  double lse_abs;    // |lse - ref| <= lse_abs + kLseRelative * |ref|
  double unit;       // the unit roundoff of the type
};

constexpr Gates gates(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return {.nrmse = 1e-5, .row_nrmse = 1e-4, .lse_abs = 1e-5, .unit = 0x1p-24};
    case DType::kFp16:
      return {.nrmse = 1e-3, .row_nrmse = 2e-3, .lse_abs = 1e-4, .unit = 0x1p-11};
    case DType::kBf16:
      return {.nrmse = 5e-3, .row_nrmse = 1e-2, .lse_abs = 1e-4, .unit = 0x1p-8};
  }
  throw std::logic_error("unknown dtype");
}

constexpr double kLseRelative = 1e-6;

// Of the type's unit roundoff. Truncating P or O shortens O by 0.7 of it.
constexpr double kBias = 0.15;

}  // namespace flashsteps
