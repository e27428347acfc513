// Wrong: a race on elements of one byte, as a barrier is missing.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void rotate(unsigned char* data) {
  __shared__ unsigned char tile[64];
  tile[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = tile[(threadIdx.x + 1) % 64];
}

int main() {
  unsigned char* data;
  cudaMallocManaged(&data, 64);
  for (int i = 0; i < 64; i++) data[i] = i;
  rotate<<<1, 64>>>(data);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
