// The rule by which a step rounds q, k and v to e4m3 where a call asks for that: AttentionCall::quantize.
#pragma once

#include <algorithm>

#include "common/call.h"
#include "harness/base/element.h"

namespace flashsteps {

// Of the numbers that share a scale.
struct Quantizer {
  float factor = 1, descale = 1;

  // `most` is their largest magnitude, and `limit` is what it becomes.
  static Quantizer of(float most, float limit) {
    most = std::max(most, AttentionCall::kLeastQuantized);
    return {limit / most, most / limit};
  }
  // What a number stands for when it has been rounded.
  float operator()(float x) const { return e4m3_to_float(float_to_e4m3(x * factor)) * descale; }
};

}  // namespace flashsteps
