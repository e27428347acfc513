// v51: D = rowsum(dO * O). It is the same sum as v50's, because O = P V, but it needs no key. So P and dP of
// a row of dQ are computed once, not twice.
//
//   P = exp(scale * Q K^T - LSE)      dV = P^T dO
//   dP = dO V^T                       dS = P * (dP - D), D = rowsum(dO * O)
//   dQ = scale * dS K                 dK = scale * dS^T Q
//
// The forward pass has stored LSE, but not P. An element of P is computed again where it is needed, from Q, K
// and LSE. A row of dQ is a sum over keys; a row of dK or dV is a sum over queries. So there are two kernels,
// and each row of a gradient has one quad of lanes that adds to it.
#include "common/step.h"

namespace STEP_NAMESPACE {

// k, v, dk and dv of a row are 512 values at D = 128, twice what a thread's registers hold. So a quad, four
// neighbouring lanes, shares the row: lane i has elements i, i + 4, i + 8, ...
constexpr int QUAD = 4;
constexpr int NUM_ROWS = 32;  // of a CTA
constexpr int NUM_THREADS = NUM_ROWS * QUAD;
template <int HEAD_DIM>
constexpr int PART = HEAD_DIM / QUAD;  // elements of a row that a lane has

// The functions below take a row's address plus the lane's number in its quad, so that the lane's elements
// are row[0], row[QUAD], row[2 * QUAD], ...
template <int N, typename Element>
__device__ void load_part(Element (&part)[N], const Element* row) {
#pragma unroll
  for (int i = 0; i < N; ++i) part[i] = row[i * QUAD];
}

// The dot product of two rows. All lanes of the quad get it. Other quads may be in another iteration, or have
// left.
template <int N, typename Element>
__device__ float dot(const Element (&part)[N], const Element* row) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += float(part[i]) * float(row[i * QUAD]);
  const unsigned quad = 0xfu << (threadIdx.x % 32 / QUAD * QUAD);
  sum += __shfl_xor_sync(quad, sum, 1);
  return sum + __shfl_xor_sync(quad, sum, 2);
}

template <int N, typename Element>
__device__ void add_scaled(float (&sum)[N], float factor, const Element* row) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] += factor * float(row[i * QUAD]);
}

template <int N, typename Element>
__device__ void store_scaled(Element* row, const float (&sum)[N], float scale) {
#pragma unroll
  for (int i = 0; i < N; ++i) row[i * QUAD] = Element(sum[i] * scale);
}

// D of a head's queries. The first kernel leaves it in the workspace, [batch, num_heads_q, seqlen_q].
template <typename Element>
__device__ float* delta_head(const BackwardParams<Element>& params, int batch, int head) {
  return static_cast<float*>(params.workspace) +
         (int64_t(batch) * params.num_heads_q + head) * params.seqlen_q;
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) dq_kernel(const BackwardParams<Element> params) {
  const int query = blockIdx.x * NUM_ROWS + threadIdx.x / QUAD;
  const int lane = threadIdx.x % QUAD;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (query >= params.seqlen_q) return;  // ragged last CTA; there is no barrier that this quad could miss

  Element q[PART<HEAD_DIM>], d_o[PART<HEAD_DIM>];
  load_part(q, params.q_head(batch, head) + query * params.q.row_stride + lane);
  load_part(d_o, params.d_o_head(batch, head) + query * params.d_o.row_stride + lane);
  const float lse_log2 = params.lse_head(batch, head)[query] * kLog2e;
  const Element* const k_head = params.k_head(batch, head) + lane;
  const Element* const v_head = params.v_head(batch, head) + lane;
  const int num_keys = params.template visible_keys<CAUSAL>(query, params.kv_length(batch));

  const float delta = dot(d_o, params.o_head(batch, head) + query * params.o.row_stride + lane);
  if (lane == 0) delta_head(params, batch, head)[query] = delta;

  float dq[PART<HEAD_DIM>] = {};
  for (int key = 0; key < num_keys; ++key) {
    const Element* const k_row = k_head + key * params.k.row_stride;
    const float p = exp2f(dot(q, k_row) * params.softmax_scale_log2 - lse_log2);
    const float dp = dot(d_o, v_head + key * params.v.row_stride);
    const float ds = p * (dp - delta);
    add_scaled(dq, ds, k_row);
  }
  store_scaled(params.dq_head(batch, head) + query * params.dq.row_stride + lane, dq, params.softmax_scale);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS) dk_dv_kernel(const BackwardParams<Element> params) {
  const int key = blockIdx.x * NUM_ROWS + threadIdx.x / QUAD;
  const int lane = threadIdx.x % QUAD;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  if (key >= params.seqlen_kv) return;

  Element k[PART<HEAD_DIM>], v[PART<HEAD_DIM>];
  load_part(k, params.k.head(batch, kv_head) + key * params.k.row_stride + lane);
  load_part(v, params.v.head(batch, kv_head) + key * params.v.row_stride + lane);
  // No query sees a key at or beyond kv_len, which may be NaN: its gradients are zero.
  const int kv_len = params.kv_length(batch);
  const int first_query = key < kv_len ? params.template first_query<CAUSAL>(key, kv_len) : params.seqlen_q;

  float dk[PART<HEAD_DIM>] = {}, dv[PART<HEAD_DIM>] = {};
  for (int h = 0; h < params.group_size(); ++h) {  // the query heads that read this head of K and V
    const int head = kv_head * params.group_size() + h;
    const Element* const q_head = params.q_head(batch, head) + lane;
    const Element* const d_o_head = params.d_o_head(batch, head) + lane;
    const float* const lse = params.lse_head(batch, head);
    const float* const delta = delta_head(params, batch, head);
    for (int query = first_query; query < params.seqlen_q; ++query) {
      const Element* const q_row = q_head + query * params.q.row_stride;
      const Element* const d_o_row = d_o_head + query * params.d_o.row_stride;
      const float p = exp2f(dot(k, q_row) * params.softmax_scale_log2 - lse[query] * kLog2e);
      const float dp = dot(v, d_o_row);
      const float ds = p * (dp - delta[query]);
      add_scaled(dk, ds, q_row);
      add_scaled(dv, p, d_o_row);
    }
  }
  store_scaled(params.dk_head(batch, kv_head) + key * params.dk.row_stride + lane, dk, params.softmax_scale);
  store_scaled(params.dv_head(batch, kv_head) + key * params.dv.row_stride + lane, dv, 1.0f);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_backward(const BackwardParams<Element>& params, Stream stream) {
  const dim3 queries(ceil_div(params.seqlen_q, NUM_ROWS), params.num_heads_q, params.batch);
  launch(dq_kernel<Element, HEAD_DIM, CAUSAL>, queries, dim3(NUM_THREADS), 0, stream, params);
  const dim3 keys(ceil_div(params.seqlen_kv, NUM_ROWS), params.num_heads_kv, params.batch);
  launch(dk_dv_kernel<Element, HEAD_DIM, CAUSAL>, keys, dim3(NUM_THREADS), 0, stream, params);
}

size_t workspace_bytes(const AttentionCall& call) {
  return sizeof(float) * call.batch * call.num_heads_q * call.seqlen_q;
}

constexpr StepInfo kStep = {
    .title = "D is the row sum of dO * O, so a row of dQ needs one pass over the keys",
    .removes = "computing P and dP of dQ's rows twice",
    .part = Part::kBackward,
    .dtypes = {DType::kFp16, DType::kBf16, DType::kFp32},
    .workspace_bytes = workspace_bytes,
    .backward = true,
};
REGISTER_STEP(launch_backward, kStep);

}  // namespace STEP_NAMESPACE
