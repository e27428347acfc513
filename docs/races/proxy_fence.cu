// Sums of tiles that TMA brings into two stages of shared memory. All threads read a stage, then TMA refills
// it.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int TILE = 128, NUM_TILES = 8, STAGES = 2;  // TILE is in floats, and in threads

__device__ uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void load(float* tile, const float* from, uint64_t* full) {
  asm volatile(  // the copy
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %3;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%0], %3, [%2];" ::"l"(from),
      "r"(smem_u32(tile)), "r"(smem_u32(full)), "n"(TILE * sizeof(float))
      : "memory");
}
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{.reg .pred p; l: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra l;}" ::"r"(smem_u32(bar)),
      "r"(parity)
      : "memory");
}

__global__ void sum_tiles(const float* in, float* out) {
  __shared__ __align__(128) float tiles[STAGES][TILE];
  __shared__ uint64_t full[STAGES];
  in += blockIdx.x * NUM_TILES * TILE;
  for (int t = 0; t < STAGES && threadIdx.x == 0; t++) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;" ::"r"(smem_u32(&full[t])));
    load(tiles[t], in + t * TILE, &full[t]);
  }
  __syncthreads();
  float sum = 0;
  for (int t = 0, stage = 0; t < NUM_TILES; t++, stage = t % STAGES) {
    wait(&full[stage], t / STAGES % 2);
    sum += tiles[stage][threadIdx.x];  // the read
#ifdef MENDED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA comes after this read
#endif
    __syncthreads();  // all threads have read, but TMA is no thread
    const int next = t + STAGES;
    if (threadIdx.x == 0 && next < NUM_TILES) load(tiles[stage], in + next * TILE, &full[stage]);
  }
  out[blockIdx.x * TILE + threadIdx.x] = sum;
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, sums = blocks * TILE;
  float *in, *out;
  cudaMallocManaged(&in, NUM_TILES * sums * sizeof(float));
  cudaMallocManaged(&out, sums * sizeof(float));
  for (int i = 0; i < NUM_TILES * sums; i++) in[i] = 1 << i / TILE % NUM_TILES;
  sum_tiles<<<blocks, TILE>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  int wrong = 0;
  for (int i = 0; i < sums; i++) wrong += out[i] != (1 << NUM_TILES) - 1;
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, sums);
}
