// Wrong twice: threads write different values to one place. Which of them is the last?
#include <cuda_runtime.h>

#include <cstdio>

__global__ void find(const int* data, int n, int wanted, int* where) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && data[i] == wanted) *where = i;  // by several blocks
}

__global__ void find_in_block(const int* data, int wanted, int* where) {
  __shared__ int here;
  if (data[threadIdx.x] == wanted) here = threadIdx.x;  // by several warps
  __syncthreads();
  if (threadIdx.x == 0) *where = here;
}

int main() {
  const int n = 1000;
  int *data, *where;
  cudaMallocManaged(&data, n * sizeof(int));
  cudaMallocManaged(&where, sizeof(int));
  for (int i = 0; i < n; i++) data[i] = i % 10;
  find<<<8, 128>>>(data, n, 7, where);
  find_in_block<<<1, 128>>>(data, 7, where);
  cudaDeviceSynchronize();
  printf("%d\n", *where);
}
