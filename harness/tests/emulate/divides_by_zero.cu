// Wrong: an integer divided by zero, which has no defined result. Only the first element has that.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void divide(const int* in, int* out) { out[threadIdx.x] = 1000 / in[threadIdx.x]; }

int main() {
  int in[32], *d_in, *d_out;
  for (int i = 0; i < 32; i++) in[i] = i;
  cudaMalloc(&d_in, sizeof(in));
  cudaMalloc(&d_out, sizeof(in));
  cudaMemcpy(d_in, in, sizeof(in), cudaMemcpyHostToDevice);
  divide<<<1, 32>>>(d_in, d_out);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  cudaFree(d_in);
  cudaFree(d_out);
}
