// CTAs of a grid that wait for each other: a cooperative launch, with a bulk copy, and flags. Prints "ok".
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cuda/barrier>

namespace cg = cooperative_groups;

#pragma nv_diag_suppress static_var_with_dynamic_init

// Each round reads what other CTAs have written in the one before.
__global__ void diffuse(float* a, float* b, int n, int rounds) {
  __shared__ float edge[2];
  __shared__ alignas(16) float first[4];  // every CTA has a copy
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  if (threadIdx.x == 0) init(&bar, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::device::memcpy_async_tx(first, a, cuda::aligned_size_t<16>(16), bar);
    (void)cuda::device::barrier_arrive_tx(bar, 1, 16);
  }
  bar.wait_parity(false);
  cg::grid_group grid = cg::this_grid();
  for (int k = 0; k < rounds; k++) {
    for (int i = grid.thread_rank(); i < n; i += grid.size()) b[i] = a[i] + a[(i + 77) % n];
    if (threadIdx.x < 2) edge[threadIdx.x] = k;
    grid.sync();
    if (edge[0] != k || first[3] != 3 || !grid.is_valid()) b[0] = -1;
    float* last = a;
    a = b;
    b = last;
    grid.sync();
  }
}

// A chain: every CTA waits for its predecessor's sum.
__global__ void running_sums(int* sums, int* ready, const int* in) {
  __shared__ int before;
  if (threadIdx.x == 0) {
    before = 0;
    if (blockIdx.x > 0) {
      while (atomicAdd(&ready[blockIdx.x - 1], 0) == 0) {
      }
      __threadfence();
      before = sums[blockIdx.x - 1];
    }
    int sum = before;
    for (unsigned i = 0; i < blockDim.x; i++) sum += in[blockIdx.x * blockDim.x + i];
    sums[blockIdx.x] = sum;
    __threadfence();
    atomicExch(&ready[blockIdx.x], 1);
  }
}

// All CTAs meet, by hand.
__global__ void meet(volatile int* arrived, int* seen) {
  if (threadIdx.x == 0) {
    seen[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    atomicAdd((int*)arrived, 1);
    while (*arrived < int(gridDim.x)) {
    }
    __threadfence();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++) sum += seen[i];
    seen[gridDim.x + blockIdx.x] = sum;
  }
}

int main() {
  const int n = 500, rounds = 3;
  float *a, *b, expected[2][n];
  cudaMallocManaged(&a, n * sizeof(float));
  cudaMallocManaged(&b, n * sizeof(float));
  for (int i = 0; i < n; i++) a[i] = expected[0][i] = i % 7;
  int n_argument = n, rounds_argument = rounds;
  void* arguments[] = {&a, &b, &n_argument, &rounds_argument};
  bool right = cudaLaunchCooperativeKernel((void*)diffuse, dim3(4), dim3(64), arguments) == cudaSuccess;
  right = cudaDeviceSynchronize() == cudaSuccess && right;
  for (int k = 0; k < rounds; k++)
    for (int i = 0; i < n; i++) expected[(k + 1) % 2][i] = expected[k % 2][i] + expected[k % 2][(i + 77) % n];
  for (int i = 0; i < n; i++) right = right && b[i] == expected[rounds % 2][i];
  if (!right) printf("diffuse\n");

  const int ctas = 8;
  int *sums, *ready, *in, *seen;
  cudaMallocManaged(&sums, ctas * sizeof(int));
  cudaMallocManaged(&ready, (ctas + 1) * sizeof(int));
  cudaMallocManaged(&in, ctas * 32 * sizeof(int));
  cudaMallocManaged(&seen, 2 * ctas * sizeof(int));
  for (int i = 0; i <= ctas; i++) ready[i] = 0;
  for (int i = 0; i < ctas * 32; i++) in[i] = 1;
  running_sums<<<ctas, 32>>>(sums, ready, in);
  meet<<<ctas, 32>>>(ready + ctas, seen);
  right = cudaDeviceSynchronize() == cudaSuccess && right;
  for (int i = 0; i < ctas; i++)
    right = right && sums[i] == 32 * (i + 1) && seen[ctas + i] == ctas * (ctas + 1) / 2;
  printf(right ? "ok\n" : "wrong\n");
}
