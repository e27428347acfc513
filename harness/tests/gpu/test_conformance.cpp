// Emulator against hardware: every function of the hardware headers, the same random data, the same result.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "harness/tests/conformance.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

int compute_capability(Backend& backend) {
  const std::string text = backend.device().at("compute_capability");  // "9.0"
  const size_t point = text.find('.');
  return 10 * std::stoi(text.substr(0, point)) + std::stoi(text.substr(point + 1));
}

}  // namespace

TEST_CASE("the emulator computes what the GPU computes") {
  constexpr uint64_t kRounds = 20;
  std::string why;
  const auto gpu = make_cuda_backend(why);
  INFO(why);
  REQUIRE(gpu != nullptr);
  const auto emulator = make_emulator_backend();
  emulator->set_mode({});
  const auto on_gpu = joined({on_cuda::conformance_cases(), on_cuda::conformance_cases_sm89(),
                              on_cuda::conformance_cases_sm90(), on_cuda::conformance_cases_sm90a()});
  const auto on_cpu = joined({on_emulator::conformance_cases(), on_emulator::conformance_cases_sm89(),
                              on_emulator::conformance_cases_sm90(), on_emulator::conformance_cases_sm90a()});
  REQUIRE(on_gpu.size() == on_cpu.size());
  for (size_t i = 0; i < on_gpu.size(); ++i) {
    const ConformanceCase& c = on_gpu[i];
    INFO(c.name);
    REQUIRE(std::string(c.name) == on_cpu[i].name);
    const Architecture needed(c.needs_sm);
    if (needed.exact ? needed.sm != compute_capability(*gpu) : needed.sm > compute_capability(*gpu)) {
      std::printf("%-40s not on this GPU: needs sm_%s\n", c.name, c.needs_sm);
      continue;
    }
    if (c.not_on == compute_capability(*gpu)) {
      std::printf("%-40s not on this GPU: sm_%d computes it in another way\n", c.name, c.not_on);
      continue;
    }
    double largest = 0;
    for (uint64_t seed = 1; seed <= kRounds; ++seed) {
      const std::vector<uint32_t> in = conformance_input(c, seed);
      const Difference difference =
          compare(c, run_conformance(*gpu, c, in), run_conformance(*emulator, on_cpu[i], in));
      largest = std::max(largest, difference.largest);
      INFO("round " << seed << ", " << difference.first);
      CHECK(difference.wrong == 0);
    }
    if (c.tolerance == 0) {
      std::printf("%-40s the same bits\n", c.name);
    } else {
      std::printf("%-40s largest difference 2^%.1f, allowed 2^%.1f\n", c.name, std::log2(largest),
                  std::log2(c.tolerance));
    }
  }
}
