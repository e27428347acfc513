// One attention call: what is asked of a step, by the harness or by a user of the library. Plain C++,
// installed beside flashsteps.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace flashsteps {

// Of q, k and v. kE4m3: FP8 with 4 bits of exponent and 3 of mantissa, up to 448, without Inf.
enum class DType { kFp32, kFp16, kBf16, kE4m3 };
constexpr size_t element_bytes(DType dtype) {
  return dtype == DType::kFp32 ? 4 : dtype == DType::kE4m3 ? 1 : 2;
}
// Of o, whose elements nobody scales.
constexpr DType output_type(DType dtype) { return dtype == DType::kE4m3 ? DType::kBf16 : dtype; }

// A set of element types.
struct DTypes {
  unsigned bits;
  constexpr DTypes(std::initializer_list<DType> dtypes) : bits(0) {
    for (const DType dtype : dtypes) bits |= 1u << unsigned(dtype);
  }
  constexpr bool has(DType dtype) const { return (bits >> unsigned(dtype) & 1) != 0; }
};

// A [batch, heads, rows, head_dim] view of memory on the backend's device. Strides are in elements; the
// head_dim elements of a row are contiguous. The stride of an axis of extent 1 may be anything. Covers [b, h,
// s, d], [b, s, h, d] and slices of a fused QKV tensor.
struct TensorView {
  void* data;
  int64_t batch_stride, head_stride, row_stride;
};

// What the elements of an FP8 tensor are multiplied by, on the device: [batch, num_heads_kv], also for q,
// whose heads that share a head of K and V share this, too. Positive numbers. No stride is negative; with
// strides of 0 there is one number for all.
struct Descale {
  const float* data = nullptr;  // nullptr: 1
  int64_t batch_stride = 0, head_stride = 0;
};

constexpr size_t kWorkspaceAlignment = 256;  // bytes
constexpr int kNumCounters = 4096;           // of AttentionCall::counters
constexpr size_t kCounterBytes = kNumCounters * sizeof(unsigned);

// A result over other keys, in FP32, with which a call merges its own. Contiguous: o is [batch, num_heads_q,
// rows, head_dim] and lse [batch, num_heads_q, rows] with rows >= seqlen_q; both point at the call's first
// query. Where lse is -inf there is no result yet, and o is not read.
struct PartialResult {
  float* o = nullptr;  // nullptr: there is nothing to merge
  float* lse = nullptr;
  int rows = 0;
};

// Where the keys and values of each sequence of a batch are, when they lie in pages of a pool that all
// sequences share. K and V are then [num_pages, num_heads_kv, page_size, head_dim]: batch_stride leads from a
// page to the next, row_stride from a key to the next one of its page. Key j of sequence b is row j %
// page_size of page pages[b * max_pages + j / page_size]. Entries after the page of a sequence's last key may
// hold anything, and so may all rows of the pool that hold no key of any sequence. Sequences may share pages.
struct PageTable {
  const int* pages = nullptr;  // [batch, max_pages] on the device, contiguous; each in 0..num_pages-1.
                               // nullptr: K and V are not in pages, and the other members do not matter
  int max_pages = 0;           // of a sequence
  int page_size = 0;           // keys in a page, a power of two
  int num_pages = 0;           // in the pool
};

// One attention call: O = softmax(softmax_scale * Q K^T + mask) V, and its log-sum-exp; or, with `backward`,
// the gradients of Q, K and V. Without queries, where batch, num_heads_q or seqlen_q is 0, there is nothing
// to compute: the library launches no step.
//
// A score is an FP32 number, with 24 significant bits. Apart from their rounding, a row is right if its
// |softmax_scale * (q . k)| stays below 2^26; with larger finite scores it is right, or every element of it
// is Inf or NaN (from v09 on). A step sums O up before it divides O by the sum of P. So with N keys O is
// right while N * |v| stays below 2^127, and from v13 on, where P may be as large as 2^15, below 2^112; only
// bf16 has such values. In fp16, from v03 on, a |v| of 65,504, its largest number, may become Inf, because P
// is rounded and its sum is not; one of 65,472 does not.
//
// What lies at or beyond kv_len may be anything, but every key below it must be finite in K and V: from v02
// on a row multiplies by 0 the keys that only causality hides from it, and 0 * NaN is NaN.
struct AttentionCall {
  DType dtype;                           // of q, k and v; o has output_type(). But see fp8_cache
  int batch, num_heads_q, num_heads_kv;  // num_heads_q is a multiple of num_heads_kv
  int seqlen_q, seqlen_kv, head_dim;
  bool causal;          // bottom-right aligned: query i sees key j when j <= i + kv_len - seqlen_q
  float softmax_scale;  // positive, finite: the largest score is then the largest product
  TensorView q, k, v;   // read only; k and v have num_heads_kv heads and seqlen_kv rows, or are in pages: see
                        // page_table
  TensorView o;         // [batch, num_heads_q, seqlen_q, head_dim]
  float* lse;  // [batch, num_heads_q, seqlen_q], contiguous, FP32, natural log; -inf on a row with no key;
               // nullptr: not wanted. A step may then sum scores of kE4m3 in FP16, and a row with a score
               // beyond 8,000 in units of log2 becomes NaN in o.
  const int* kv_lengths;  // [batch] on the device, each in 0..seqlen_kv; nullptr: every length is seqlen_kv
  // Memory on the device for a step that needs some of its own, e.g. for partial results: aligned to
  // kWorkspaceAlignment, and used by no other call at the same time. It may hold anything before the call and
  // after it. Steps that need none ignore it.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // kNumCounters numbers on the device, for a step with `uses_counters`: all are zero before a call, which
  // leaves them zero, and no other call uses them at the same time. Other steps ignore them.
  unsigned* counters = nullptr;
  // A step may be compiled in several configurations, such as tile sizes: the index of the one to use, or
  // kChosenByStep.
  static constexpr int kChosenByStep = -1;
  int configuration = kChosenByStep;
  // If the step chooses: the largest number of CTAs among which it may divide the keys of a head. A step
  // whose configurations are named like "splits4" takes the largest that is not above this number; other
  // steps ignore it. 0: the step decides.
  int num_splits = 0;
  // For steps with `merges`: the call writes the merged result there and, rounded, to o. lse is then null.
  PartialResult earlier = {};
  // For steps with `pages`: where K and V are. seqlen_kv is then at most max_pages * page_size.
  PageTable page_table = {};
  // Of DType::kE4m3. Other types have none, but for k and v with fp8_cache.
  Descale q_descale = {}, k_descale = {}, v_descale = {};
  // Of DType::kE4m3: may a step approximate, for the sake of speed? It sums scores in FP16. If no element of
  // q and k, as it is stored, is above kLargestFastQk in magnitude, none of these sums is beyond FP16. A row
  // of which one is, or whose scores are beyond 8,000 in units of log2, becomes NaN in o and lse. lse may be
  // off by kFastLse and by what rounding scores to FP16 moves it. Steps that do not approximate ignore this.
  bool fast = false;
  static constexpr float kLargestFastQk = 14.0f, kFastLse = 0.084f;
  // For steps with `fp8_cache`: k and v are kE4m3, with k_descale and v_descale, and only q and o have the
  // type above, which is kFp16 or kBf16. Every key below kv_len must be a number there, too. A step may round
  // P to FP16: of a weight that is below 2^-14 of a row's largest, up to 2^-25 of the largest may be lost.
  bool fp8_cache = false;
  // For steps with `quantizes`, in kFp16 and kBf16: the step rounds q, k and v to e4m3, each with one scale
  // for each (batch, KV head), and then has what `fast` allows. Of q, all query heads that share a KV head
  // have one scale. With m, the largest magnitude of the rows that exist, but at least kLeastQuantized, and
  // L, which is kLargestFastQk for q and k and kLargestQuantizedV for v, a number x becomes e4m3(x * (L /
  // m)), which stands for that times m / L: products and quotients in FP32, each rounded to nearest. An Inf
  // or a NaN in q, k or v makes NaN of o in all rows of the (batch, KV head).
  bool quantize = false;
  static constexpr float kLargestQuantizedV = 448.0f, kLeastQuantized = 0x1p-100f;
  // For steps with `backward`, in kFp32, kFp16 and kBf16: the backward pass. Of a scalar that depends on O,
  // d_o is the gradient with respect to O, and the call writes those with respect to Q, K and V:
  //   P = exp(softmax_scale * Q K^T + mask - LSE)      dV = P^T dO
  //   dP = dO V^T      D = rowsum(dO * O)              dS = P * (dP - D)
  //   dQ = softmax_scale * dS K                        dK = softmax_scale * dS^T Q
  // o and lse are inputs then, and hold what the forward call has written. dk and dv are summed over the
  // query heads that share a KV head. A row of dq that sees no key is zero, and so is a row of dk or dv that
  // no query sees, be it at or beyond kv_len. The call has none of what is described above from `earlier` on.
  //
  // A score and LSE are FP32 numbers, and P is not divided by a sum that would be off as well. So P, and with
  // it a gradient, may be off by 2^-20 of itself for each 1 of |softmax_scale * (q . k)|: by less than bf16
  // rounds while that stays below 2^12, and than FP16 while it stays below 2^9. From 2^20 on a gradient may
  // be anything.
  bool backward = false;
  TensorView d_o = {};          // read only; of o's shape
  TensorView dq = {};           // of q's shape
  TensorView dk = {}, dv = {};  // of k's shape: [batch, num_heads_kv, seqlen_kv, head_dim]
  constexpr DType kv_dtype() const { return fp8_cache ? DType::kE4m3 : dtype; }

  // K and V lie in memory as [kv_blocks(), num_heads_kv, kv_block_rows(), head_dim]: a block is a page, or a
  // sequence.
  constexpr int kv_blocks() const { return page_table.pages != nullptr ? page_table.num_pages : batch; }
  constexpr int kv_block_rows() const {
    return page_table.pages != nullptr ? page_table.page_size : seqlen_kv;
  }
};

}  // namespace flashsteps
