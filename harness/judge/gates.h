// The tolerances: what an output may differ from the reference by, for each type. Of two more gates that
// judge.cpp computes from each problem, the worst element's and the bias's, the constants are here as
// well. docs/measuring.md has what right kernels reach.
#pragma once

#include <cmath>
#include <stdexcept>

#include "common/call.h"

namespace flashsteps {

// A correct kernel with FP32 accumulation stays well below: measured floors for N(0, 1) inputs are a third of
// these or less, and doubling an error source shows. Of gradients, whose summands are rounded as P and once
// more as dS, they are half of these or less.
struct Gates {
  double nrmse;           // ||o - ref|| / ||ref|| over the rows that see a key
  double row_nrmse;       // the same for the worst row
  double lse_abs;         // of lse_gate(), for few keys and small scores
  double unit;            // the unit roundoff of the type
  double of_product = 0;  // what is cut off at most of a score's product, relative to the score so far
  double of_sum = 0;      // what the sum of 32 products of a score is rounded by, relative to it
};

constexpr Gates gates(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return {.nrmse = 1e-5, .row_nrmse = 1e-4, .lse_abs = 1e-5, .unit = 0x1p-24};
    case DType::kFp16:
      return {.nrmse = 1e-3, .row_nrmse = 2e-3, .lse_abs = 1e-4, .unit = 0x1p-11};
    case DType::kBf16:
      return {.nrmse = 5e-3, .row_nrmse = 1e-2, .lse_abs = 1e-4, .unit = 0x1p-8};
    // The reference has the quantized inputs. P rounded to e4m3 makes 2.5e-2, and 5e-2 in the worst row.
    case DType::kE4m3:
      return {.nrmse = 4e-2, .row_nrmse = 8e-2, .lse_abs = 2e-3, .unit = 0x1p-4, .of_product = 0x1p-13};
  }
  throw std::logic_error("unknown dtype");
}

// Of a call that allows an approximation (AttentionCall::fast): scores may be summed in FP16, and the sum of
// a row may be that of the rounded P, whose byte may be off by 0.76 of its unit. So P is up to 6.5 % too
// large or 8 % too small, and O is off by as much as both where two keys have all the weight.
//
// Of a call in e4m3 that wants no log-sum-exp: scores may be summed in FP16, and nothing else.
constexpr Gates gates(DType dtype, bool fast, bool wants_lse) {
  Gates found = gates(dtype);
  if (dtype == DType::kE4m3 && !wants_lse) found.of_sum = 0x1p-11;
  if (fast) {
    found.nrmse = 6e-2;
    found.row_nrmse = 13e-2;
    found.lse_abs += AttentionCall::kFastLse;
    found.of_sum = 0x1p-11;
  }
  return found;
}

// A row of a gradient has a row gate of at least so many unit roundoffs: where one summand is nearly all of
// it, it is rounded as P, as dS and in the end.
constexpr double kRoundingsOfGradient = 3.1;

// A tensor core adds 16 products at a time to an FP32 sum, which it truncates: an error of less than
// kTruncated times the sum, and of 0.36 times that on average.
constexpr double kTruncated = 0x1p-23;
constexpr double truncations(int products) { return products / 16.0 * kTruncated; }

// What may be cut off of a score of FP8 products. Where all are of one sign it is a quarter of of_product of
// the score for each, of which half has been seen. Otherwise it is a few times of_product of `products`, the
// root of the sum of their squares. A sum on the way to the score is about as large as one of these two.
inline double cut_off(const Gates& gate, int head_dim, double score, double products) {
  return gate.of_product * (head_dim / 8 * std::abs(score) + 8 * products) +
         gate.of_sum * (head_dim / 32) * (std::abs(score) + products);
}

// |lse - ref| <= this. Of the scores, the truncations are all in one direction; they are as large as lse, and
// are rounded up to six times more. The row sum is rounded after each key, by a quarter of 2^-23 on average:
// in the worst inputs that are known, a quarter of these roundings does not cancel out. `cut_off` is the mean
// of the scores', each with the weight of its key.
inline double lse_gate(const Gates& gate, int head_dim, int num_keys, double lse, double cut_off = 0) {
  return gate.lse_abs + (truncations(head_dim) + 3 * kTruncated) * std::abs(lse) + num_keys * 0x1p-27 +
         cut_off;
}

// Of a backward pass, P = exp(score - LSE) may be off by this part of itself. The two are FP32 numbers, about
// as large as each other, and not divided by a sum that would be off as well: their products with log2(e),
// and with the scale before, are each rounded by up to 2^-24. So are sums on the way to the score, which are
// as large as that, or as the root of the sum of its squared products; other than FP32 additions, tensor
// cores truncate them. `is_sum`: of more products than one.
inline double error_of_p(int head_dim, double lse, double products, bool is_sum) {
  return 4 * 0x1p-24 * std::abs(lse) + (is_sum ? truncations(head_dim) : 0) * (std::abs(lse) + products);
}

// Of the type's unit roundoff. Truncating P or O shortens O by 0.7 of it.
constexpr double kBias = 0.15;

// What else shortens O: the sums of P V are truncated, and scores are, the more the larger they are, which
// lets the weights of a row come nearer to each other. Of that, less than a tenth has been seen to reach O's
// length (figures/results/h200_truncation.json).
inline double bias_of_truncation(int head_dim, int num_keys, double largest_score) {
  return 0.36 * truncations(num_keys) + 0.1 * truncations(head_dim) * largest_score;
}

}  // namespace flashsteps
