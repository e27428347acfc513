// Division by a number that the host knows. Spelled out in v36_stream_k.
#pragma once

#include <bit>
#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// A GPU has no instruction that divides integers: where the compiler does not know the divisor, it takes
// about 20 instructions, most of which wait for the one before.
class Divisor {
 public:
  // On the host; value >= 1.
  explicit Divisor(int value)
      : value_(value),
        shift_(std::bit_width(unsigned(value) - 1)),
        factor_(uint32_t(((uint64_t(1) << (31 + shift_)) + value - 1) / value)) {}

  __host__ __device__ explicit operator int() const { return value_; }

  // For n >= 0: n * factor_ / 2^(31 + shift_), rounded down. Because factor_ was rounded up, this is too
  // large before it is rounded down, but by less than 1 / value_, so it does not reach the next integer.
  friend __device__ int operator/(int n, const Divisor& by) {
    return int(__umulhi(2u * unsigned(n), by.factor_) >> by.shift_);
  }
  friend __device__ int operator%(int n, const Divisor& by) { return n - n / by * by.value_; }

 private:
  int value_;
  int shift_;        // the smallest with 2^shift_ >= value_
  uint32_t factor_;  // 2^(31 + shift_) / value_, rounded up
};

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
