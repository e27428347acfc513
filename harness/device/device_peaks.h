// What a card can do at most: the ceiling that "% of peak" is measured against.
#pragma once

#include <string>

#include "common/interface.h"

namespace flashsteps {

// In TFLOPS at max_sm_clock_mhz: for fp16 and bf16, of dense tensor cores that accumulate in FP32; for fp32,
// of FMA outside them. compute_capability is 10 * major + minor. 0 when the table has no documented value: no
// guess from a relative's.
double peak_tflops(const std::string& device_name, int compute_capability, int sm_count, int max_sm_clock_mhz,
                   DType dtype);

}  // namespace flashsteps
