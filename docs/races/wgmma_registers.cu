// C = A B by wgmma, with A in registers. Of a tile of A all elements are the same, and B's are 1: it does not
// matter where they are.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int M = 64, N = 8, K = 16, PRODUCTS = 16, NUM_TILES = 8;

__device__ uint64_t descriptor(const void* tile) {  // rows of 32 bytes, swizzled
  return (__cvta_generic_to_shared(tile) & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(256 >> 4) << 32 |
         uint64_t(3) << 62;
}

__global__ void __launch_bounds__(128) multiply(const uint32_t* pairs, float* c) {
  __shared__ __align__(1024) __nv_bfloat16 tile_b[N * K];
  tile_b[threadIdx.x] = __float2bfloat16(1);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[4] = {};
  uint32_t a[4];
  for (int tile = 0; tile < NUM_TILES; tile++) {
    for (int i = 0; i < 4; i++) a[i] = pairs[tile];  // the write
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < PRODUCTS; i++)
      asm volatile(  // the wgmma
          "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, "
          "1, 0;"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(tile_b)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#ifdef MENDED
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");  // A has been read
#endif
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
  for (int i = 0; i < 4; i++) c[(blockIdx.x * 128 + threadIdx.x) * 4 + i] = d[i];
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * M * N;
  __nv_bfloat162* a;
  float *c, expected = 0;
  int wrong = 0;
  cudaMallocManaged(&a, NUM_TILES * sizeof(*a));
  cudaMallocManaged(&c, elements * sizeof(float));
  for (int i = 0; i < NUM_TILES; i++) a[i] = __float2bfloat162_rn(i + 1), expected += (i + 1) * PRODUCTS * K;
  multiply<<<blocks, 128>>>(reinterpret_cast<uint32_t*>(a), c);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < elements; i++) wrong += c[i] != expected;
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
