// The rule by which the library chooses a step where the caller names none.
#pragma once

#include <string_view>

#include "common/call.h"

namespace flashsteps {

struct DefaultStep {
  std::string_view step;
  std::string_view configuration;  // of the step; empty: the step chooses
};

// What the rule knows of a GPU.
struct Card {
  int num_sms;
  double memory_bytes_per_us;  // peak; 0: not known
};

// The step that we take for the fastest for a call on a Hopper GPU. It may refuse the call, or need another
// GPU, or not be part of this build: then the last step of the ladder that can run the call is taken.
DefaultStep default_step(const AttentionCall& call, const Card& card);

}  // namespace flashsteps
