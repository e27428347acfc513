// The main function of `flashsteps source STEP --main`, behind the step's file: one small problem, with every
// element type that the step knows, against a plain loop.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "common/cuda/check.h"
#include "common/step.h"
#include "harness/judge/gates.h"

namespace flashsteps {

constexpr int kBatch = 2, kHeadsQ = 4, kHeadsKv = 2, kQueries = 100, kKeys = 200, kHeadDim = 64;

// Freed when the program ends.
template <typename T>
T* on_device(const std::vector<T>& values) {
  T* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, values.size() * sizeof(T)));
  CUDA_CHECK(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

template <typename T>
std::vector<T> on_host(const T* data, size_t size) {
  std::vector<T> values(size);
  CUDA_CHECK(cudaMemcpy(values.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

// [batch, heads, rows, head_dim], contiguous.
TensorView view_of(void* data, int heads, int rows) {
  return {data, int64_t(heads) * rows * kHeadDim, int64_t(rows) * kHeadDim, kHeadDim};
}

// Sums of twelve uniform numbers, nearly normal: the softmax of much smaller ones would hide mistakes.
template <typename Element>
std::vector<Element> random_values(int heads, int rows, uint32_t seed) {
  std::vector<Element> values(size_t(kBatch) * heads * rows * kHeadDim);
  for (Element& value : values) {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) {
      seed = seed * 1664525u + 1013904223u;
      sum += float(seed >> 8) * 0x1p-24f;
    }
    value = Element(sum);
  }
  return values;
}

// The numbers that a step computes with. With AttentionCall::quantize they are rounded to e4m3, with one
// scale for each (batch, KV head), whose numbers are neighbours also in q. The largest becomes `limit`.
template <typename Element>
std::vector<float> computed_values(const std::vector<Element>& values, bool quantize, float limit) {
  std::vector<float> computed;
  for (const Element value : values) computed.push_back(float(value));
  const size_t share = values.size() / (kBatch * kHeadsKv);
  for (size_t begin = 0; quantize && begin < values.size(); begin += share) {
    const auto first = computed.begin() + begin, end = first + share;
    float most = AttentionCall::kLeastQuantized;
    std::for_each(first, end, [&](float x) { most = std::max(most, std::abs(x)); });
    const float factor = limit / most, descale = most / limit;
    std::for_each(first, end, [&](float& x) { x = float(__nv_fp8_e4m3(x * factor)) * descale; });
  }
  return computed;
}

// Of one query: its output and its log-sum-exp, in three plain loops.
struct ReferenceRow {
  float o[kHeadDim] = {};
  float lse = 0.0f;
};
ReferenceRow reference_row(const float* q, const float* k, const float* v, int num_keys, float scale) {
  ReferenceRow row;
  std::vector<float> scores(num_keys, 0.0f);
  for (int key = 0; key < num_keys; ++key) {
    for (int d = 0; d < kHeadDim; ++d) scores[key] += q[d] * k[key * kHeadDim + d];
    scores[key] *= scale;
  }
  const float max = *std::max_element(scores.begin(), scores.end());
  float sum = 0.0f;
  for (int key = 0; key < num_keys; ++key) {
    const float p = std::exp(scores[key] - max);
    sum += p;
    for (int d = 0; d < kHeadDim; ++d) row.o[d] += p * v[key * kHeadDim + d];
  }
  for (float& o : row.o) o /= sum;
  row.lse = max + std::log(sum);
  return row;
}

template <typename Element, typename Cache = Element>
bool run_and_check(const Step& step, DType dtype) {
  using Output = typename OutputOf<Element>::type;
  const auto q = random_values<Element>(kHeadsQ, kQueries, 1);
  const auto k = random_values<Cache>(kHeadsKv, kKeys, 2);
  const auto v = random_values<Cache>(kHeadsKv, kKeys, 3);
  const size_t rows = size_t(kBatch) * kHeadsQ * kQueries;
  AttentionCall call{};
  call.dtype = dtype;
  call.fp8_cache = !std::is_same_v<Cache, Element>;
  call.fast = step.info.fast;
  call.quantize = step.info.quantizes;
  call.batch = kBatch, call.num_heads_q = kHeadsQ, call.num_heads_kv = kHeadsKv;
  call.seqlen_q = kQueries, call.seqlen_kv = kKeys, call.head_dim = kHeadDim;
  call.causal = true;
  call.softmax_scale = 1.0f / std::sqrt(float(kHeadDim));
  call.q = view_of(on_device(q), kHeadsQ, kQueries);
  call.k = view_of(on_device(k), kHeadsKv, kKeys);
  call.v = view_of(on_device(v), kHeadsKv, kKeys);
  // What is not written stays NaN.
  call.o = view_of(on_device(std::vector<Output>(rows * kHeadDim, Output(NAN))), kHeadsQ, kQueries);
  const bool has_lse = !step.info.no_lse;
  if (has_lse) call.lse = on_device(std::vector<float>(rows, NAN));
  call.configuration = configuration_of(step.info, call);
  if (step.info.workspace_bytes != nullptr) {
    call.workspace_bytes = step.info.workspace_bytes(call);
    call.workspace = on_device(std::vector<char>(call.workspace_bytes));
  }
  if (step.info.uses_counters) call.counters = on_device(std::vector<unsigned>(kNumCounters, 0));
  step.run(call, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());

  const auto o = on_host(static_cast<const Output*>(call.o.data), rows * kHeadDim);
  const auto lse = has_lse ? on_host(call.lse, rows) : std::vector<float>{};
  const auto computed_q = computed_values(q, call.quantize, AttentionCall::kLargestFastQk);
  const auto computed_k = computed_values(k, call.quantize, AttentionCall::kLargestFastQk);
  const auto computed_v = computed_values(v, call.quantize, AttentionCall::kLargestQuantizedV);
  const Gates gate = call.quantize ? gates(DType::kE4m3, true, true) : gates(dtype, call.fast, has_lse);
  double worst_row = 0.0, worst_element = 0.0, worst_lse = 0.0;
  bool right = true;  // written so that NaN fails
  for (size_t row = 0; row < rows; ++row) {
    const size_t head = row / kQueries, kv_head = head / (kHeadsQ / kHeadsKv);
    const int query = int(row % kQueries);
    const ReferenceRow expected = reference_row(
        &computed_q[row * kHeadDim], &computed_k[kv_head * kKeys * kHeadDim],
        &computed_v[kv_head * kKeys * kHeadDim], query + 1 + kKeys - kQueries, call.softmax_scale);
    double error = 0.0, norm = 0.0;
    for (int d = 0; d < kHeadDim; ++d) {
      const double difference = double(float(o[row * kHeadDim + d])) - expected.o[d];
      error += difference * difference;
      norm += double(expected.o[d]) * expected.o[d];
      worst_element = std::max(worst_element, std::abs(difference));
    }
    error = std::sqrt(error / norm);
    const double lse_error = has_lse ? std::abs(double(lse[row]) - expected.lse) : 0.0;
    // In e4m3 relative to O alone, and without what may be cut off of scores: both are small for N(0, 1).
    right = right && error <= gate.row_nrmse && lse_error <= lse_gate(gate, kHeadDim, kKeys, expected.lse);
    worst_row = std::max(worst_row, error);
    worst_lse = std::max(worst_lse, lse_error);
  }
  std::printf(
      "%s  %s %s: largest error of an element of o %.1e, of a row of o %.1e of its length, of lse %.1e\n",
      right ? "PASS" : "FAIL", step.name, name(dtype).c_str(), worst_element, worst_row, worst_lse);
  return right;
}

}  // namespace flashsteps

int main() {
  using namespace flashsteps;
  const Step& step = registered_steps().front();
  const bool fp8_cache = step.info.fp8_cache;
  bool right = true;
  try {
    const auto check16 = [&]<typename Element>(Element, DType dtype) {
      if (!step.info.dtypes.has(dtype)) return true;
      return fp8_cache ? run_and_check<Element, __nv_fp8_e4m3>(step, dtype)
                       : run_and_check<Element>(step, dtype);
    };
    right = check16(__half(), DType::kFp16) && right;
    right = check16(__nv_bfloat16(), DType::kBf16) && right;
    if (step.info.dtypes.has(DType::kFp32)) right = run_and_check<float>(step, DType::kFp32) && right;
    if (step.info.dtypes.has(DType::kE4m3)) right = run_and_check<__nv_fp8_e4m3>(step, DType::kE4m3) && right;
  } catch (const std::exception& error) {
    std::printf("FAIL  %s: %s\n", step.name, error.what());
    return 1;
  }
  return right ? 0 : 1;
}
