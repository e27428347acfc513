// What ends a kernel by its own word, and a block that is freed twice.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdlib>

__global__ void asserts(int n) {
  assert(int(threadIdx.x) < n);  // a promise
}
__global__ void traps() {
  if (threadIdx.x == 5) __trap();
}
__device__ int* room;  // so that nothing is left out

__global__ void frees_twice() {
  room = static_cast<int*>(malloc(16));
  free(room);
  free(room);  // again
}
__global__ void writes_beyond() {
  room = new int[4];
  room[1 << 28] = 1;  // far away
}

int main() {
  asserts<<<1, 64>>>(40);
  if (cudaDeviceSynchronize() != cudaErrorAssert) return 1;
  traps<<<1, 32>>>();
  frees_twice<<<1, 1>>>();
  writes_beyond<<<1, 1>>>();
}
