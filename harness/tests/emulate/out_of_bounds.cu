// Wrong: the last block writes beyond the array, as `i <= n` should be `i < n`, and the last thread beyond
// the shared tile.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void fill(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) data[i] = 1;
}

__global__ void shift(float* data) {
  __shared__ float tile[128];
  tile[threadIdx.x + 1] = data[threadIdx.x];  // to its neighbour
  __syncthreads();
  data[threadIdx.x] = tile[threadIdx.x];
}

int main() {
  const int n = 1000;
  float* data;
  cudaMalloc(&data, n * sizeof(float));
  fill<<<(n + 127) / 128, 128>>>(data, n);
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
  shift<<<1, 128>>>(data);
  cudaFree(data);
}
