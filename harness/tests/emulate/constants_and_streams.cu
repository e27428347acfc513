// __constant__ and __device__ variables, managed memory, a stream, events. Prints "ok".
#include <cuda_runtime.h>
#include <stdio.h>

__constant__ float coefficients[4];
__device__ int calls;

__global__ void polynomial(float* data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) atomicAdd(&calls, 1);
  if (i >= n) return;
  float x = data[i], y = 0;
  for (int k = 3; k >= 0; k--) y = y * x + coefficients[k];
  data[i] = y;
}

int main() {
  const int n = 200;
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);

  float* data;
  cudaMallocManaged(&data, n * sizeof(float));
  for (int i = 0; i < n; i++) data[i] = i % 10;
  const float host_coefficients[4] = {1, 2, 0, 1};
  cudaMemcpyToSymbol(coefficients, host_coefficients, sizeof(host_coefficients));

  cudaStream_t stream;
  cudaEvent_t start, stop;
  cudaStreamCreate(&stream);
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  cudaEventRecord(start, stream);
  polynomial<<<(n + 63) / 64, 64, 0, stream>>>(data, n);
  cudaEventRecord(stop, stream);
  cudaStreamSynchronize(stream);

  float milliseconds = -1;
  cudaEventElapsedTime(&milliseconds, start, stop);
  int host_calls = 0;
  cudaMemcpyFromSymbol(&host_calls, calls, sizeof(int));
  bool right = milliseconds >= 0 && host_calls == 1;
  for (int i = 0; i < n; i++) {
    int x = i % 10;
    right = right && data[i] == 1 + 2 * x + x * x * x;
  }
  printf(right ? "ok\n" : "wrong\n");
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaStreamDestroy(stream);
  cudaFree(data);
}
