// Static shared memory lies where a GPU puts it: behind 1 KiB, in the order of the source, with dynamic
// shared memory behind it. Prints "ok".
#include <cuda_runtime.h>

#include <cstdio>

struct Point {
  int x, y;
  __device__ Point(int x, int y) : x(x), y(y) {}
};

__device__ unsigned address_of(const volatile void* shared) {
  return unsigned(__cvta_generic_to_shared(const_cast<const void*>(shared)));
}

__device__ int sum_in_block(int value) {
  static __shared__ int values[64];
  values[threadIdx.x] = value;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < 64; i++) sum += values[i];
  __syncthreads();
  return sum;
}

__global__ void addresses(unsigned* out, int* sums) {
  extern __shared__ __align__(128) unsigned char bytes[];
  __shared__ char c[5];
  __shared__ float f[3], single;
  alignas(64) __shared__ char aligned[10];
  __shared__ double d;
  __shared__ float matrix[2][50];
  const int i = threadIdx.x;
  bytes[i] = 1;
  if (i < 5) c[i] = 1;
  if (i < 3) f[i] = 1;
  if (i < 10) aligned[i] = 1;
  if (i < 50) matrix[0][i] = matrix[1][i] = 1;
  const int sum = sum_in_block(i);
  if (i == 0) {
    d = sum;
    single = 1;
  }
  __syncthreads();
  if (i > 0) return;
  const void* of[] = {c, f, &single, aligned, &d, matrix, bytes};
  // The lower bits of a pointer are the address, too, as some programs' descriptors have it.
  for (int k = 0; k < 7; k++) out[k] = (size_t(of[k]) & 0x3ffff) == address_of(of[k]) ? address_of(of[k]) : 0;
  sums[0] = int(d) + c[1] + int(f[1] + single) + aligned[1] + int(matrix[1][1]) + bytes[1];
}

// Of the variable behind a pointer to a function, nobody knows before the kernel has called it. (nvcc makes
// such a function for each kernel, with variables of that kernel's: a GPU may not call another kernel's.)
#ifndef __NVCC__
using Function = int (*)(int);
__global__ void find(Function* function) { *function = sum_in_block; }
__global__ void call(const Function* function, int* sums) {
  __shared__ int own[64];
  own[threadIdx.x] = threadIdx.x;
  const int sum = (*function)(own[threadIdx.x]);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

bool is_called() {
  Function* function;
  int* sums;
  cudaMallocManaged(&function, sizeof(Function));
  cudaMallocManaged(&sums, 64 * sizeof(int));
  find<<<1, 1>>>(function);
  for (int k = 0; k < 2; k++) call<<<64, 64>>>(function, sums);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < 64; i++) right = right && sums[i] == 64 * 63 / 2;
  return right;
}
#else
bool is_called() { return true; }
#endif

// One variable for each instance; lambdas capture none.
template <typename T, int N>
__global__ void reverse(T* data) {
  __shared__ T tile[N];
  __shared__ alignas(Point) unsigned char place[sizeof(Point)];
  const auto write = [=](int i) { tile[i] = data[i]; };
  const auto read = [](int i) { return tile[N - 1 - i]; };
  write(threadIdx.x);
  if (threadIdx.x == 0) *reinterpret_cast<Point*>(place) = Point(3, 4);
  __syncthreads();
  data[threadIdx.x] = read(threadIdx.x) + T(reinterpret_cast<Point*>(place)->y);
}

template <typename T, int N>
bool is_reversed() {
  T* data;
  cudaMallocManaged(&data, N * sizeof(T));
  for (int i = 0; i < N; i++) data[i] = T(i);
  reverse<T, N><<<1, N>>>(data);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < N; i++) right = right && data[i] == T(N - 1 - i + 4);
  return right;
}

int main() {
  unsigned* out;
  int* sums;
  cudaMallocManaged(&out, 7 * sizeof(unsigned));
  cudaMallocManaged(&sums, sizeof(int));
  addresses<<<1, 64, 64>>>(out, sums);
  bool right = cudaDeviceSynchronize() == cudaSuccess && sums[0] == 64 * 63 / 2 + 6;
  const unsigned begin = 1024 + 64 * sizeof(int);  // behind those of sum_in_block
  const unsigned expected[] = {begin, begin + 8, begin + 20, begin + 64, begin + 80, begin + 88, begin + 512};
  for (int k = 0; k < 7; k++) {
    right = right && out[k] == expected[k];
    if (out[k] != expected[k]) printf("address %d: %u, not %u\n", k, out[k], expected[k]);
  }
  right = right && is_called() && is_reversed<float, 64>() && is_reversed<short, 32>();
  printf(right ? "ok\n" : "wrong\n");
}
