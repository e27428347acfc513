// The order in which a bench takes its contenders, and what its samples come to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace flashsteps {

// The order in which a round takes the contenders 0, 1, ...: Williams' design. Of as many rounds as
// contenders (of twice as many, if their number is odd) each follows each other equally often. In a fixed
// order each would always come after the same neighbour, and have its clock: after the matmul, which heats
// the GPU most, a lower one.
inline std::vector<size_t> order_of_round(size_t num_entries, int round) {
  const bool odd = num_entries % 2 == 1;
  const size_t shift = size_t(odd ? round / 2 : round);
  std::vector<size_t> order;
  for (size_t at = 0; at < num_entries; ++at) {  // 0 1 n-1 2 n-2 ..., shifted
    const size_t place = at % 2 == 1 ? (at + 1) / 2 : num_entries - at / 2;
    order.push_back((place + shift) % num_entries);
  }
  if (odd && round % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
}

// Linear between the two neighbours; the median is 0.5. There must be samples.
inline double percentile(std::vector<double> samples, double fraction) {
  std::sort(samples.begin(), samples.end());
  const double at = fraction * double(samples.size() - 1);
  const size_t below = size_t(at);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (at - double(below)) * (samples[above] - samples[below]);
}

}  // namespace flashsteps
