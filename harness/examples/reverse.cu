// A test of a kernel on the emulator: CMakeLists.txt beside this file shows how it is built, and ctest runs
// it. Without __syncthreads() the emulator finds a race, and the test fails.
#include <cstdio>

__global__ void reverse(int* data) {
  __shared__ int tile[SIZE];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[SIZE - 1 - threadIdx.x];
}

int main() {
  int* data;
  cudaMallocManaged(&data, SIZE * sizeof(int));
  for (int i = 0; i < SIZE; ++i) data[i] = i;
  reverse<<<1, SIZE>>>(data);
  cudaDeviceSynchronize();
  int wrong = 0;
  for (int i = 0; i < SIZE; ++i) wrong += data[i] != SIZE - 1 - i;
  std::printf("%d of %d are wrong\n", wrong, SIZE);
  return wrong > 0;
}
