// Every block leaves partial sums in global memory, and the last one to count itself adds them up.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

constexpr int THREADS = 128;

__global__ void sum_columns(const int* in, int rows_per_block, int* partial, int* out, unsigned* counter) {
  __shared__ bool is_last;
  int sum = 0;
  for (int row = 0; row < rows_per_block; row++)
    sum += in[(blockIdx.x * rows_per_block + row) * THREADS + threadIdx.x];
  partial[blockIdx.x * THREADS + threadIdx.x] = sum;  // the write
#ifdef MENDED
  __threadfence();  // other blocks that see the count see the sum, too
#endif
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(counter, 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int block = sum = 0; block < gridDim.x; block++)
    sum += partial[block * THREADS + threadIdx.x];  // the read
  out[threadIdx.x] = sum;
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 4, rows_per_block = 4, rows = blocks * rows_per_block;
  int *in, *partial, *out, wrong = 0;
  unsigned* counter;
  cudaMallocManaged(&in, rows * THREADS * sizeof(int));
  cudaMallocManaged(&out, THREADS * sizeof(int));
  cudaMalloc(&partial, blocks * THREADS * sizeof(int));
  cudaMalloc(&counter, sizeof(unsigned));
  cudaMemset(counter, 0, sizeof(unsigned));
  cudaMemset(partial, 0, blocks * THREADS * sizeof(int));
  for (int i = 0; i < rows * THREADS; i++) in[i] = rand() % 1000;
  sum_columns<<<blocks, THREADS>>>(in, rows_per_block, partial, out, counter);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < THREADS; i++) {
    int sum = 0;
    for (int row = 0; row < rows; row++) sum += in[row * THREADS + i];
    wrong += out[i] != sum;
  }
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, THREADS);
}
