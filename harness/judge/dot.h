// A dot product as the reference has it: FP32 products, summed in float or double.
#pragma once

#include <numeric>
#include <utility>

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

// Both of a row: each product is made once.
inline std::pair<double, float> exact_and_naive_dot(const float* a, const float* b, int n) {
  double exact[kLanes] = {};
  float naive[kLanes] = {};
  for (int d = 0; d < n; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float product = a[d + lane] * b[d + lane];
      exact[lane] += double(product);
      naive[lane] += product;
    }
  }
  return {std::accumulate(exact, exact + kLanes, 0.0), std::accumulate(naive, naive + kLanes, 0.0f)};
}

}  // namespace flashsteps
