// What CMake knew when it built this.
#pragma once

#include <optional>
#include <string>

namespace flashsteps {

struct BuildInfo {
  std::string compiler, flags, type;
  std::string nvcc, architectures;  // empty without CUDA
  std::string commit;               // 40 hex digits; empty when unknown
  std::optional<bool> dirty;        // the tree had uncommitted changes
};

const BuildInfo& build_info();

// Where a source file is. Objects may have another name for this tree than it has: see
// common/compile_options.cmake.
std::string source_path(const std::string& in_objects);

}  // namespace flashsteps
