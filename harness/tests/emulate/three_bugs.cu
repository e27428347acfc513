// Wrong in three ways, in one kernel. None hides the others.
#include <cuda_runtime.h>

#include <cstdio>

constexpr int N = 64, BLOCKS = 8;

__global__ void shift(const float* in, float* out, int* num_done) {
  __shared__ float tile[N];
  const int i = blockIdx.x * N + threadIdx.x;
  tile[threadIdx.x] = in[i];
  const float other = tile[N - 1 - threadIdx.x];     // without a barrier
  for (int k = 0; k < 100; k++) out[i - 1] = other;  // before the first one: this ends block 0 alone
  if (threadIdx.x == 0) *num_done += 1;              // by every block
}

int main() {
  float *in, *out;
  int* num_done;
  cudaMallocManaged(&in, BLOCKS * N * sizeof(float));
  cudaMallocManaged(&out, BLOCKS * N * sizeof(float));
  cudaMallocManaged(&num_done, sizeof(int));
  for (int i = 0; i < BLOCKS * N; i++) in[i] = float(i);
  *num_done = 0;
  shift<<<BLOCKS, N>>>(in, out, num_done);
  printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
  cudaFree(in);
  cudaFree(out);
  cudaFree(num_done);
}
