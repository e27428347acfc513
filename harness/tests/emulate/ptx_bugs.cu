// Four kernels with inline PTX, each of them wrong.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

constexpr int N = 128;

// The second tile is read without a wait for its copy. The mbarrier's first phase, for which all wait, says
// nothing of it.
__global__ void sum_two_tiles(const float* in, float* out) {
  __shared__ alignas(128) float tiles[2][N];
  __shared__ alignas(8) uint64_t bar;
  const uint32_t bar_address = static_cast<uint32_t>(__cvta_generic_to_shared(&bar));
  const int i = threadIdx.x;
  auto load = [&](int tile) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(tiles[tile]));
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar_address),
                 "n"(sizeof(tiles[0])));
    asm volatile(  // the copy
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(in + tile * N), "n"(sizeof(tiles[0])), "r"(bar_address)
        : "memory");
  };
  auto wait = [&](int parity) {
    uint32_t done = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(bar_address), "r"(parity)
                   : "memory");
    }
  };
  if (i == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar_address));
  __syncthreads();
  if (i == 0) load(0);
  wait(0);
  __syncthreads();  // or some might still wait for phase 0 when phase 1 is over
  if (i == 0) load(1);
  __syncthreads();
  float sum = tiles[0][i];
  sum += tiles[1][i];
  out[i] = sum;
  wait(1);
}

// The next numbers are written while a reduction may still read the ones before: a wait for it is missing.
__global__ void add_twice(float* sums) {
  __shared__ alignas(16) float numbers[N];
  for (int round = 0; round < 2; round++) {
    numbers[threadIdx.x] = round;  // the next numbers
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0)
      asm volatile(  // adds
          "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
          "cp.async.bulk.commit_group;" ::"l"(sums),
          "r"(static_cast<uint32_t>(__cvta_generic_to_shared(numbers))), "n"(sizeof(numbers))
          : "memory");
    __syncthreads();
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// One thread stores what others may not have written yet: a barrier is missing.
__global__ void store_early(float* out) {
  __shared__ alignas(16) float many[64 * N];
  for (int i = threadIdx.x; i < 64 * N; i += N) many[i] = i;  // fills
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x == N - 1)
    asm volatile(  // stores
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;\n"
        "cp.async.bulk.wait_group 0;" ::"l"(out),
        "r"(static_cast<uint32_t>(__cvta_generic_to_shared(many))), "n"(sizeof(many))
        : "memory");
}

// Threads come to a barrier in warps.
__global__ void meet(int threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");  // 100
}

int main() {
  float *in, *out;
  cudaMallocManaged(&in, 2 * N * sizeof(float));
  cudaMallocManaged(&out, 64 * N * sizeof(float));
  for (int i = 0; i < 2 * N; i++) in[i] = 1;
  sum_two_tiles<<<1, N>>>(in, out);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  add_twice<<<1, N>>>(out);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  store_early<<<1, N>>>(out);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  meet<<<1, N>>>(100);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
