// Two waits are missing: for a barrier's copies, and for those of a group.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_runtime.h>

#include <cuda/barrier>
#include <utility>

namespace cg = cooperative_groups;
#pragma nv_diag_suppress static_var_with_dynamic_init
using barrier = cuda::barrier<cuda::thread_scope_block>;

__global__ void arrives(float* out, const float* in) {
  __shared__ float tile[64];
  __shared__ barrier bar;
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(&tile[threadIdx.x], &in[threadIdx.x], sizeof(float), bar);  // a copy
  barrier::arrival_token token = bar.arrive();
  out[threadIdx.x] = tile[63 - threadIdx.x];  // before the wait
  bar.wait(std::move(token));
}

__global__ void reads(float* out, const float* in) {
  __shared__ float tile[64];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, tile, in, sizeof(tile));  // a group's copy
  out[threadIdx.x] = tile[threadIdx.x];             // and no wait
  cg::wait(block);
}

int main() {
  float *in, *out;
  cudaMallocManaged(&in, 64 * sizeof(float));
  cudaMallocManaged(&out, 64 * sizeof(float));
  for (int i = 0; i < 64; i++) in[i] = i;
  arrives<<<1, 64>>>(out, in);
  reads<<<1, 64>>>(out, in);
  cudaDeviceSynchronize();
}
