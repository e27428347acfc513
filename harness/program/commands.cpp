#include "harness/program/commands.h"

#include <iostream>
#include <stdexcept>

namespace flashsteps {

int exit_status(const std::set<std::string>& statuses) {
  if (statuses.count("crash") + statuses.count("timeout") > 0) return kCrashedOrHung;
  if (statuses.count("fail") + statuses.count("error") > 0 || statuses.count("pass") == 0)
    return kSomethingFailed;
  return kAllPassed;
}

void flush_output() {
  if (!std::cout.flush()) throw std::runtime_error("the output could not be written");
}

}  // namespace flashsteps
