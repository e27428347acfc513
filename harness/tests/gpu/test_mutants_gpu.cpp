// The broken kernels again, on a device.
#include "harness/tests/mutant_cases.h"

using namespace flashsteps;

TEST_CASE("the device's mutants are rejected") {
  std::string why;
  const auto backend = make_cuda_backend(why);
  INFO(why);
  REQUIRE(backend != nullptr);
  check_mutants(*backend);
  check_mutants_on_the_sample(*backend);
  check_workspaces(*backend);
}
