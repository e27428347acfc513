// Wrong: nobody has set `sums` to 0. On a GPU it often is; the emulator has NaN there. Prints "wrong".
#include <cuda_runtime.h>

#include <cstdio>

__global__ void accumulate(const float* in, float* sums, int rows) {
  for (int row = 0; row < rows; row++) sums[threadIdx.x] += in[row * blockDim.x + threadIdx.x];
}

int main() {
  const int rows = 10, columns = 32;
  float in[rows * columns], sums[columns];
  for (int i = 0; i < rows * columns; i++) in[i] = 1;
  float *d_in, *d_sums;
  cudaMalloc(&d_in, sizeof(in));
  cudaMalloc(&d_sums, sizeof(sums));
  cudaMemcpy(d_in, in, sizeof(in), cudaMemcpyHostToDevice);
  accumulate<<<1, columns>>>(d_in, d_sums, rows);
  cudaMemcpy(sums, d_sums, sizeof(sums), cudaMemcpyDeviceToHost);

  bool right = true;
  for (int i = 0; i < columns; i++) right = right && sums[i] == rows;
  printf(right ? "ok\n" : "wrong\n");
  cudaFree(d_in);
  cudaFree(d_sums);
}
