// Wrong twice: a race in each of two kernels. The second is found although the first has failed.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void neighbour(const int* in, int* out) {
  __shared__ int tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[(threadIdx.x + 32) % 64];  // without a barrier
}

__global__ void count(int* counter) {
  if (threadIdx.x == 0) *counter = *counter + 1;  // by every block, and not atomicAdd
}

int main() {
  int *data, *counter;
  cudaMalloc(&data, 2 * 64 * sizeof(int));
  cudaMalloc(&counter, sizeof(int));
  cudaMemset(data, 0, 2 * 64 * sizeof(int));
  cudaMemset(counter, 0, sizeof(int));
  neighbour<<<1, 64>>>(data, data + 64);
  for (int i = 0; i < 3; i++) count<<<4, 32>>>(counter);
  cudaDeviceSynchronize();
  printf("done\n");
  cudaFree(data);
  cudaFree(counter);
}
