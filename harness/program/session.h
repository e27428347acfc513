// The program's own side of a run: which step runs when, what becomes of those that fail, what is printed and
// written.
#pragma once

#include "harness/program/commands.h"

namespace flashsteps {

// Carries out the command. Throws UsageError for what only the device can tell to be wrong use.
int run_session(const Options& options);

// The whole program: parse, run, and turn every exception into one line and an exit status.
int flashsteps_main(int argc, const char* const* argv, bool isolated);

}  // namespace flashsteps
