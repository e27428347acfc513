// One step's own executable, e.g. build/steps/v02_smem_tiles: the same options, no worker processes, so that
// cuda-gdb, ncu and compute-sanitizer see the kernel.
#include "harness/src/session.h"

int main(int argc, char** argv) { return flashsteps::flashsteps_main(argc, argv, /*isolated=*/false); }
