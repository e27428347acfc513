// flashsteps: every step, each in a worker process.
#include <string_view>

#include "harness/src/session.h"
#include "harness/src/worker.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == flashsteps::kWorkerFlag) return flashsteps::worker_main();
  return flashsteps::flashsteps_main(argc, argv, /*isolated=*/true);
}
