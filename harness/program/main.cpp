// flashsteps: every step, each in a worker process. Under the name of a step, as the links in build/steps/
// call it: that step alone, with the same options and no worker processes, so that cuda-gdb, ncu and
// compute-sanitizer see the kernel.
#include <filesystem>
#include <string_view>

#include "common/interface.h"
#include "harness/program/session.h"
#include "harness/run/worker.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == flashsteps::kWorkerFlag) return flashsteps::worker_main();
  const bool single_step =
      argc > 0 && flashsteps::keep_only_step(std::filesystem::path(argv[0]).filename().string());
  return flashsteps::flashsteps_main(argc, argv, /*isolated=*/!single_step);
}
