// The maximum of each row, by a block of four warps. The next reduction takes the same scratch.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

constexpr int ROWS = 8, THREADS = 128, NUM_WARPS = THREADS / 32;

__device__ int block_max(int value, int* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(~0u, value, offset));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;  // the write
  __syncthreads();                                               // the maxima of all warps are there
  for (int warp = 0; warp < NUM_WARPS; warp++) value = max(value, scratch[warp]);  // the read
#ifdef MENDED
  __syncthreads();  // all have read them, before the next call overwrites them
#endif
  return value;
}

__global__ void maxima(const int* in, int* out) {
  __shared__ int scratch[NUM_WARPS];
  for (int row = 0; row < ROWS; row++) {
    const int at = (blockIdx.x * ROWS + row) * THREADS + threadIdx.x;
    out[at] = block_max(in[at], scratch);  // every thread needs it, as in a softmax
  }
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, rows = blocks * ROWS;
  int *in, *out, wrong = 0;
  cudaMallocManaged(&in, rows * THREADS * sizeof(int));
  cudaMallocManaged(&out, rows * THREADS * sizeof(int));
  for (int i = 0; i < rows * THREADS; i++) in[i] = rand() % 1000;
  maxima<<<blocks, THREADS>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int row = 0; row < rows; row++) {
    const int expected = *std::max_element(in + row * THREADS, in + (row + 1) * THREADS);
    for (int i = 0; i < THREADS; i++) wrong += out[row * THREADS + i] != expected;
  }
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, rows * THREADS);
}
