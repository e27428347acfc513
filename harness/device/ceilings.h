// Launches of what steps are compared with: see kCeilings in backend.h.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace flashsteps {

// The vendor's matrix product, when it is there: cuBLAS is opened at run time, never linked. C = A B in bf16
// with FP32 accumulation, all n x n; owns the matrices, filled with N(0, 1): on zeros a GPU draws less power
// and clocks higher than any real product would. Empty when there is no cuBLAS, or not enough memory for it.
std::function<void()> make_cublas_matmul(int n, cudaStream_t stream);

// What mma.sync alone gives: a ceiling for every kernel that computes with it. mma.sync.m16n8k16 (bf16, FP32
// accumulation) on every SM, from registers into registers: no loads, no stores, and enough independent
// products that none waits for another. `flops` receives what a launch computes.
std::function<void()> make_mma_sync_loop(cudaStream_t stream, double& flops);

}  // namespace flashsteps
