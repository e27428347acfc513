// A tensor as a kernel sees it: a typed pointer, its shape and its strides.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// [batch, num_heads, num_rows, head_dim]. Strides are in elements; the elements of a row are contiguous.
template <typename T>
struct View {
  T* data;
  int batch, num_heads, num_rows;
  int64_t batch_stride, head_stride, row_stride;

  // One (batch, head)'s matrix: its row i begins at head(b, h) + i * row_stride.
  __device__ T* head(int b, int h) const { return data + b * batch_stride + h * head_stride; }
};
template <typename T>
View(T*, int, int, int, int64_t, int64_t, int64_t) -> View<T>;  // clang 14 does not find it by itself

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
