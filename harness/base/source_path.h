#pragma once

#include <string>

namespace flashsteps {

// Where a source file is. Objects may have another name for this tree than it has: see
// common/compile_options.cmake.
std::string source_path(const std::string& in_objects);

}  // namespace flashsteps
