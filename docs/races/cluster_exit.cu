// Two CTAs of a cluster go through tiles in step: each tells the other when it is done with a tile.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int TILE = 128, NUM_TILES = 4;  // TILE is in floats, and in threads

__device__ uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{.reg .pred p; l: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @!p bra l;}" ::
          "r"(smem_u32(bar)),
      "r"(parity)
      : "memory");
}
__device__ void arrive_at(uint64_t* bar, uint32_t rank) {
  asm volatile(  // the arrival
      "{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;\n"
      " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r];}" ::"r"(smem_u32(bar)),
      "r"(rank)
      : "memory");
}
__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__global__ void __cluster_dims__(2) twice(const float* in, float* out) {
  __shared__ uint64_t done[2];  // a CTA may be a tile ahead
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x < 2) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(smem_u32(&done[threadIdx.x])));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  cluster_sync();
  for (int t = 0; t < NUM_TILES; t++) {
    if (t > 0) wait(&done[(t - 1) % 2], (t - 1) / 2 % 2);  // for the other CTA
    const int i = (blockIdx.x * NUM_TILES + t) * TILE + threadIdx.x;
    out[i] = 2 * in[i];
    __syncthreads();
    if (threadIdx.x == 0) arrive_at(&done[t % 2], 1 - rank);
  }
#ifdef MENDED
  cluster_sync();  // the other CTA has arrived for the last time
#endif
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 2, elements = blocks * NUM_TILES * TILE;
  float *in, *out;
  cudaMallocManaged(&in, elements * sizeof(float)), cudaMallocManaged(&out, elements * sizeof(float));
  for (int i = 0; i < elements; i++) in[i] = i;
  twice<<<blocks, TILE>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  int wrong = 0;
  for (int i = 0; i < elements; i++) wrong += out[i] != 2 * in[i];
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
