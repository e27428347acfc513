// The problem as a kernel sees it: typed pointers, strides, and which query sees which keys.
#pragma once

#include <bit>
#include <type_traits>

#include "common/cuda.h"
#include "common/interface.h"
#include "common/view.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// O has the type of Q, K and V, and bf16 where that is FP8.
template <typename Element>
struct OutputOf {
  using type = Element;
};
template <>
struct OutputOf<__nv_fp8_e4m3> {
  using type = __nv_bfloat16;
};

// Kernel argument. Element is float, __half, __nv_bfloat16 or __nv_fp8_e4m3, and Cache, the type of K and V,
// is the same or, in a step with `fp8_cache`, __nv_fp8_e4m3. Shapes and strides as in AttentionCall.
template <typename Element, typename Cache = Element>
struct AttentionParams {
  using Output = typename OutputOf<Element>::type;
  View<const Element> q;
  View<const Cache> k, v;
  View<Output> o;
  float* lse;  // nullptr: not wanted
  const int* kv_lengths;
  void* workspace;     // as many bytes as the step has asked for
  unsigned* counters;  // kNumCounters, if the step uses them: zero before the call and after it
  int batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_kv;
  float softmax_scale_log2;  // softmax_scale * log2(e): scores go straight into exp2
  int configuration;         // an index into the step's registered configurations
  PartialResult earlier;
  PageTable page_table;
  int log2_page_size;
  Descale q_descale, k_descale, v_descale;

  // Query head h reads KV head h / (num_heads_q / num_heads_kv): several query heads share one under GQA, all
  // of them under MQA.
  __device__ const Element* q_head(int b, int h) const { return q.head(b, h); }
  __device__ const Cache* k_head(int b, int h) const { return k.head(b, kv_head(h)); }
  __device__ const Cache* v_head(int b, int h) const { return v.head(b, kv_head(h)); }
  __device__ Output* o_head(int b, int h) const { return o.head(b, h); }
  __device__ float* lse_head(int b, int h) const { return lse + (int64_t(b) * num_heads_q + h) * seqlen_q; }
  __device__ int kv_head(int h) const { return h / (num_heads_q / num_heads_kv); }

  // What a product of q and k is multiplied by to be a score in units of log2, and what a sum over V is
  // multiplied by. In FP8 the heads have scales of their own.
  __device__ float score_scale_log2(int b, int h) const {
    return softmax_scale_log2 * descale(q_descale, b, h) * descale(k_descale, b, h);
  }
  __device__ float output_scale(int b, int h) const { return descale(v_descale, b, h); }
  __device__ float descale(const Descale& of, int b, int h) const {
    return descale_of_kv_head(of, b, kv_head(h));
  }
  __device__ float descale_of_kv_head(const Descale& of, int b, int kv_head) const {
    if constexpr (!std::is_same_v<Cache, __nv_fp8_e4m3>) return 1.0f;
    return of.data == nullptr ? 1.0f : of.data[b * of.batch_stride + kv_head * of.head_stride];
  }

  __device__ void store_lse(int b, int h, int row, float value) const {
    if (lse != nullptr) lse_head(b, h)[row] = value;
  }

  // The index of a query's row in `earlier`.
  __device__ int64_t earlier_row(int b, int h, int row) const {
    return (int64_t(b) * num_heads_q + h) * earlier.rows + row;
  }

  // Keys at or beyond this index are padding: whatever they hold must not matter.
  __device__ int kv_length(int b) const { return kv_lengths != nullptr ? kv_lengths[b] : seqlen_kv; }

  // The number of the page that holds a key of sequence b; k and v take it in place of a batch. Only for
  // calls with a page table.
  __device__ int page_of(int b, int key) const {
    return page_table.pages[int64_t(b) * page_table.max_pages + (key >> log2_page_size)];
  }
  __device__ int row_in_page(int key) const { return key & (page_table.page_size - 1); }

  // Query `row` sees keys 0 .. visible_keys - 1. Causal masks are aligned bottom-right: the last query sees
  // every key, and with more queries than keys the first ones see none.
  template <bool CAUSAL>
  __device__ int visible_keys(int row, int kv_len) const {
    if constexpr (!CAUSAL) return kv_len;
    return min(max(row + 1 + (kv_len - seqlen_q), 0), kv_len);
  }
};

// What a step with `backward` gets. It reads o and lse, too.
template <typename Element>
struct BackwardParams : AttentionParams<Element> {
  View<const Element> d_o;
  View<Element> dq, dk, dv;
  float softmax_scale;  // of dq and dk

  __device__ const Element* d_o_head(int b, int h) const { return d_o.head(b, h); }
  __device__ Element* dq_head(int b, int h) const { return dq.head(b, h); }
  __device__ Element* dk_head(int b, int kv_head) const { return dk.head(b, kv_head); }
  __device__ Element* dv_head(int b, int kv_head) const { return dv.head(b, kv_head); }
  __device__ int group_size() const { return this->num_heads_q / this->num_heads_kv; }

  // The first query that sees `key`, which is below kv_len; seqlen_q if none does. All queries from there on
  // see it. The counterpart of visible_keys().
  template <bool CAUSAL>
  __device__ int first_query(int key, int kv_len) const {
    if constexpr (!CAUSAL) return 0;
    return min(max(key - (kv_len - this->seqlen_q), 0), this->seqlen_q);
  }
};

template <typename T>
View<T> make_view(const TensorView& tensor, int batch, int num_heads, int num_rows) {
  return {.data = static_cast<T*>(tensor.data),
          .batch = batch,
          .num_heads = num_heads,
          .num_rows = num_rows,
          .batch_stride = tensor.batch_stride,
          .head_stride = tensor.head_stride,
          .row_stride = tensor.row_stride};
}

template <typename Element, typename Cache = Element>
AttentionParams<Element, Cache> make_params(const AttentionCall& c) {
  return {.q = make_view<const Element>(c.q, c.batch, c.num_heads_q, c.seqlen_q),
          .k = make_view<const Cache>(c.k, c.kv_blocks(), c.num_heads_kv, c.kv_block_rows()),
          .v = make_view<const Cache>(c.v, c.kv_blocks(), c.num_heads_kv, c.kv_block_rows()),
          .o = make_view<typename OutputOf<Element>::type>(c.o, c.batch, c.num_heads_q, c.seqlen_q),
          .lse = c.lse,
          .kv_lengths = c.kv_lengths,
          .workspace = c.workspace,
          .counters = c.counters,
          .batch = c.batch,
          .num_heads_q = c.num_heads_q,
          .num_heads_kv = c.num_heads_kv,
          .seqlen_q = c.seqlen_q,
          .seqlen_kv = c.seqlen_kv,
          .softmax_scale_log2 = c.softmax_scale * kLog2e,
          .configuration = c.configuration,
          .earlier = c.earlier,
          .page_table = c.page_table,
          .log2_page_size = std::countr_zero(unsigned(c.page_table.page_size)),
          .q_descale = c.q_descale,
          .k_descale = c.k_descale,
          .v_descale = c.v_descale};
}

template <typename Element>
BackwardParams<Element> make_backward_params(const AttentionCall& c) {
  return {make_params<Element>(c),
          make_view<const Element>(c.d_o, c.batch, c.num_heads_q, c.seqlen_q),
          make_view<Element>(c.dq, c.batch, c.num_heads_q, c.seqlen_q),
          make_view<Element>(c.dk, c.batch, c.num_heads_kv, c.seqlen_kv),
          make_view<Element>(c.dv, c.batch, c.num_heads_kv, c.seqlen_kv),
          c.softmax_scale};
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
