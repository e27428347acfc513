// A dot product as the reference has it: FP32 products, summed in float or double.
#pragma once

#include <numeric>

namespace flashsteps {

constexpr int kLanes = 8;  // independent partial sums, so that the loop vectorises without reordering a sum

template <typename Sum>
Sum dot(const float* a, const float* b, int n) {
  Sum sums[kLanes] = {};
  for (int d = 0; d < n; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += Sum(a[d + lane] * b[d + lane]);
  }
  return std::accumulate(sums, sums + kLanes, Sum(0));
}

}  // namespace flashsteps
