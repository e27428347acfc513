// Wrong: barriers of clusters and of the grid are missing.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>

namespace cg = cooperative_groups;

__global__ void __cluster_dims__(2, 1, 1) neighbours(float* out) {
  __shared__ float tile[32];
  cg::cluster_group cluster = cg::this_cluster();
  tile[threadIdx.x] = blockIdx.x;
  cluster.sync();
  const float* there = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1);  // of a CTA that may be gone
  out[blockIdx.x * 32 + threadIdx.x] = there[threadIdx.x];
}

__global__ void __cluster_dims__(2, 1, 1) overwrites(float* out) {
  __shared__ float tile[32];
  cg::cluster_group cluster = cg::this_cluster();
  tile[threadIdx.x] = blockIdx.x;
  cluster.sync();
  const float* there = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1);
  out[blockIdx.x * 32 + threadIdx.x] = there[threadIdx.x];  // before
  tile[threadIdx.x] = 0;                                    // or behind this
  cluster.sync();
}

__global__ void without_grid_sync(float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = blockIdx.x;                     // by each block
  if (blockIdx.x == 0) out[64 + threadIdx.x] = out[32 + threadIdx.x];  // of the other block
}

int main() {
  float* out;
  cudaMallocManaged(&out, 96 * sizeof(float));
  neighbours<<<2, 32>>>(out);
  cudaDeviceSynchronize();
  overwrites<<<2, 32>>>(out);
  cudaDeviceSynchronize();
  void* arguments[] = {&out};
  cudaLaunchCooperativeKernel((void*)without_grid_sync, dim3(2), dim3(32), arguments);
  cudaDeviceSynchronize();
}
