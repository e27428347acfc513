// What is said of the bugs in the kernels of a program that `flashsteps emulate` runs.
#pragma once

#include "common/emulator/core.h"

namespace emulator {

// A program's output stands in front of what is said about what it did then.
void flush_output();

// Of a kernel that was launched there: on stderr, and as a line of JSON in the file that
// FLASHSTEPS_EMULATE_FINDINGS names. Each pair of places once, whatever launches come to it.
void print_finding(Location launch, const Report& report);

namespace program {

// Who gets what is found, in the place of print_finding().
void receive_findings(void (*receiver)(Location launch, const Report& report));
// In which order the next launches run, in the place of what the environment says.
void choose_order(AsyncMode mode, uint64_t seed);

}  // namespace program

}  // namespace emulator
