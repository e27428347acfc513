// new, malloc, printf and assert in kernels. Prints "ok".
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>

struct Node {
  int value;
  Node* next;
};

__global__ void lists(int* sums) {
  Node* head = nullptr;
  for (int i = 0; i < 4; i++) head = new Node{int(threadIdx.x) + i, head};
  int* array = static_cast<int*>(malloc(4 * sizeof(int)));
  assert(array != nullptr && head != nullptr);
  int sum = 0;
  for (int i = 0; head != nullptr; i++) {
    array[i] = head->value;
    Node* next = head->next;
    delete head;
    head = next;
  }
  for (int i = 0; i < 4; i++) sum += array[i];
  free(array);
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (blockIdx.x == 0 && threadIdx.x == 3) printf("thread %d: %d\n", threadIdx.x, sum);
}

// Room that one thread asks for and all of its CTA use.
__global__ void shared_room(int* sums) {
  __shared__ int* room;
  if (threadIdx.x == 0) room = new int[blockDim.x];
  __syncthreads();
  room[threadIdx.x] = threadIdx.x;
  __syncthreads();
  sums[blockIdx.x * blockDim.x + threadIdx.x] += room[blockDim.x - 1 - threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) delete[] room;
}

int main() {
  const int n = 64;
  int* sums;
  cudaMallocManaged(&sums, n * sizeof(int));
  lists<<<2, 32>>>(sums);
  shared_room<<<2, 32>>>(sums);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < n; i++) right = right && sums[i] == 4 * (i % 32) + 6 + 31 - i % 32;
  printf(right ? "ok\n" : "wrong\n");
}
