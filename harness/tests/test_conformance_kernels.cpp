// The kernels of the conformance test on the emulator alone: they have no race, and give the same in any
// order of lanes. That they give what a GPU gives is gpu/test_conformance.cpp's to find out.
#include <set>
#include <string>

#include "harness/tests/conformance.h"
#include "harness/tests/support.h"

using namespace flashsteps;

TEST_CASE("the conformance kernels run on the emulator in any order") {
  const auto backend = make_emulator_backend();
  std::set<std::string> names;
  for (const ConformanceCase& c :
       joined({on_emulator::conformance_cases(), on_emulator::conformance_cases_sm89(),
               on_emulator::conformance_cases_sm90(), on_emulator::conformance_cases_sm90a()})) {
    INFO(c.name);
    CHECK(names.insert(c.name).second);
    if (c.tolerance > 0) CHECK(c.num_out % 2 == 0);
    const std::vector<uint32_t> in = conformance_input(c, 1);
    backend->set_mode({});
    const std::vector<uint32_t> expected = run_conformance(*backend, c, in);
    CHECK(conformance_input(c, 2) != in);
    CHECK(run_conformance(*backend, c, conformance_input(c, 2)) != expected);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      for (const char* async : {"early", "late", "random"}) {
        backend->set_mode({.async = async, .hostile = true, .race_detector = true, .seed = seed});
        CHECK(run_conformance(*backend, c, in) == expected);
      }
    }
  }
  backend->set_mode({});
}

TEST_CASE("conformance: what agrees and what does not") {
  const auto words = [](float value, float scale) {
    return std::vector{std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(scale)};
  };
  ConformanceCase c{"", {}, 2, 0, nullptr};
  CHECK(compare(c, {1, 2}, {1, 2}).wrong == 0);
  CHECK(compare(c, {1, 2}, {1, 3}).wrong == 1);
  CHECK(compare(c, {1, 2}, {1, 3}).first.find("word 1: 0x00000002") == 0);
  CHECK(compare(c, words(0.0f, 1), words(-0.0f, 1)).wrong == 1);
  CHECK(compare(c, {0x7fc00000, 0}, {0x7fffffff, 0}).wrong == 1);

  c.tolerance = 1e-3;
  CHECK(compare(c, words(5.0f, 10), words(5.009f, 10)).wrong == 0);
  CHECK(compare(c, words(5.0f, 10), words(5.009f, 10)).largest > 8e-4);
  CHECK(compare(c, words(5.0f, 10), words(5.011f, 10)).wrong == 1);
  CHECK(compare(c, words(5.0f, 10.1f), words(5.0f, 10)).wrong == 1);  // the scales must agree as well
  CHECK(compare(c, words(NAN, NAN), words(-NAN, NAN)).wrong == 0);
  CHECK(compare(c, words(NAN, 1), words(1, 1)).wrong == 1);
  CHECK(compare(c, words(1, 1), words(NAN, NAN)).wrong == 2);
  CHECK(compare(c, words(INFINITY, INFINITY), words(INFINITY, INFINITY)).wrong == 0);
  CHECK(compare(c, words(1e38f, 1e38f), words(INFINITY, INFINITY)).wrong == 2);
  CHECK(compare(c, words(-INFINITY, INFINITY), words(INFINITY, INFINITY)).wrong == 1);
  CHECK(compare(c, words(0x1p-126f, 0x1p-126f), words(0, 0)).wrong == 2);
}
