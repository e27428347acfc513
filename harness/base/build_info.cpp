// build_info.inc is written anew at every build by harness/base/build_info.cmake.
#include "harness/base/build_info.h"

#include "build_info.inc"

namespace flashsteps {

const BuildInfo& build_info() {
  static const BuildInfo info = {.compiler = FLASHSTEPS_COMPILER,
                                 .flags = FLASHSTEPS_FLAGS,
                                 .type = FLASHSTEPS_BUILD_TYPE,
                                 .nvcc = FLASHSTEPS_NVCC_VERSION,
                                 .architectures = FLASHSTEPS_ARCHITECTURES,
                                 .commit = FLASHSTEPS_COMMIT,
                                 .dirty = FLASHSTEPS_DIRTY};
  return info;
}

}  // namespace flashsteps
