#pragma once

#include <string>

namespace flashsteps {

// Where a source file is. Objects may have another name for this tree than it has: see CMakeLists.txt.
std::string source_path(const std::string& in_objects);

}  // namespace flashsteps
