// Every thread writes its part of a tile to shared memory, and one thread has TMA copy the tile to global
// memory.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int THREADS = 128, TILE = 4 * THREADS;  // in floats

__global__ void twice(const float* in, float* out) {
  __shared__ __align__(128) float tile[TILE];
  const int first = blockIdx.x * TILE;
  for (int i = threadIdx.x; i < TILE; i += THREADS) tile[i] = 2 * in[first + i];  // the write
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA sees what this thread has written
#ifdef MENDED
  __syncthreads();  // all threads have written
#endif
  if (threadIdx.x == 0) {
    const uint32_t tile_address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"  // the copy
                 ::"l"(out + first),
                 "r"(tile_address), "n"(TILE * sizeof(float))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * TILE;
  float *in, *out;
  int wrong = 0;
  cudaMallocManaged(&in, elements * sizeof(float));
  cudaMallocManaged(&out, elements * sizeof(float));
  for (int i = 0; i < elements; i++) in[i] = i;
  twice<<<blocks, THREADS>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < elements; i++) wrong += out[i] != 2 * in[i];
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
