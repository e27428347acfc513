// Functions of the runtime beside the usual ones: a launch by a function, occupancy, memory of the host's.
// And a program's own lerp(). Prints "ok".
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

__host__ __device__ float lerp(float from, float to, float weight) { return fma(weight, to - from, from); }

__global__ void mix(const float* a, const float* b, float* out, float weight, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    out[i] = lerp(a[i], b[i], weight);
}

__global__ void count(unsigned* counters) {
  atomicAdd_block(&counters[blockIdx.x], 1u);
  atomicMax_system(&counters[gridDim.x], threadIdx.x);
}

void CUDART_CB called_by_stream(void* data) { *static_cast<int*>(data) += 1; }

int main() {
  int n = 500, block = 0, min_grid = 0, ctas = 0, calls = 0;
  float weight = 0.25f;
  bool right = cudaOccupancyMaxPotentialBlockSize(&min_grid, &block, mix, 0, 256) == cudaSuccess;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, mix, block, 0);
  cudaFuncAttributes of_kernel;
  cudaFuncGetAttributes(&of_kernel, mix);
  right = right && block == 256 && min_grid > 0 && ctas > 0 && of_kernel.maxThreadsPerBlock >= block;

  // The inputs are in memory of malloc().
  float* inputs = static_cast<float*>(malloc(2 * n * sizeof(float)));
  for (int i = 0; i < 2 * n; i++) inputs[i] = i % n * (i < n ? 1 : 3);
  cudaHostRegister(inputs, 2 * n * sizeof(float), cudaHostRegisterMapped);
  float *a, *b, *out;
  cudaHostGetDevicePointer((void**)&a, inputs, 0);
  cudaMalloc(&out, n * sizeof(float));
  b = a + n;
  void* arguments[] = {&a, &b, &out, &weight, &n};
  right = right && cudaLaunchKernel(mix, dim3(2), dim3(block), arguments, 0, nullptr) == cudaSuccess;
  cudaLaunchHostFunc(0, called_by_stream, &calls);
  float* result = static_cast<float*>(malloc(n * sizeof(float)));
  cudaMemcpy(result, out, n * sizeof(float), cudaMemcpyDefault);
  for (int i = 0; i < n; i++) right = right && result[i] == 1.5f * i;
  cudaHostUnregister(inputs);

  cudaPointerAttributes of_pointer;
  right =
      right && cudaPointerGetAttributes(&of_pointer, out) == cudaSuccess && of_pointer.devicePointer == out;
  unsigned* counters;
  size_t pitch;
  cudaMallocPitch(&counters, &pitch, 5 * sizeof(unsigned), 2);
  cudaMemset2D(counters, pitch, 0, 5 * sizeof(unsigned), 2);
  count<<<4, 64>>>(counters);
  unsigned counted[5];
  cudaMemcpy(counted, counters, sizeof(counted), cudaMemcpyDeviceToHost);
  for (int i = 0; i < 5; i++) right = right && counted[i] == (i < 4 ? 64 : 63);
  printf(right && calls == 1 ? "ok\n" : "wrong\n");
  cudaFree(out);
  cudaFree(counters);
  free(inputs);
  free(result);
}
