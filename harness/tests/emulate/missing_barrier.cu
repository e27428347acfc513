// Wrong: a race on `tile`, as nothing stands between the write and the read of another warp's element.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void reverse(int* data) {
  __shared__ int tile[128];
  tile[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = tile[127 - threadIdx.x];
}

int main() {
  int data[128];
  for (int i = 0; i < 128; i++) data[i] = i;
  int* d_data;
  cudaMalloc(&d_data, sizeof(data));
  cudaMemcpy(d_data, data, sizeof(data), cudaMemcpyHostToDevice);
  reverse<<<1, 128>>>(d_data);
  cudaError_t error = cudaDeviceSynchronize();
  printf("%s\n", cudaGetErrorString(error));
}
