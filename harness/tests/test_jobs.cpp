// The order in which steps are timed.
#include <algorithm>
#include <set>
#include <utility>

#include "harness/src/jobs.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

TEST_CASE("every round takes everybody once, and nobody always comes after the same one") {
  constexpr size_t kContenders = 6;
  std::set<std::pair<size_t, size_t>> neighbours;
  for (int round = 0; round < 100; ++round) {
    INFO(round);
    const std::vector<size_t> order = order_of_round(kContenders, round);
    CHECK(order == order_of_round(kContenders, round));
    CHECK(std::set<size_t>(order.begin(), order.end()).size() == kContenders);
    REQUIRE(order.size() == kContenders);
    CHECK(*std::max_element(order.begin(), order.end()) == kContenders - 1);
    for (size_t i = 1; i < order.size(); ++i) neighbours.insert({order[i - 1], order[i]});
  }
  CHECK(neighbours.size() == kContenders * (kContenders - 1));
  CHECK(order_of_round(0, 3).empty());
}
