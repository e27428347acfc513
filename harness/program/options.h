// The command line. Everything wrong with it is found here, before anything runs or is written.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "harness/problem/problem.h"
#include "harness/run/step_choice.h"

namespace flashsteps {

struct Options {
  std::string command;  // run | check | bench | tune | count | trace | emulate | list | info | source
  std::vector<StepChoice> steps;  // those named, or all; each once, in the order in which they run
  bool steps_named = false;
  std::string backend = "auto";   // cuda | emulator | auto
  std::vector<Problem> problems;  // from --shape and --grid; empty: the command's own choice
  bool covering = false;          // check without a shape: the covering sample
  std::vector<std::string> modes{"early", "late", "random"};  // of the emulator
  bool race_detector = true;
  int seeds = 1;                 // random orders per problem
  int64_t cta = -1;              // to trace; -1: the last one
  std::string json_path;         // empty: none
  double timeout_seconds = 120;  // of a worker's own time, without a sign of life
  double memory_gib = INFINITY;  // of the device, for a problem
  int rounds = 7;
  bool tuned = false;       // steps get their configurations by the file at tuning_path
  std::string tuning_path;  // of run and bench, and of tune, which writes it
  bool cold_l2 = false;     // flushed before every launch that is timed
  bool with_main = false;   // source: with a main function
  bool is_short = false;    // list: names and titles alone
  // emulate: the CUDA program, what g++ gets for it, and what the program gets.
  std::string program;
  std::vector<std::string> include_folders, macros, arguments;
  std::vector<std::string> reports;  // files to write the findings to
  bool in_process = false;
  bool verbose = false;
};

// Nothing when the program has answered already, as with --help. `isolated` is false under the name of a
// step, see main.cpp. Throws UsageError: one line, exit status 2.
std::optional<Options> parse_options(int argc, const char* const* argv, bool isolated);

}  // namespace flashsteps
