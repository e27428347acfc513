// FP8 attention with P in e4m3, right and with mistakes that people make, as the mutants are for 16-bit
// types. Each registers as a step of its own, mutant_e4m3_<name>.
//
// One thread per query row, 64 keys at a time.
#include "common/step.h"

namespace STEP_NAMESPACE {

enum Mistake {
  kNone,
  kKScaleOfHead0,        // the scale of K is that of the first head
  kScaleStridesIgnored,  // the scales of K are taken to be [batch, num_heads_kv] in any case
  kQScaleOfQuery,        // the scale of Q is taken by query head: it has one for each head of K and V
  kVScaleForgotten,
  kScaleOfPInLse,     // P is 2^8 times as large, and so is its sum
  kKeysSwapped,       // two keys of V change places
  kSaturates,         // the maximum is that of the first keys, and P ends at 448
  kOneLevelOfSums,    // O is kept where FP8 products are summed on Hopper, with 14 bits
  kPTruncated,        // P is rounded towards zero
  kPaddingTimesZero,  // V beyond the length is multiplied by 0
  kNumMistakes
};
constexpr const char* kNames[kNumMistakes] = {"mutant_e4m3_none",
                                              "mutant_e4m3_k_scale_of_head_0",
                                              "mutant_e4m3_scale_strides_ignored",
                                              "mutant_e4m3_q_scale_of_query",
                                              "mutant_e4m3_v_scale_forgotten",
                                              "mutant_e4m3_scale_of_p_in_lse",
                                              "mutant_e4m3_keys_swapped",
                                              "mutant_e4m3_saturates",
                                              "mutant_e4m3_one_level_of_sums",
                                              "mutant_e4m3_p_truncated",
                                              "mutant_e4m3_padding_times_zero"};

constexpr int BLOCK_M = 64;
constexpr int BLOCK_N = 64;
constexpr int K_STEP = 32;         // keys of one product
constexpr float P_SCALE = 256.0f;  // of P: below 448, and 2^-17 of the largest is still a number of e4m3

// What remains of a product that is added to such a sum: its bits from 2^-13 of the sum's power of two on.
__device__ float in_14_bits(float product, float sum) {
  const float unit = __uint_as_float(__float_as_uint(sum) & 0x7f800000u) * 0x1p-13f;
  return unit == 0.0f ? product : truncf(product / unit) * unit;
}

__device__ float to_e4m3(float p, bool truncate) {
  const float nearest = float(__nv_fp8_e4m3(p));
  return truncate && nearest > p ? float(__nv_fp8_e4m3(p * 0.9375f)) : nearest;
}

template <int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(BLOCK_M)
    attention_kernel(const AttentionParams<__nv_fp8_e4m3> params, Mistake mistake) {
  const int row = blockIdx.x * BLOCK_M + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  const __nv_fp8_e4m3* const q_row = params.q_head(batch, head) + row * params.q.row_stride;
  const int kv_len = params.kv_length(batch);
  const int num_keys = params.visible_keys<CAUSAL>(row, kv_len);
  float scale = params.score_scale_log2(batch, head);
  if (mistake == kKScaleOfHead0)
    scale *= params.descale(params.k_descale, batch, 0) / params.descale(params.k_descale, batch, head);
  if (mistake == kScaleStridesIgnored)
    scale *= params.k_descale.data[batch * params.num_heads_kv + params.kv_head(head)] /
             params.descale(params.k_descale, batch, head);
  if (mistake == kQScaleOfQuery) {
    const int wrong = head % params.num_heads_kv * (params.num_heads_q / params.num_heads_kv);
    scale *= params.descale(params.q_descale, batch, wrong) / params.descale(params.q_descale, batch, head);
  }

  float acc_o[HEAD_DIM] = {};
  float row_max = -INFINITY, row_sum = 0.0f;
  for (int first = 0; first < num_keys; first += BLOCK_N) {
    float s[BLOCK_N];
    float new_max = row_max;
    for (int j = 0; j < BLOCK_N; ++j) {
      s[j] = -INFINITY;
      if (first + j >= num_keys) continue;
      const __nv_fp8_e4m3* const k_row = params.k_head(batch, head) + (first + j) * params.k.row_stride;
      s[j] = 0.0f;
      for (int d = 0; d < HEAD_DIM; ++d) s[j] += float(q_row[d]) * float(k_row[d]);
      s[j] *= scale;
      new_max = fmaxf(new_max, s[j]);
    }
    if (mistake == kSaturates && first > 0) new_max = row_max;
    const float row_scale = exp2f(row_max - new_max);
    row_max = new_max;
    row_sum *= row_scale;
    for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] *= row_scale;
    for (int k = 0; k < BLOCK_N; k += K_STEP) {
      float sums[HEAD_DIM] = {};
      for (int j = k; j < k + K_STEP; ++j) {
        const float exact = P_SCALE * exp2f(s[j] - row_max);
        const float p = to_e4m3(exact, mistake == kPTruncated);
        row_sum += exact;
        int key = first + j;
        if (mistake == kKeysSwapped && key % 16 / 2 == 1) key ^= 1;
        const bool reads = mistake == kPaddingTimesZero ? key < params.seqlen_kv : p != 0.0f && key < kv_len;
        if (!reads) continue;
        const __nv_fp8_e4m3* const v_row = params.v_head(batch, head) + key * params.v.row_stride;
        for (int d = 0; d < HEAD_DIM; ++d) {
          const float product = p * float(v_row[d]);
          sums[d] += mistake == kOneLevelOfSums ? in_14_bits(product, acc_o[d]) : product;
        }
      }
      for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] += sums[d];
    }
  }

  const bool empty = row_sum == 0.0f;
  const float o_scale = mistake == kVScaleForgotten ? 1.0f : params.output_scale(batch, head);
  __nv_bfloat16* const o_row = params.o_head(batch, head) + row * params.o.row_stride;
  for (int d = 0; d < HEAD_DIM; ++d) o_row[d] = __nv_bfloat16(empty ? 0.0f : acc_o[d] / row_sum * o_scale);
  const float sum = mistake == kScaleOfPInLse ? row_sum : row_sum / P_SCALE;
  params.store_lse(batch, head, row, empty ? -INFINITY : row_max * kLn2 + logf(sum));
}

template <int MISTAKE>
struct MutantLauncher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const AttentionParams<Element>& params, Stream stream) {
    const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
    launch(attention_kernel<HEAD_DIM, CAUSAL>, grid, dim3(BLOCK_M), 0, stream, params, Mistake(MISTAKE));
  }
};

constexpr StepInfo kMutant = {.title = "a mutant",
                              .removes = "nothing",
                              .dtypes = {DType::kE4m3},
                              .spills = "the accumulator is large"};

template <int... MISTAKES>
bool register_mutants(std::integer_sequence<int, MISTAKES...>) {
  return (
      register_step({kNames[MISTAKES], kThisBackend, kMutant, dispatch<MutantLauncher<MISTAKES>, kMutant>}) &&
      ...);
}
[[maybe_unused]] const bool kRegistered = register_mutants(std::make_integer_sequence<int, kNumMistakes>());

}  // namespace STEP_NAMESPACE
