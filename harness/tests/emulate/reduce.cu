// Each block sums its elements in shared memory, and adds that to the total. Prints "ok".
#include <cstdio>
#include <cstdlib>

#define BLOCK 128

__global__ void reduce(const int* in, int* total, int n) {
  __shared__ int sums[BLOCK];
  int i = blockIdx.x * BLOCK + threadIdx.x;
  sums[threadIdx.x] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned stride = BLOCK / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) sums[threadIdx.x] += sums[threadIdx.x + stride];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(total, sums[0]);
}

int main() {
  const int n = 1000;
  int* in = (int*)malloc(n * sizeof(int));
  int expected = 0;
  for (int i = 0; i < n; i++) {
    in[i] = i % 7;
    expected += in[i];
  }

  int *d_in, *d_total, total;
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_total, sizeof(int));
  cudaMemcpy(d_in, in, n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(d_total, 0, sizeof(int));
  reduce<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(d_in, d_total, n);
  cudaMemcpy(&total, d_total, sizeof(int), cudaMemcpyDeviceToHost);

  printf(total == expected ? "ok\n" : "wrong\n");
  cudaFree(d_in);
  cudaFree(d_total);
  free(in);
}
