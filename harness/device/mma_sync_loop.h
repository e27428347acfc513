// What mma.sync alone gives: a ceiling for every kernel that computes with it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace flashsteps {

// A launch of mma.sync.m16n8k16 (bf16, FP32 accumulation) on every SM, from registers into registers: no
// loads, no stores, and enough independent products that none waits for another. `flops` receives what a
// launch computes.
std::function<void()> make_mma_sync_loop(cudaStream_t stream, double& flops);

}  // namespace flashsteps
