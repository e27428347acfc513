// Elements of one byte, which neighbours write: lanes in shared memory, and blocks in global memory where a
// row of the image is odd. Prints "ok".
#include <cuda_runtime.h>

#include <cstdio>

__global__ void mirror(const unsigned char* in, unsigned char* out, int width, int height) {
  __shared__ unsigned char tile[8][9];
  int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  if (x < width && y < height) tile[threadIdx.y][threadIdx.x] = in[y * width + x];
  __syncthreads();
  int from = min(8, width - int(blockIdx.x) * 8) - 1 - threadIdx.x;
  if (from >= 0 && y < height) out[y * width + width - 1 - (blockIdx.x * 8 + from)] = tile[threadIdx.y][from];
}

int main() {
  const int width = 37, height = 21;
  unsigned char *in, *out;
  cudaMallocManaged(&in, width * height);
  cudaMallocManaged(&out, width * height);
  for (int i = 0; i < width * height; i++) in[i] = i * 7;
  mirror<<<dim3(5, 3), dim3(8, 8)>>>(in, out, width, height);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int y = 0; y < height; y++)
    for (int x = 0; x < width; x++) right = right && out[y * width + x] == in[y * width + width - 1 - x];
  printf(right ? "ok\n" : "wrong\n");
}
