// The vendor's matrix product, when it is there: cuBLAS is opened at run time, never linked.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace flashsteps {

// A launch of C = A B in bf16 with FP32 accumulation, all n x n, by cuBLAS; owns the matrices, filled with
// N(0, 1): on zeros a GPU draws less power and clocks higher than any real product would. Empty when there is
// no cuBLAS, or not enough memory for it.
std::function<void()> make_cublas_matmul(int n, cudaStream_t stream);

}  // namespace flashsteps
