// One tile in shared memory, filled by all threads and stored by TMA, again and again.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int THREADS = 128, TILE = 16 * THREADS, NUM_TILES = 4;  // TILE in floats

__global__ void twice(const float* in, float* out) {
  __shared__ __align__(128) float tile[TILE];
  const uint32_t tile_address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  for (int t = 0; t < NUM_TILES; t++) {
    const int first = (blockIdx.x * NUM_TILES + t) * TILE;
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // for the groups of this thread only
#ifdef MENDED
    __syncthreads();  // the thread that has a group has waited for it
#endif
    for (int i = threadIdx.x; i < TILE; i += THREADS) tile[i] = 2 * in[first + i];  // the write
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"  // the copy
                   ::"l"(out + first),
                   "r"(tile_address), "n"(TILE * sizeof(float))
                   : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * NUM_TILES * TILE;
  float *in, *out;
  int wrong = 0;
  cudaMallocManaged(&in, elements * sizeof(float));
  cudaMallocManaged(&out, elements * sizeof(float));
  for (int i = 0; i < elements; i++) in[i] = i % 1000;
  twice<<<blocks, THREADS>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < elements; i++) wrong += out[i] != 2 * in[i];
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
