// flashsteps: every step, each in a worker process. Under the name of a step, as the links in build/steps/
// call it: that step alone, with the same options and no worker processes, so that cuda-gdb, ncu and
// compute-sanitizer see the kernel.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "common/interface.h"
#include "harness/base/text.h"
#include "harness/program/commands.h"
#include "harness/run/jobs.h"

namespace flashsteps {
namespace {

int carry_out(const Options& options) {
  if (options.command == "list") return list_steps(options);
  if (options.command == "info") return show_info(options);
  if (options.command == "source") return print_source(options);
  if (options.command == "trace") return trace_step(options);
  if (options.command == "emulate") return emulate_program(options);
  if (options.covering) return check_sample(options);
  return run_steps(options);  // run, bench, tune, count, check
}

int complain(const std::string& line, int status) {
  std::cerr << "flashsteps: " << line << "\n";
  return status;
}

int flashsteps_main(int argc, const char* const* argv) {
  // Were one of the standard descriptors closed, the next file or pipe to be opened would take its number.
  for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd <= STDERR_FILENO;) fd = open("/dev/null", O_RDWR);
  const bool single_step = argc > 0 && keep_only_step(std::filesystem::path(argv[0]).filename().string());
  try {
    const std::optional<Options> options = parse_options(argc, argv, /*isolated=*/!single_step);
    const int status = options ? carry_out(*options) : kAllPassed;
    // A full disk or a closed pipe at the other end is no success.
    if (!std::cout.flush()) throw std::runtime_error("the output could not be written");
    return status;
  } catch (const UsageError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const std::exception& error) {
    return complain(error.what(), kSomethingFailed);
  }
}

// Without workers a step that calls exit() ends the program, with a status of the step's choice.
bool has_returned = false;
void complain_of_exit() {
  if (has_returned) return;
  std::cout.flush();
  _exit(complain("a step ended the program, as exit() does; only a worker process survives that",
                 kCrashedOrHung));
}

}  // namespace
}  // namespace flashsteps

int main(int argc, char** argv) {
  using namespace flashsteps;
  if (argc == 2 && std::string_view(argv[1]) == kWorkerFlag) return worker_main();
  std::atexit(complain_of_exit);
  const int status = flashsteps_main(argc, argv);
  has_returned = true;
  return status;
}
