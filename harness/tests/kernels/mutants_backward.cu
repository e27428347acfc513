// The backward pass, right and with mistakes that people make, as the mutants are for the forward pass. Each
// registers as a step of its own, mutant_backward_<name>.
//
// One thread per row of dQ, or of dK and dV, as in v50. P and dS are rounded to the type, as an operand of a
// product on tensor cores is.
#include "common/step.h"

namespace STEP_NAMESPACE {

enum Mistake {
  kNone,
  kDWithoutO,           // D = rowsum(dO)
  kDsWithoutScale,      // dQ and dK are not multiplied by softmax_scale
  kBlockTwice,          // dQ has the second block of keys twice
  kMaskInPAlone,        // dV has the causal mask, dS has not
  kLseBaseTwo,          // LSE is taken to be a logarithm to base 2
  kGroupNotSummed,      // dK has the last query head of a group alone
  kLastBlockDropped,    // dK and dV lack the last block of queries
  kDiagonalOff,         // a query does not see the key on the diagonal
  kDvAsDk,              // dV is stored with dK's strides
  kPaddingKept,         // dK and dV are not written beyond kv_len
  kPaddingMultiplied,   // K beyond kv_len is multiplied by 0
  kEmptyRowKept,        // dQ is not written in a row that sees no key
  kElementOff,          // an element of dK is off by 1 %
  kDsTruncated,         // dS is rounded towards zero
  kOutputKept,          // where memory holds more than dQ is, it is kept
  kDOModified,          // dO is written to
  kLseModified,         // LSE is written to
  kPastTheEnd,          // of dK
  kInOrderOfArrival,    // dK is added up by atomics, in any order, and the step does not say so
  kSaysItVaries,        // the same, and it does: this one is right
  kVariesAndDropsSome,  // it says so, and now and then a summand is lost
  kNumMistakes
};
constexpr const char* kNames[kNumMistakes] = {"mutant_backward_none",
                                              "mutant_backward_d_without_o",
                                              "mutant_backward_ds_without_scale",
                                              "mutant_backward_block_twice",
                                              "mutant_backward_mask_in_p_alone",
                                              "mutant_backward_lse_base_two",
                                              "mutant_backward_group_not_summed",
                                              "mutant_backward_last_block_dropped",
                                              "mutant_backward_diagonal_off",
                                              "mutant_backward_dv_as_dk",
                                              "mutant_backward_padding_kept",
                                              "mutant_backward_padding_multiplied",
                                              "mutant_backward_empty_row_kept",
                                              "mutant_backward_element_off",
                                              "mutant_backward_ds_truncated",
                                              "mutant_backward_output_kept",
                                              "mutant_backward_d_o_modified",
                                              "mutant_backward_lse_modified",
                                              "mutant_backward_past_the_end",
                                              "mutant_backward_in_order_of_arrival",
                                              "mutant_backward_says_it_varies",
                                              "mutant_backward_varies_and_drops_some"};

constexpr int BLOCK = 64;  // rows of a CTA, one thread each

__host__ __device__ constexpr bool adds_by_atomics(Mistake mistake) {
  return mistake == kInOrderOfArrival || mistake == kSaysItVaries || mistake == kVariesAndDropsSome;
}

// Towards zero.
template <typename Element>
__device__ float truncated(float x) {
  const float nearest = float(Element(x));
  if (fabsf(nearest) <= fabsf(x)) return nearest;
  const float unit = float(Element(1.001f)) > 1.0f ? 0x1p-11f : 0x1p-8f;  // fp16, bf16
  return float(Element(x * (1.0f - unit)));
}

template <int HEAD_DIM, typename Element>
__device__ float dot(const Element* a, const Element* b) {
  float sum = 0.0f;
  for (int d = 0; d < HEAD_DIM; ++d) sum += float(a[d]) * float(b[d]);
  return sum;
}

template <typename Element>
struct Pair {
  float p, ds;

  template <int HEAD_DIM>
  __device__ void compute(const BackwardParams<Element>& params, Mistake mistake, int batch, int head,
                          int row, const Element* k_row, const Element* v_row) {
    const Element* const q_row = params.q_head(batch, head) + row * params.q.row_stride;
    const Element* const o_row = params.o_head(batch, head) + row * params.o.row_stride;
    const Element* const d_o_row = params.d_o_head(batch, head) + row * params.d_o.row_stride;
    const float lse = params.lse_head(batch, head)[row];
    const float lse_log2 = mistake == kLseBaseTwo ? lse : lse * kLog2e;
    float delta = 0.0f;
    for (int d = 0; d < HEAD_DIM; ++d)
      delta += float(d_o_row[d]) * (mistake == kDWithoutO ? 1.0f : float(o_row[d]));
    p = exp2f(dot<HEAD_DIM>(q_row, k_row) * params.softmax_scale_log2 - lse_log2);
    ds = p * (dot<HEAD_DIM>(d_o_row, v_row) - delta);
    p = float(Element(p));
    ds = mistake == kDsTruncated ? truncated<Element>(ds) : float(Element(ds));
  }
};

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(BLOCK) dq_kernel(const BackwardParams<Element> params, Mistake mistake) {
  const int row = blockIdx.x * BLOCK + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  const int kv_len = params.kv_length(batch);
  int num_keys = params.template visible_keys<CAUSAL>(row, kv_len);
  const bool is_empty = num_keys == 0;
  if (mistake == kDiagonalOff && CAUSAL && num_keys > 0) --num_keys;
  if (mistake == kMaskInPAlone && !is_empty) num_keys = kv_len;

  float dq[HEAD_DIM] = {};
  for (int key = 0; key < num_keys; ++key) {
    const Element* const k_row = params.k_head(batch, head) + key * params.k.row_stride;
    Pair<Element> pair;
    pair.template compute<HEAD_DIM>(params, mistake, batch, head, row, k_row,
                                    params.v_head(batch, head) + key * params.v.row_stride);
    const int times = mistake == kBlockTwice && key / BLOCK == 1 ? 2 : 1;
    for (int d = 0; d < HEAD_DIM; ++d) dq[d] += times * pair.ds * float(k_row[d]);
  }
  for (int key = kv_len; mistake == kPaddingMultiplied && key < params.seqlen_kv; ++key)
    for (int d = 0; d < HEAD_DIM; ++d)
      dq[d] += 0.0f * float(params.k_head(batch, head)[key * params.k.row_stride + d]);

  if (mistake == kEmptyRowKept && is_empty) return;
  Element* const dq_row = params.dq_head(batch, head) + row * params.dq.row_stride;
  const float scale = mistake == kDsWithoutScale ? 1.0f : params.softmax_scale;
  for (int d = 0; d < HEAD_DIM; ++d) {
    const float before = float(dq_row[d]);
    dq_row[d] = Element(mistake == kOutputKept ? fmaxf(before, dq[d] * scale) : dq[d] * scale);
  }
  const bool first_row = row == 0 && head == 0 && batch == 0;
  if (mistake == kDOModified && first_row)
    const_cast<Element*>(params.d_o_head(batch, head))[0] = Element(0.25f);
  if (mistake == kLseModified && first_row) params.lse_head(batch, head)[0] = 0.25f;
}

// [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
template <int HEAD_DIM, typename Element>
__device__ float* sums_of(const BackwardParams<Element>& params, int batch, int kv_head, int key) {
  return static_cast<float*>(params.workspace) +
         ((int64_t(batch) * params.num_heads_kv + kv_head) * params.seqlen_kv + key) * HEAD_DIM;
}

// The blocks of queries are shared out among the CTAs of x, where atomics add up dK; else there is one.
template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(BLOCK)
    dk_dv_kernel(const BackwardParams<Element> params, Mistake mistake, int num_splits) {
  const int key = blockIdx.x / num_splits * BLOCK + threadIdx.x;
  const int split = blockIdx.x % num_splits;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  if (key >= params.seqlen_kv) return;
  const Element* const k_row = params.k.head(batch, kv_head) + key * params.k.row_stride;
  const Element* const v_row = params.v.head(batch, kv_head) + key * params.v.row_stride;
  const int kv_len = params.kv_length(batch);
  if (mistake == kPaddingKept && key >= kv_len) return;
  int first_query = key < kv_len ? params.template first_query<CAUSAL>(key, kv_len) : params.seqlen_q;
  if (mistake == kDiagonalOff && CAUSAL) ++first_query;
  const int num_queries =
      mistake == kLastBlockDropped ? (params.seqlen_q - 1) / BLOCK * BLOCK : params.seqlen_q;

  float dk[HEAD_DIM] = {}, dv[HEAD_DIM] = {};
  for (int h = 0; h < params.group_size(); ++h) {
    const int head = kv_head * params.group_size() + h;
    const int first = mistake == kMaskInPAlone && key < kv_len ? 0 : first_query;
    for (int row = first; row < num_queries; ++row) {
      // dV is not in parts.
      const bool is_mine = row / 8 % num_splits == split;
      if (!is_mine && split > 0) continue;
      Pair<Element> pair;
      pair.template compute<HEAD_DIM>(params, mistake, batch, head, row, k_row, v_row);
      if (params.lse_head(batch, head)[row] == -INFINITY) continue;
      const Element* const q_row = params.q_head(batch, head) + row * params.q.row_stride;
      const Element* const d_o_row = params.d_o_head(batch, head) + row * params.d_o.row_stride;
      const bool adds_dk = is_mine && (mistake != kGroupNotSummed || h == params.group_size() - 1);
      for (int d = 0; d < HEAD_DIM; ++d) {
        if (adds_dk) dk[d] += pair.ds * float(q_row[d]);
        if (row >= first_query) dv[d] += pair.p * float(d_o_row[d]);
      }
    }
  }
  Element* const dk_row = params.dk_head(batch, kv_head) + key * params.dk.row_stride;
  Element* dv_row = params.dv_head(batch, kv_head) + key * params.dv.row_stride;
  if (mistake == kDvAsDk) dv_row = params.dv.data + (dk_row - params.dk.data);
  const float scale = mistake == kDsWithoutScale ? 1.0f : params.softmax_scale;
  for (int d = 0; d < HEAD_DIM; ++d) {
    if (adds_by_atomics(mistake))
      atomicAdd(sums_of<HEAD_DIM>(params, batch, kv_head, key) + d, dk[d] * scale);
    else
      dk_row[d] = Element(dk[d] * scale);
    if (split == 0) dv_row[d] = Element(dv[d]);
  }
  if (mistake == kElementOff && key == kv_len / 2 && kv_head == 0) {
    int largest = 0;
    for (int d = 0; d < HEAD_DIM; ++d)
      if (fabsf(dk[d]) > fabsf(dk[largest])) largest = d;
    dk_row[largest] = Element(dk[largest] * scale * 1.01f);
  }
  const bool last_row =
      key == params.seqlen_kv - 1 && kv_head == params.num_heads_kv - 1 && batch == params.batch - 1;
  if (mistake == kPastTheEnd && last_row) dk_row[HEAD_DIM] = Element(0.0f);
}

// `done`: from the sums to dK; else zeros.
template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(BLOCK)
    sums_kernel(const BackwardParams<Element> params, bool done, bool drops_some) {
  const int key = blockIdx.x * BLOCK + threadIdx.x;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  if (key >= params.seqlen_kv) return;
  float* const sums = sums_of<HEAD_DIM>(params, batch, kv_head, key);
  Element* const dk_row = params.dk_head(batch, kv_head) + key * params.dk.row_stride;
  for (int d = 0; d < HEAD_DIM; ++d) {
    if (done)
      dk_row[d] = Element(sums[d] * (drops_some && key == 1 ? 0.5f : 1.0f));
    else
      sums[d] = 0.0f;
  }
}

int launches = 0;

template <int MISTAKE>
struct MutantLauncher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const BackwardParams<Element>& params, Stream stream) {
    constexpr Mistake kMistake = Mistake(MISTAKE);
    const dim3 queries(ceil_div(params.seqlen_q, BLOCK), params.num_heads_q, params.batch);
    launch(dq_kernel<Element, HEAD_DIM, CAUSAL>, queries, dim3(BLOCK), 0, stream, params, kMistake);
    const int num_splits = adds_by_atomics(kMistake) ? 5 : 1;
    const dim3 keys(ceil_div(params.seqlen_kv, BLOCK), params.num_heads_kv, params.batch);
    const dim3 parts(keys.x * num_splits, keys.y, keys.z);
    // Every second launch.
    const bool drops_some = kMistake == kVariesAndDropsSome && ++launches % 2 == 0;
    if (adds_by_atomics(kMistake))
      launch(sums_kernel<Element, HEAD_DIM>, keys, dim3(BLOCK), 0, stream, params, false, false);
    launch(dk_dv_kernel<Element, HEAD_DIM, CAUSAL>, parts, dim3(BLOCK), 0, stream, params, kMistake,
           num_splits);
    if (adds_by_atomics(kMistake))
      launch(sums_kernel<Element, HEAD_DIM>, keys, dim3(BLOCK), 0, stream, params, true, drops_some);
  }
};

size_t workspace_bytes(const AttentionCall& call) {
  return sizeof(float) * call.batch * call.num_heads_kv * call.seqlen_kv * call.head_dim;
}

constexpr StepInfo kMutant = {.title = "a mutant",
                              .removes = "nothing",
                              .part = Part::kBackward,
                              .dtypes = {DType::kFp16, DType::kBf16, DType::kFp32},
                              .spills = "the accumulators are large",
                              .workspace_bytes = workspace_bytes,
                              .backward = true};

constexpr StepInfo info_of(int mistake) {
  StepInfo info = kMutant;
  if (mistake == kSaysItVaries || mistake == kVariesAndDropsSome) info.varies = "atomics add up dK";
  return info;
}

template <int... MISTAKES>
bool register_mutants(std::integer_sequence<int, MISTAKES...>) {
  return (register_step({kNames[MISTAKES], kThisBackend, info_of(MISTAKES),
                         dispatch<MutantLauncher<MISTAKES>, kMutant>}) &&
          ...);
}
[[maybe_unused]] const bool kRegistered = register_mutants(std::make_integer_sequence<int, kNumMistakes>());

}  // namespace STEP_NAMESPACE
