// Clusters: by attribute and by launch, cooperative groups, distributed shared memory, and in inline PTX
// remote arrivals and a multicast copy. Prints "ok".
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

namespace cg = cooperative_groups;

// Each CTA counts values of its own stretch, in the bins of whichever CTA has them.
__global__ void __cluster_dims__(2, 1, 1) histogram(int* bins, const int* values, int n) {
  __shared__ int own[16];
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x < 16) own[threadIdx.x] = 0;
  cluster.sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int bin = values[i];
    int* there = cluster.map_shared_rank(own, bin / 16);
    atomicAdd(&there[bin % 16], 1);
  }
  cluster.sync();
  if (threadIdx.x < 16) atomicAdd(&bins[cluster.block_rank() * 16 + threadIdx.x], own[threadIdx.x]);
}

// A cluster in y: each CTA reads its neighbour's tile, plainly.
__global__ void swap_rows(float* data) {
  __shared__ float row[32];
  cg::cluster_group cluster = cg::this_cluster();
  float* place = data + (blockIdx.y * gridDim.x + blockIdx.x) * 32;
  row[threadIdx.x] = place[threadIdx.x];
  cluster.sync();
  const float* neighbours = cluster.map_shared_rank(row, cluster.block_rank() ^ 1);
  place[threadIdx.x] = neighbours[threadIdx.x];
  const bool right = cluster.num_blocks() == 2 && cluster.block_index().y == blockIdx.y % 2 &&
                     cluster.query_shared_rank(row) == cluster.block_rank();
  if (!right) place[threadIdx.x] = -1;
  cluster.sync();
}

__device__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}

// CTA 0 copies into both, and both tell CTA 0 that they have read.
__global__ void __cluster_dims__(2, 1, 1) broadcast(float* out, const float* in) {
  __shared__ alignas(128) float tile[64];
  __shared__ alignas(8) uint64_t full, empty;
  const uint32_t tile_at = uint32_t(__cvta_generic_to_shared(tile));
  const uint32_t full_at = uint32_t(__cvta_generic_to_shared(&full));
  const uint32_t empty_at = uint32_t(__cvta_generic_to_shared(&empty));
  uint32_t rank, empty_of_0;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(empty_of_0) : "r"(empty_at), "r"(0));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(full_at) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(empty_at), "r"(2 * 64) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
               :
               :
               : "memory");
  for (int k = 0; k < 3; k++) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :
                   : "r"(full_at), "r"(unsigned(sizeof(tile)))
                   : "memory");
      if (rank == 0) {
        if (k > 0) wait(empty_at, (k - 1) % 2);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1], %2, [%3], %4;"
            :
            : "r"(tile_at), "l"(in + k * 64), "r"(unsigned(sizeof(tile))), "r"(full_at), "h"(uint16_t(3))
            : "memory");
      }
    }
    wait(full_at, k % 2);
    out[(rank * 3 + k) * 64 + threadIdx.x] = tile[threadIdx.x] + rank;
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");  // the next copy overwrites what was read
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                 :
                 : "r"(empty_of_0)
                 : "memory");
  }
  // A store into the other one's tile, once nobody reads there.
  uint32_t there;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" : : : "memory");
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(tile_at + 4 * threadIdx.x), "r"(rank ^ 1));
  asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(there), "f"(float(rank)) : "memory");
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" : : : "memory");
  out[6 * 64 + rank * 64 + threadIdx.x] = tile[threadIdx.x];
}

bool counts() {
  const int n = 1000;
  int *values, *bins;
  cudaMallocManaged(&values, n * sizeof(int));
  cudaMallocManaged(&bins, 32 * sizeof(int));
  int expected[32] = {};
  for (int i = 0; i < 32; i++) bins[i] = 0;
  for (int i = 0; i < n; i++) expected[values[i] = i * i % 32]++;
  histogram<<<4, 64>>>(bins, values, n);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < 32; i++) right = right && bins[i] == expected[i];
  return right;
}

bool swaps() {
  const int columns = 2, rows = 4;
  float* data;
  cudaMallocManaged(&data, rows * columns * 32 * sizeof(float));
  for (int i = 0; i < rows * columns * 32; i++) data[i] = i;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = 2;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(columns, rows);
  config.blockDim = dim3(32);
  config.attrs = &attribute;
  config.numAttrs = 1;
  bool right = cudaLaunchKernelEx(&config, swap_rows, data) == cudaSuccess;
  right = cudaDeviceSynchronize() == cudaSuccess && right;
  for (int i = 0; i < rows * columns * 32; i++) right = right && data[i] == (i ^ (columns * 32));
  return right;
}

bool broadcasts() {
  float *in, *out;
  cudaMallocManaged(&in, 3 * 64 * sizeof(float));
  cudaMallocManaged(&out, 8 * 64 * sizeof(float));
  for (int i = 0; i < 3 * 64; i++) in[i] = i;
  broadcast<<<2, 64>>>(out, in);
  bool right = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < 6 * 64; i++) right = right && out[i] == i % 192 + i / 192;
  for (int i = 0; i < 2 * 64; i++) right = right && out[6 * 64 + i] == 1 - i / 64;
  return right;
}

int main() {
  const bool counted = counts(), swapped = swaps(), copied = broadcasts();
  if (!counted || !swapped || !copied) printf("%d %d %d\n", counted, swapped, copied);
  printf(counted && swapped && copied ? "ok\n" : "wrong\n");
}
