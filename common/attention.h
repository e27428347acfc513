// The problem as a kernel sees it: typed pointers, strides and who sees whom.
#pragma once

#include "common/cuda.h"
#include "common/interface.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Kernel argument. Element is float, __half or __nv_bfloat16. Shapes and strides as in AttentionCall.
template <typename Element>
struct AttentionParams {
  const Element* q;
  const Element* k;
  const Element* v;
  Element* o;
  float* lse;
  const int* kv_lengths;
  int64_t q_batch_stride, q_head_stride, q_row_stride;
  int64_t k_batch_stride, k_head_stride, k_row_stride;
  int64_t v_batch_stride, v_head_stride, v_row_stride;
  int64_t o_batch_stride, o_head_stride, o_row_stride;
  int batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_kv;
  float softmax_scale_log2;  // softmax_scale * log2(e): scores go straight into exp2

  // One (batch, head)'s matrix: row i begins at ptr + i * row_stride. Query head h reads KV head
  // h / (num_heads_q / num_heads_kv): several query heads share one under GQA, all of them under MQA.
  __device__ const Element* q_head(int b, int h) const { return q + b * q_batch_stride + h * q_head_stride; }
  __device__ const Element* k_head(int b, int h) const {
    return k + b * k_batch_stride + kv_head(h) * k_head_stride;
  }
  __device__ const Element* v_head(int b, int h) const {
    return v + b * v_batch_stride + kv_head(h) * v_head_stride;
  }
  __device__ Element* o_head(int b, int h) const { return o + b * o_batch_stride + h * o_head_stride; }
  __device__ float* lse_head(int b, int h) const { return lse + (int64_t(b) * num_heads_q + h) * seqlen_q; }
  __device__ int kv_head(int h) const { return h / (num_heads_q / num_heads_kv); }

  // Keys at or beyond this index are padding: whatever they hold must not matter.
  __device__ int kv_length(int b) const { return kv_lengths != nullptr ? kv_lengths[b] : seqlen_kv; }

  // Query `row` sees keys 0 .. visible_keys - 1. Causal masks are aligned bottom-right: the last query sees
  // every key, and with more queries than keys the first ones see none.
  template <bool CAUSAL>
  __device__ int visible_keys(int row, int kv_len) const {
    if constexpr (!CAUSAL) return kv_len;
    return min(max(row + 1 + (kv_len - seqlen_q), 0), kv_len);
  }
};

template <typename Element>
AttentionParams<Element> make_params(const AttentionCall& c) {
  return {.q = static_cast<const Element*>(c.q.data),
          .k = static_cast<const Element*>(c.k.data),
          .v = static_cast<const Element*>(c.v.data),
          .o = static_cast<Element*>(c.o.data),
          .lse = c.lse,
          .kv_lengths = c.kv_lengths,
          .q_batch_stride = c.q.batch_stride,
          .q_head_stride = c.q.head_stride,
          .q_row_stride = c.q.row_stride,
          .k_batch_stride = c.k.batch_stride,
          .k_head_stride = c.k.head_stride,
          .k_row_stride = c.k.row_stride,
          .v_batch_stride = c.v.batch_stride,
          .v_head_stride = c.v.head_stride,
          .v_row_stride = c.v.row_stride,
          .o_batch_stride = c.o.batch_stride,
          .o_head_stride = c.o.head_stride,
          .o_row_stride = c.o.row_stride,
          .batch = c.batch,
          .num_heads_q = c.num_heads_q,
          .num_heads_kv = c.num_heads_kv,
          .seqlen_q = c.seqlen_q,
          .seqlen_kv = c.seqlen_kv,
          .softmax_scale_log2 = c.softmax_scale * kLog2e};
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
