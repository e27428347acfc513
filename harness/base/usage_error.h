#pragma once

#include <stdexcept>

namespace flashsteps {

// Wrong use of the program: one line for the user, exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace flashsteps
