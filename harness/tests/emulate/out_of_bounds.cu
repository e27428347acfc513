// Wrong: the last block writes beyond the array, as `i <= n` should be `i < n`.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void fill(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) data[i] = 1;
}

int main() {
  const int n = 1000;
  float* data;
  cudaMalloc(&data, n * sizeof(float));
  fill<<<(n + 127) / 128, 128>>>(data, n);
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
  cudaFree(data);
}
