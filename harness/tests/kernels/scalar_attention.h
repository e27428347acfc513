// One query row by one thread, straight from global memory, in FP32: what the tests' own steps compute with.
#pragma once

#include "common/step.h"

namespace STEP_NAMESPACE {

// Of the keys seen so far: their largest score in units of log2, and relative to it the sum of the exponentials and of
// the values.
template <int HEAD_DIM>
struct RowState {
  float row_max = -INFINITY, row_sum = 0.0f;
  float acc_o[HEAD_DIM] = {};
};

// Adds keys first_key .. end_key - 1.
template <typename Element, int HEAD_DIM>
__device__ void attend(RowState<HEAD_DIM>& state, const AttentionParams<Element>& params, int batch, int head,
                       int row, int first_key, int end_key) {
  const Element* const q_row = params.q_head(batch, head) + row * params.q.row_stride;
  for (int key = first_key; key < end_key; ++key) {
    const Element* const k_row = params.k_head(batch, head) + key * params.k.row_stride;
    const Element* const v_row = params.v_head(batch, head) + key * params.v.row_stride;
    float score = 0.0f;
    for (int d = 0; d < HEAD_DIM; ++d) score += float(q_row[d]) * float(k_row[d]);
    score *= params.softmax_scale_log2;
    const float new_max = fmaxf(state.row_max, score);
    const float row_scale = exp2f(state.row_max - new_max), p = exp2f(score - new_max);
    state.row_sum = state.row_sum * row_scale + p;
    state.row_max = new_max;
    for (int d = 0; d < HEAD_DIM; ++d) state.acc_o[d] = state.acc_o[d] * row_scale + p * float(v_row[d]);
  }
}

template <typename Element, int HEAD_DIM>
__device__ void store(const RowState<HEAD_DIM>& state, const AttentionParams<Element>& params, int batch,
                      int head, int row) {
  const bool empty = state.row_sum == 0.0f;
  Element* const o_row = params.o_head(batch, head) + row * params.o.row_stride;
  for (int d = 0; d < HEAD_DIM; ++d) o_row[d] = Element(empty ? 0.0f : state.acc_o[d] / state.row_sum);
  params.store_lse(batch, head, row, empty ? -INFINITY : state.row_max * kLn2 + logf(state.row_sum));
}

}  // namespace STEP_NAMESPACE
