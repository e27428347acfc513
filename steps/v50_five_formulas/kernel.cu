// v50: the backward pass by its formulas, in FP32. One thread computes a row of dQ, or of dK and dV.
//
//   P = exp(scale * Q K^T - LSE)   dV = P^T dO
//   dP = dO V^T                    dS = P * (dP - D), D = rowsum(P * dP)
//   dQ = scale * dS K              dK = scale * dS^T Q
//
// The forward pass has kept no P: whoever needs one of its elements computes it again, from Q, K and LSE. dQ
// is a sum over keys, dK and dV are sums over queries; so there is a kernel for each, and no two threads add
// to one row.
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int NUM_THREADS = 64;  // rows of a CTA, one thread each

template <int HEAD_DIM, typename Element>
__device__ float dot(const Element* a, const Element* b) {
  float sum = 0.0f;
#pragma unroll 16
  for (int d = 0; d < HEAD_DIM; ++d) sum += float(a[d]) * float(b[d]);
  return sum;
}

// One query, as both kernels need it.
template <typename Element>
struct Query {
  const Element *q_row, *d_o_row;
  float lse_log2;

  // The element of P for a key that the query sees.
  template <int HEAD_DIM>
  __device__ float p(const Element* k_row, float scale_log2) const {
    return exp2f(dot<HEAD_DIM>(q_row, k_row) * scale_log2 - lse_log2);
  }
  template <int HEAD_DIM>
  __device__ float dp(const Element* v_row) const {
    return dot<HEAD_DIM>(d_o_row, v_row);
  }
};
template <typename Element>
__device__ Query<Element> query_of(const BackwardParams<Element>& params, int batch, int head, int row) {
  return {.q_row = params.q_head(batch, head) + row * params.q.row_stride,
          .d_o_row = params.d_o_head(batch, head) + row * params.d_o.row_stride,
          .lse_log2 = params.lse_head(batch, head)[row] * kLog2e};
}

// D of all rows, [batch, num_heads_q, seqlen_q]: the first kernel leaves it for the second.
template <typename Element>
__device__ float* delta_of(const BackwardParams<Element>& params, int batch, int head) {
  return static_cast<float*>(params.workspace) +
         (int64_t(batch) * params.num_heads_q + head) * params.seqlen_q;
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) dq_kernel(const BackwardParams<Element> params) {
  const int row = blockIdx.x * NUM_THREADS + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  const Query<Element> query = query_of(params, batch, head, row);
  const Element* const k_head = params.k_head(batch, head);
  const Element* const v_head = params.v_head(batch, head);
  const float scale_log2 = params.softmax_scale_log2;
  const int num_keys = params.template visible_keys<CAUSAL>(row, params.kv_length(batch));

  // D needs all of the row before dS has its first element.
  float delta = 0.0f;
  for (int key = 0; key < num_keys; ++key) {
    const float p = query.template p<HEAD_DIM>(k_head + key * params.k.row_stride, scale_log2);
    delta += p * query.template dp<HEAD_DIM>(v_head + key * params.v.row_stride);
  }
  delta_of(params, batch, head)[row] = delta;

  float dq[HEAD_DIM] = {};
  for (int key = 0; key < num_keys; ++key) {
    const Element* const k_row = k_head + key * params.k.row_stride;
    const float p = query.template p<HEAD_DIM>(k_row, scale_log2);
    const float ds = p * (query.template dp<HEAD_DIM>(v_head + key * params.v.row_stride) - delta);
#pragma unroll
    for (int d = 0; d < HEAD_DIM; ++d) dq[d] += ds * float(k_row[d]);
  }
  Element* const dq_row = params.dq_head(batch, head) + row * params.dq.row_stride;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; ++d) dq_row[d] = Element(dq[d] * params.softmax_scale);
}

// Under GQA several query heads read the same key: its dK and dV are sums over all of them.
template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) dk_dv_kernel(const BackwardParams<Element> params) {
  const int key = blockIdx.x * NUM_THREADS + threadIdx.x;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  if (key >= params.seqlen_kv) return;
  const Element* const k_row = params.k.head(batch, kv_head) + key * params.k.row_stride;
  const Element* const v_row = params.v.head(batch, kv_head) + key * params.v.row_stride;
  // A key at or beyond kv_len is nobody's, and may be NaN: its gradients are zero.
  const int kv_len = params.kv_length(batch);
  const int first_query = key < kv_len ? params.template first_query<CAUSAL>(key, kv_len) : params.seqlen_q;

  float dk[HEAD_DIM] = {}, dv[HEAD_DIM] = {};
  for (int h = 0; h < params.group_size(); ++h) {
    const int head = kv_head * params.group_size() + h;
    for (int row = first_query; row < params.seqlen_q; ++row) {
      const Query<Element> query = query_of(params, batch, head, row);
      const float p = query.template p<HEAD_DIM>(k_row, params.softmax_scale_log2);
      const float ds = p * (query.template dp<HEAD_DIM>(v_row) - delta_of(params, batch, head)[row]);
#pragma unroll
      for (int d = 0; d < HEAD_DIM; ++d) {
        dk[d] += ds * float(query.q_row[d]);
        dv[d] += p * float(query.d_o_row[d]);
      }
    }
  }
  Element* const dk_row = params.dk_head(batch, kv_head) + key * params.dk.row_stride;
  Element* const dv_row = params.dv_head(batch, kv_head) + key * params.dv.row_stride;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; ++d) {
    dk_row[d] = Element(dk[d] * params.softmax_scale);
    dv_row[d] = Element(dv[d]);
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_backward(const BackwardParams<Element>& params, Stream stream) {
  const dim3 queries(ceil_div(params.seqlen_q, NUM_THREADS), params.num_heads_q, params.batch);
  launch(dq_kernel<Element, HEAD_DIM, CAUSAL>, queries, dim3(NUM_THREADS), 0, stream, params);
  const dim3 keys(ceil_div(params.seqlen_kv, NUM_THREADS), params.num_heads_kv, params.batch);
  launch(dk_dv_kernel<Element, HEAD_DIM, CAUSAL>, keys, dim3(NUM_THREADS), 0, stream, params);
}

size_t workspace_bytes(const AttentionCall& call) {
  return sizeof(float) * call.batch * call.num_heads_q * call.seqlen_q;
}

constexpr StepInfo kStep = {
    .title = "The gradients by their formulas: one thread computes a row of dQ, or of dK and dV",
    .removes = "nothing: the first step of the backward pass",
    .part = Part::kBackward,
    .dtypes = {DType::kFp16, DType::kBf16, DType::kFp32},
    .workspace_bytes = workspace_bytes,
    .backward = true,
};
REGISTER_STEP(launch_backward, kStep);

}  // namespace STEP_NAMESPACE
