// Every broken kernel is rejected, on normal and on sharp inputs, for the reason that is wrong with it; the
// unbroken one passes everywhere. On the emulator; gpu/test_mutants_gpu.cpp does the same on a device.
#include "harness/tests/mutant_cases.h"

using namespace flashsteps;

TEST_CASE("the emulator's mutants are rejected") {
  const auto backend = make_emulator_backend();
  check_mutants(*backend);
}

TEST_CASE("the covering sample rejects the emulator's mutants that show in few problems") {
  const auto backend = make_emulator_backend();
  check_mutants_on_the_sample(*backend);
}
