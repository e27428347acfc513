// The order in which a bench takes its contenders, and what its samples come to.
#pragma once

#include <cstddef>
#include <vector>

namespace flashsteps {

// The order in which a round takes the contenders 0, 1, ...: Williams' design. Of as many rounds as
// contenders (of twice as many, if their number is odd) each follows each other equally often. In a fixed
// order each would always come after the same neighbour, and have its clock: after the matmul, which heats
// the GPU most, a lower one.
std::vector<size_t> order_of_round(size_t num_entries, int round);

// Linear between the two neighbours; the median is 0.5. There must be samples.
double percentile(std::vector<double> samples, double fraction);

}  // namespace flashsteps
