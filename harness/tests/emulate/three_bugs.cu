// Wrong in three ways, in one kernel. None hides the others.
#include <cuda_runtime.h>

#include <cstdio>

constexpr int N = 64;

__global__ void smooth(const float* in, float* out, int* num_done) {
  __shared__ float tile[N];
  tile[threadIdx.x] = in[blockIdx.x * N + threadIdx.x];
  const float left = tile[(threadIdx.x + N - 1) % N];  // without a barrier
  __syncthreads();
  for (int i = 0; i < 1000; i++) tile[threadIdx.x / 2] += left;  // two threads for each
  if (threadIdx.x == 0) *num_done += 1;                          // by every block
  __syncthreads();
  if (tile[threadIdx.x] > -1) out[blockIdx.x * N + threadIdx.x] = left;
}

int main() {
  float* data;
  int* num_done;
  cudaMallocManaged(&data, 16 * N * sizeof(float));
  cudaMallocManaged(&num_done, sizeof(int));
  for (int i = 0; i < 8 * N; i++) data[i] = float(i);
  *num_done = 0;
  smooth<<<8, N>>>(data, data + 8 * N, num_done);
  printf("%s, %d\n", cudaGetErrorString(cudaDeviceSynchronize()), *num_done > 0);
}
