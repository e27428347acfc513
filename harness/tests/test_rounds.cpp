// The order in which a bench takes its contenders.
#include <algorithm>
#include <map>
#include <utility>

#include "harness/run/rounds.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

TEST_CASE("in the rounds of a bench nobody keeps a neighbour") {
  CHECK(order_of_round(0, 3).empty());
  CHECK(order_of_round(1, 3) == std::vector<size_t>{0});
  for (size_t count = 2; count <= 12; ++count) {
    const int rounds = int(count % 2 == 0 ? count : 2 * count);
    std::map<std::pair<size_t, size_t>, int> behind;
    for (int round = 0; round < rounds; ++round) {
      const std::vector<size_t> order = order_of_round(count, round);
      REQUIRE(order.size() == count);
      for (size_t i = 0; i < count; ++i) REQUIRE(std::count(order.begin(), order.end(), i) == 1);
      for (size_t i = 1; i < count; ++i) ++behind[{order[i - 1], order[i]}];
    }
    INFO(count);
    CHECK(behind.size() == count * (count - 1));
    for (const auto& [pair, times] : behind) REQUIRE(times == rounds / int(count));
  }
}
