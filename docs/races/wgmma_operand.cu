// C = A B by wgmma, with A in tiles that all threads write to shared memory. Of a tile of A all elements are
// the same, and B's are 1: it does not matter how the tiles are laid out.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int M = 64, N = 8, K = 16, PANELS = 16, NUM_TILES = 4;  // a tile of A has PANELS times K columns

__device__ uint64_t descriptor(const void* panel) {  // rows of 32 bytes, swizzled
  return (__cvta_generic_to_shared(panel) & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(256 >> 4) << 32 |
         uint64_t(3) << 62;
}

__global__ void __launch_bounds__(128) multiply(const __nv_bfloat16* a_of_tile, float* c) {
  __shared__ __align__(1024) __nv_bfloat16 tile_a[PANELS][M * K], tile_b[N * K];
  float d[4] = {};
  tile_b[threadIdx.x] = __float2bfloat16(1);
  for (int tile = 0; tile < NUM_TILES; tile++) {
    for (int i = threadIdx.x; i < PANELS * M * K; i += 128) tile_a[0][i] = a_of_tile[tile];  // the write
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();  // the tile is there
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int panel = 0; panel < PANELS; panel++)
      asm volatile(  // the wgmma
          "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "l"(descriptor(tile_a[panel])), "l"(descriptor(tile_b)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#ifdef MENDED
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");  // A has been read
#endif
    __syncthreads();  // all warps may overwrite the tile
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
  for (int i = 0; i < 4; i++) c[(blockIdx.x * 128 + threadIdx.x) * 4 + i] = d[i];
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * M * N;
  __nv_bfloat16* a;
  float *c, expected = 0;
  int wrong = 0;
  cudaMallocManaged(&a, NUM_TILES * sizeof(__nv_bfloat16));
  cudaMallocManaged(&c, elements * sizeof(float));
  for (int i = 0; i < NUM_TILES; i++) a[i] = __float2bfloat16(i + 1), expected += (i + 1) * PANELS * K;
  multiply<<<blocks, 128>>>(a, c);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < elements; i++) wrong += c[i] != expected;
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
