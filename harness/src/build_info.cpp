// What CMake knew when it built this. build_info.inc is written anew at every build by
// harness/build_info.cmake.
#include "build_info.inc"

#include "harness/src/results.h"

namespace flashsteps {

nlohmann::json build_info() {
  nlohmann::json info = {
      {"compiler", FLASHSTEPS_COMPILER}, {"flags", FLASHSTEPS_FLAGS}, {"type", FLASHSTEPS_BUILD_TYPE}};
  if (*FLASHSTEPS_NVCC_VERSION != '\0') {
    info["nvcc"] = FLASHSTEPS_NVCC_VERSION;
    info["architectures"] = FLASHSTEPS_ARCHITECTURES;
  }
  return info;
}

std::string build_commit() { return FLASHSTEPS_COMMIT; }
nlohmann::json build_dirty() { return FLASHSTEPS_DIRTY; }

}  // namespace flashsteps
