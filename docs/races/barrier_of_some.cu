// Two of four warps add up pairs of numbers; then all warps read the sums.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

constexpr int THREADS = 128, HALF = THREADS / 2;

__global__ void add_pairs(const int* in, int* out) {
  __shared__ int numbers[HALF], sums[HALF];
  const int t = threadIdx.x;
  const bool adds = t < HALF;
  if (adds) numbers[t] = in[blockIdx.x * HALF + t];
#ifdef MENDED
  __syncthreads();
#else
  if (adds) __syncthreads();  // the other warps do not come here
#endif
  if (adds) sums[t] = numbers[t] + numbers[t ^ 32];  // the write
  __syncthreads();                                   // the sums are there
  out[blockIdx.x * THREADS + t] = sums[t % HALF];    // the read
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1;
  int *in, *out, wrong = 0;
  cudaMallocManaged(&in, blocks * HALF * sizeof(int));
  cudaMallocManaged(&out, blocks * THREADS * sizeof(int));
  for (int i = 0; i < blocks * HALF; i++) in[i] = rand() % 1000;
  add_pairs<<<blocks, THREADS>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < blocks * THREADS; i++) {
    const int* numbers = in + i / THREADS * HALF;
    const int at = i % HALF;
    wrong += out[i] != numbers[at] + numbers[at ^ 32];
  }
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, blocks * THREADS);
}
