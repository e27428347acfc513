// Copies by cp.async.bulk, in and out of shared memory, with an mbarrier. Prints "ok".
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

constexpr int N = 256;

__global__ void add_one(float* out, const float* in) {
  __shared__ alignas(128) float tile[N];
  __shared__ alignas(8) uint64_t bar;
  const uint32_t tile_address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  const uint32_t bar_address = static_cast<uint32_t>(__cvta_generic_to_shared(&bar));
  const int i = threadIdx.x;
  if (i == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar_address), "n"(1));
    asm volatile("fence.proxy.async;");
  }
  __syncthreads();
  if (i == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar_address),
                 "n"(sizeof(tile))
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            tile_address),
        "l"(in + blockIdx.x * N), "n"(sizeof(tile)), "r"(bar_address)
        : "memory");
  }
  uint32_t done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, "
        "0, p; }"
        : "=r"(done)
        : "r"(bar_address), "r"(0)
        : "memory");
  } while (!done);
  tile[i] += 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (i == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + blockIdx.x * N),
                 "r"(tile_address), "n"(sizeof(tile))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

int main() {
  const int ctas = 3;
  float *in, *out;
  cudaMallocManaged(&in, ctas * N * sizeof(float));
  cudaMallocManaged(&out, ctas * N * sizeof(float));
  for (int i = 0; i < ctas * N; i++) in[i] = i;
  add_one<<<ctas, N>>>(out, in);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < ctas * N; i++) right = right && out[i] == i + 1;
  printf(right ? "ok\n" : "wrong\n");
}
