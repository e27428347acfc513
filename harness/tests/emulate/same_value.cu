// Many threads write the same value to a flag, whose order does not matter: in shared memory, and for several
// blocks in global memory. Prints "ok".
#include <cuda_runtime.h>

#include <cstdio>

__global__ void contains(const int* data, int n, int wanted, int* found) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && data[i] == wanted) *found = 1;
}

__global__ void blocks_with(const int* data, int n, int wanted, int* found) {
  __shared__ int here;
  if (threadIdx.x == 0) here = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && data[i] == wanted) here = 1;
  __syncthreads();
  if (threadIdx.x == 0) found[blockIdx.x] = here;
}

int main() {
  const int n = 1000, block = 128, num_blocks = (n + block - 1) / block;
  int *data, *in_block, *found;
  cudaMallocManaged(&data, n * sizeof(int));
  cudaMallocManaged(&in_block, num_blocks * sizeof(int));
  cudaMallocManaged(&found, 2 * sizeof(int));
  for (int i = 0; i < n; i++) data[i] = i < 500 ? i % 10 : 10;
  found[0] = found[1] = 0;
  contains<<<num_blocks, block>>>(data, n, 7, found);
  contains<<<num_blocks, block>>>(data, n, 11, found + 1);
  blocks_with<<<num_blocks, block>>>(data, n, 7, in_block);
  cudaDeviceSynchronize();
  bool right = found[0] && !found[1];
  for (int i = 0; i < num_blocks; i++) right = right && in_block[i] == (i < 4);
  printf(right ? "ok\n" : "wrong\n");
}
