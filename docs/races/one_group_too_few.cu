// One thread copies global memory to global memory by TMA, through two stages of shared memory.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int TILE = 2048, BYTES = 4 * TILE, NUM_TILES = 8, STAGES = 2;  // TILE is in floats

__device__ uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void load(float* tile, const float* from, uint64_t* full) {
  asm volatile(  // the load
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %3;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%0], %3, [%2];" ::"l"(from),
      "r"(smem_u32(tile)), "r"(smem_u32(full)), "n"(BYTES)
      : "memory");
}
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{.reg .pred p; l: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra l;}" ::"r"(smem_u32(bar)),
      "r"(parity)
      : "memory");
}

__global__ void copy(const float* in, float* out) {
  __shared__ __align__(128) float tiles[STAGES][TILE];
  __shared__ uint64_t full[STAGES];
  in += blockIdx.x * NUM_TILES * TILE, out += blockIdx.x * NUM_TILES * TILE;
  for (int t = 0; t < STAGES; t++) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;" ::"r"(smem_u32(&full[t])));
    load(tiles[t], in + t * TILE, &full[t]);
  }
  for (int t = 0, stage = 0; t < NUM_TILES; t++, stage = t % STAGES) {
    wait(&full[stage], t / STAGES % 2);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"  // the store
                 ::"l"(out + t * TILE),
                 "r"(smem_u32(tiles[stage])), "n"(BYTES)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#ifdef MENDED
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#else
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the last store is of this very stage
#endif
    if (t + STAGES < NUM_TILES) load(tiles[stage], in + (t + STAGES) * TILE, &full[stage]);
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * NUM_TILES * TILE;
  float *in, *out;
  cudaMallocManaged(&in, elements * sizeof(float)), cudaMallocManaged(&out, elements * sizeof(float));
  for (int i = 0; i < elements; i++) in[i] = i % 1000;
  copy<<<blocks, 1>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  int wrong = 0;
  for (int i = 0; i < elements; i++) wrong += out[i] != in[i];
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
