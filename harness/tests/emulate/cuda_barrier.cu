// cuda::barrier, memcpy_async and the copies of cuda::device; memcpy_async of cooperative groups. Prints
// "ok".
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cuda/barrier>
#include <utility>

namespace cg = cooperative_groups;
namespace cde = cuda::device::experimental;
using barrier = cuda::barrier<cuda::thread_scope_block>;

constexpr int N = 128;

#pragma nv_diag_suppress static_var_with_dynamic_init

// Two buffers, each with a barrier: one is filled while the other is read.
__global__ void double_buffered(float* out, const float* in, int tiles) {
  __shared__ float tile[2][N];
  __shared__ barrier bars[2];
  const int i = threadIdx.x;
  if (i == 0) {
    init(&bars[0], blockDim.x);
    init(&bars[1], blockDim.x);
  }
  __syncthreads();
  cuda::memcpy_async(&tile[0][i], &in[i], cuda::aligned_size_t<sizeof(float)>(sizeof(float)), bars[0]);
  float sum = 0;
  for (int k = 0; k < tiles; k++) {
    if (k + 1 < tiles)
      cuda::memcpy_async(&tile[(k + 1) % 2][i], &in[(k + 1) * N + i], sizeof(float), bars[(k + 1) % 2]);
    bars[k % 2].arrive_and_wait();
    sum += tile[k % 2][N - 1 - i];
    __syncthreads();
  }
  out[i] = sum;
}

// A group's copy; arrival and wait apart.
__global__ void split(float* out, const float* in) {
  __shared__ alignas(16) float tile[N];
  __shared__ barrier bar;
  auto block = cg::this_thread_block();
  if (block.thread_rank() == 0) init(&bar, block.size());
  block.sync();
  cuda::memcpy_async(block, tile, in, cuda::aligned_size_t<16>(sizeof(tile)), bar);
  barrier::arrival_token token = bar.arrive();
  const float own = threadIdx.x;
  bar.wait(std::move(token));
  out[threadIdx.x] = own + tile[(threadIdx.x + 1) % N];
}

// One thread copies for all, and the barrier counts the bytes.
__global__ void bulk(float* out, const float* in) {
  __shared__ alignas(128) float tile[N];
  __shared__ barrier bar;
  if (threadIdx.x == 0) {
    init(&bar, blockDim.x);
    cde::fence_proxy_async_shared_cta();
  }
  __syncthreads();
  barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cde::cp_async_bulk_global_to_shared(tile, in, sizeof(tile), bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, sizeof(tile));
  } else {
    token = bar.arrive();
  }
  bar.wait(std::move(token));
  tile[threadIdx.x] += 1;
  cde::fence_proxy_async_shared_cta();
  __syncthreads();
  if (threadIdx.x == 0) {
    cde::cp_async_bulk_shared_to_global(out, tile, sizeof(tile));
    cde::cp_async_bulk_commit_group();
    cde::cp_async_bulk_wait_group_read<0>();
  }
}

__global__ void staged(float* out, const float* in) {
  __shared__ alignas(16) float tile[2][N];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, tile[0], in, sizeof(tile[0]));
  const int n = N;
  cg::memcpy_async(block, tile[1], n, in + n, n);
  cg::wait_prior<1>(block);
  float sum = tile[0][N - 1 - threadIdx.x];
  cg::wait(block);
  out[threadIdx.x] = sum + tile[1][N - 1 - threadIdx.x];
}

int main() {
  float *in, *out[4];
  cudaMallocManaged(&in, 4 * N * sizeof(float));
  for (float*& one : out) cudaMallocManaged(&one, N * sizeof(float));
  for (int i = 0; i < 4 * N; i++) in[i] = i;
  double_buffered<<<1, N>>>(out[0], in, 4);
  split<<<1, N>>>(out[1], in);
  bulk<<<1, N>>>(out[2], in);
  staged<<<1, N>>>(out[3], in);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < N; i++) {
    right = right && out[0][i] == 4 * (N - 1 - i) + 6 * N && out[1][i] == i + (i + 1) % N;
    right = right && out[2][i] == i + 1 && out[3][i] == 2 * (N - 1 - i) + N;
  }
  printf(right ? "ok\n" : "wrong\n");
}
