// Dynamic shared memory, declared in a kernel and at file scope. Prints "ok".
#include <cuda_runtime.h>

#include <cstdio>

extern __shared__ float smem[];

// Two arrays in one.
__global__ void shift_and_scale(float* data, int n) {
  float* values = smem;
  int* from = (int*)(smem + n);
  int i = threadIdx.x;
  values[i] = data[i];
  from[(i + 1) % n] = i;
  __syncthreads();
  data[i] = 2 * values[from[i]];
}

__global__ void reverse(float* data) {
  extern __shared__ __align__(16) unsigned char bytes[];
  float* tile = reinterpret_cast<float*>(bytes);
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

int main() {
  const int n = 64;
  float data[n];
  for (int i = 0; i < n; i++) data[i] = i;

  float* d_data;
  cudaMalloc(&d_data, sizeof(data));
  cudaMemcpy(d_data, data, sizeof(data), cudaMemcpyHostToDevice);
  shift_and_scale<<<1, n, n*(sizeof(float) + sizeof(int))>>>(d_data, n);
  reverse<<<1, n, n * sizeof(float)>>>(d_data);
  cudaMemcpy(data, d_data, sizeof(data), cudaMemcpyDeviceToHost);
  cudaFree(d_data);

  bool right = true;
  for (int i = 0; i < n; i++) right = right && data[i] == 2 * ((n - 1 - i + n - 1) % n);
  printf(right ? "ok\n" : "wrong\n");
}
