// The softmax whose P are made as bytes, without exponentials. Spelled out in v41_bytes_of_p.
#pragma once

#include "common/blocks/fp16_scores.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
namespace fp16_scores {

// From 1024 to 2048 the numbers of FP16 are the integers. So 1024 + the byte of P, computed in FP16, is
// rounded to an integer, and has the byte in its last bits.
constexpr float INTEGER = 1024.0f;

// The byte of P = 2^x. Where x is an integer the byte is 8 (x + 7). In between, e4m3 rises in a straight
// line, and 2^x lies below it, by up to 0.69 of the byte's unit: by 0.458 in the mean.
__device__ constexpr float exponent_of(float byte) { return (byte + 0.458f) / 8.0f - 7.0f; }

// P is as large as e4m3 allows, which ends at 448: its byte is 126, and the next is NaN. When a row gets a
// new base, the byte of its largest P is 118, or less if the base's FP16 is coarse. One key may have most of
// a row's weight, so this P should be right in the mean. At 118, which is 1.75 * 2^7, it is: there the line
// crosses 2^x.
constexpr float MAX_BYTE = 126.0f;
constexpr float WANTED_BYTE = 118.5f;
constexpr uint32_t BYTES_OF_8 = 0x64086408;  // INTEGER + 8, twice

// The softmax of a lane's rows, acc_row() + r * 8. Scores are two to a register, of neighbouring columns: of
// 8 columns first those of row 0, then those of row 1.
struct BytesOfP {
  __half2 factor;       // of a score, for P's byte; in both halves
  __half2 summand[2];   // of the same, with INTEGER and the base that P is relative to; in both halves
  float row_sum[1][2];  // of this lane's P
  float row_scale[2];   // that O needs because the base has changed

  static constexpr bool HAS_LSE = true;

  // At the beginning of a tile of queries. Other softmaxes scale this warpgroup's rows of Q here.
  template <typename Q>
  __device__ __forceinline__ void begin(const AttentionParams<Fp8>& params, const Work& work, Q&, int) {
    const float scale = params.score_scale_log2(work.batch, work.head);
    factor = __float2half2_rn(fmaxf(scale * 8.0f, LEAST_FACTOR));
    summand[0] = summand[1] = __float2half2_rn(INFINITY);
    row_sum[0][0] = row_sum[0][1] = 0.0f;
  }
  template <bool IS_CAREFUL, int NUM, int K_TILES>
  __device__ __forceinline__ void scores_to_p(uint32_t (&acc_s)[NUM], uint32_t (&frag_p)[K_TILES][4]) {
    row_scale[0] = row_scale[1] = 1.0f;
    if (uniform(has_grown(acc_s))) change_base(acc_s);
    make_p<IS_CAREFUL>(acc_s, frag_p);
  }
  // What P is relative to, in units of log2.
  __device__ float base(int r) const { return -exponent_of(__low2float(summand[r]) - INTEGER); }

 private:
  // Could a P be larger than e4m3 allows? Where all scores of a row are negative it says so too often.
  template <int NUM>
  __device__ __forceinline__ bool has_grown(const uint32_t (&acc_s)[NUM]) const {
    uint32_t max[2] = {0, 0};  // bits of the largest scores from 0 on
#pragma unroll
    for (int i = 0; i < NUM; i += 4) {
      max[0] = __vimax3_s16x2(max[0], acc_s[i], acc_s[i + 2]);
      max[1] = __vimax3_s16x2(max[1], acc_s[i + 1], acc_s[i + 3]);
    }
    const __half2 most = __hmax2_nan(__hfma2(pair_of(max[0]), factor, summand[0]),
                                     __hfma2(pair_of(max[1]), factor, summand[1]));
    constexpr float MOST = INTEGER + MAX_BYTE;
    return !(__low2float(most) <= MOST && __high2float(most) <= MOST);  // or NaN
  }

  // Makes the rows' largest scores so far their bases, so that the byte of the largest P is WANTED_BYTE.
  template <int NUM>
  __device__ __forceinline__ void change_base(const uint32_t (&acc_s)[NUM]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __half2 pair = pair_of(acc_s[r]);
#pragma unroll
      for (int i = 2 + r; i < NUM; i += 2) pair = __hmax2(pair, pair_of(acc_s[i]));
      const float most = quad_reduce_max(fmaxf(__low2float(pair), __high2float(pair)));
      const float wanted = INTEGER + WANTED_BYTE - most * __low2float(factor);
      const float before = __low2float(summand[r]);
      // A base never falls. Without a key seen it stays so low that any score outgrows it, and P is 0. If
      // FP16 has no such base, the row becomes NaN.
      float next = fminf(fminf(wanted, before), MOST_OF_FP16);
      if (fabsf(wanted) > MOST_OF_FP16 && wanted != INFINITY) next = NAN;
      const __half after = __float2half_rd(next);
      row_scale[r] = exp2_approx((__half2float(after) - before) * (1.0f / 8.0f));
      row_sum[0][r] *= row_scale[r];
      summand[r] = __half2half2(after);
    }
  }

  // P as A operands of 32 keys: a register has four of 16 keys, in V's order.
  template <bool IS_CAREFUL, int NUM, int K_TILES>
  __device__ __forceinline__ void make_p(uint32_t (&acc_s)[NUM], uint32_t (&frag_p)[K_TILES][4]) const {
    uint32_t least = BYTES_OF_8;
    // A masked score is no small P: of -inf this makes NaN, which as an integer is above all others.
    const auto unmasked = [](uint32_t bytes) {
      return IS_CAREFUL ? bits_of(__hfma2(pair_of(bytes), __float2half2_rn(0.0f), pair_of(bytes))) : bytes;
    };
#pragma unroll
    for (int i = 0; i < NUM; i += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) acc_s[i + r] = bits_of(__hfma2(pair_of(acc_s[i + r]), factor, summand[r]));
      // As integers they have the same order from 0 on, and what is negative is below all that.
      least = __vimin3_s16x2(least, unmasked(acc_s[i]), unmasked(acc_s[i + 1]));
    }
    if (uniform(least != BYTES_OF_8)) count_small_p<IS_CAREFUL>(acc_s);

#pragma unroll
    for (int i = 0; i < K_TILES * 4; ++i) {
      const int left = i / 2 * 4 + i % 2;
      frag_p[i / 4][i % 4] = left < NUM ? __byte_perm(acc_s[left], acc_s[left + 2], 0x6420) : 0;
    }
  }
  // Below a byte of 8, which is 2^-6, e4m3 is no logarithm: the byte counts units of 2^-9. There 2^x in these
  // units is larger than a straight line, which is negative from 2^-7 on and would make NaN. A score of -inf
  // is masked, or its sum was beyond FP16: then P becomes NaN.
  template <bool IS_CAREFUL, int NUM>
  static __device__ __forceinline__ void count_small_p(uint32_t (&bytes)[NUM]) {
    constexpr float AT_ZERO = exponent_of(-INTEGER) + 9.0f;
    const auto byte_of_small = [](float byte) {
      const float units = fminf(exp2_approx(byte * (1.0f / 8.0f) + AT_ZERO), 8.0f);
      if (byte == -INFINITY && !IS_CAREFUL) return NAN;
      return byte < INTEGER + units ? INTEGER + units : byte;  // NaN stays NaN
    };
#pragma unroll
    for (uint32_t& two : bytes) {
      const __half2 pair = pair_of(two);
      two = bits_of(__floats2half2_rn(byte_of_small(__low2float(pair)), byte_of_small(__high2float(pair))));
    }
  }
};

}  // namespace fp16_scores
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
