// One thread copies tiles of several tensors by TMA, and rewrites one tensor map in global memory for each.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int TILE = 256, TENSORS = 8;  // TILE is in floats
__device__ uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void wait(uint32_t bar) {
  asm volatile("{.reg .pred p; l: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra l;}" ::"r"(bar)
               : "memory");
}

__global__ void copy(const uint4* maps, uint4* maps_of_blocks, float* out) {
  __shared__ __align__(128) float tiles[TENSORS][TILE];
  __shared__ uint64_t full[TENSORS];
  uint4* map = maps_of_blocks + blockIdx.x * 8;  // of 128 bytes
  for (int t = 0; t < TENSORS; t++) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;" ::"r"(smem_u32(&full[t])));
#ifdef MENDED
    if (t > 0) wait(smem_u32(&full[t - 1]));  // the last copy needs the map no more
#endif
    for (int i = 0; i < 8; i++) map[i] = maps[t * 8 + i];  // the write
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    asm volatile(  // the copy
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %3;\n"
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%0, {0}], "
        "[%2];" ::"l"(map),
        "r"(smem_u32(tiles[t])), "r"(smem_u32(&full[t])), "n"(TILE * 4)
        : "memory");
  }
  for (int t = 0; t < TENSORS; t++) {
    wait(smem_u32(&full[t]));
    for (int i = 0; i < TILE; i++) out[(blockIdx.x * TENSORS + t) * TILE + i] = tiles[t][i];
  }
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * TENSORS * TILE;
  float *in, *out;
  CUtensorMap *maps, *maps_of_blocks;
  cudaMallocManaged(&in, TENSORS * TILE * 4), cudaMallocManaged(&out, elements * 4);
  cudaMallocManaged(&maps, TENSORS * sizeof(*maps)), cudaMalloc(&maps_of_blocks, blocks * sizeof(*maps));
  decltype(&cuTensorMapEncodeTiled) encode;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, 0, nullptr);
  for (int i = 0; i < TENSORS * TILE; i++) in[i] = i;
  const cuuint64_t size = TILE;
  const cuuint32_t box = TILE, step = 1;
  for (int t = 0; t < TENSORS; t++)
    encode(&maps[t], CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, in + t * TILE, &size, &size, &box, &step, {}, {}, {},
           {});
  copy<<<blocks, 1>>>((uint4*)maps, (uint4*)maps_of_blocks, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  int wrong = 0;
  for (int i = 0; i < elements; i++) wrong += out[i] != i % (TENSORS * TILE);
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
