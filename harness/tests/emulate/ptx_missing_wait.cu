// Wrong: wait_group leaves the tile pending that is read next. It should wait for all but one group.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

constexpr int TILE = 128;  // floats

// One warp sums tiles of `data`, and copies each while it sums the one before.
__global__ void sum_tiles(const float* data, float* sum, int num_tiles) {
  __shared__ __align__(16) float tiles[2][TILE];
  const int lane = threadIdx.x;
  auto copy = [&](int tile) {
    if (tile < num_tiles) {
      const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(&tiles[tile % 2][4 * lane]));
      asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(data + tile * TILE + 4 * lane));
    }
    asm volatile("cp.async.commit_group;");
  };
  float total = 0;
  copy(0);
  for (int tile = 0; tile < num_tiles; tile++) {
    copy(tile + 1);
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncwarp();
    for (int i = lane; i < TILE; i += 32) total += tiles[tile % 2][i];
    __syncwarp();
  }
  atomicAdd(sum, total);
}

int main() {
  const int num_tiles = 4;
  float* data;
  float* sum;
  cudaMallocManaged(&data, num_tiles * TILE * sizeof(float));
  cudaMallocManaged(&sum, sizeof(float));
  for (int i = 0; i < num_tiles * TILE; i++) data[i] = 1;
  *sum = 0;
  sum_tiles<<<1, 32>>>(data, sum, num_tiles);
  printf("%s, %g\n", cudaGetErrorString(cudaDeviceSynchronize()), *sum);
}
