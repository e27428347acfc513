// The rule by which the library chooses a step where the caller names none.
#pragma once

#include <string_view>
#include <vector>

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
  double l2_bytes;             // of its cache; 0: not known
};

// What a kernel does in a call: of the SM, or the half of one, that has the most to do.
struct Work {
  double tiles_and_keys;  // tiles of keys, of all its tiles of rows
  double tiles;           // tiles of rows
  double sharing;         // 0: no tile is shared among CTAs
  double reading = 0;     // microseconds in which memory at its peak delivers K and V; 0: they are in L2
};
struct Costs {           // in microseconds
  double launch;         // and what else every call costs
  double tile_and_keys;  // a tile of rows with a tile of keys
  double tile;           // a tile of rows: its start and its end
  double sharing;        // if CTAs share tiles
  double reading;        // not in microseconds: how much longer than memory at its peak
};
struct Estimate {
  DefaultStep step;
  Costs costs;
  Work work;
  double time() const;
};
// Of all kernels that may be the fastest for a call. scripts/measure/fit_default.py fits their costs to
// records.
std::vector<Estimate> estimates(const AttentionCall& call, const Card& card);

// The step that we take for the fastest for a call on a Hopper GPU. It may refuse the call, or need another
// GPU, or not be part of this build: then the last step of the ladder that can run the call is taken.
DefaultStep default_step(const AttentionCall& call, const Card& card);

}  // namespace flashsteps
