// Division by a number that the host knows. A GPU has no instruction for the division of integers: where the
// compiler does not know the divisor it takes about 20 instructions, each of which waits for the one before.
// Here it takes three. T. Granlund and P. L. Montgomery, "Division by invariant integers using
// multiplication" (1994).
#pragma once

#include <bit>
#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

class Divisor {
 public:
  // On the host; value >= 1.
  explicit Divisor(int value)
      : value_(value),
        shift_(std::bit_width(unsigned(value) - 1)),
        factor_(uint32_t(((uint64_t(1) << (31 + shift_)) + value - 1) / value)) {}

  __device__ explicit operator int() const { return value_; }

  // Of n from 0 to 2^31 - 1. n * factor_ / 2^(31 + shift_) is n / value_, and too much by less than
  // n / 2^31 / value_: too little to change what is before the point.
  friend __device__ int operator/(int n, const Divisor& by) {
    return int(uint32_t(uint64_t(2u * uint32_t(n)) * by.factor_ >> 32) >> by.shift_);
  }
  friend __device__ int operator%(int n, const Divisor& by) { return n - n / by * by.value_; }

 private:
  int value_;
  int shift_;  // the smallest with 2^shift_ >= value_
  uint32_t factor_;  // 2^(31 + shift_) / value_, rounded up
};

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
