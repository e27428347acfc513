// A producer warp tells four reader warps through a mailbox in shared memory which tile comes next.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int READERS = 4, NUM_TILES = 16;
#ifdef MENDED
constexpr int RECEIPTS = READERS;
#else
constexpr int RECEIPTS = 1;  // the first reader answers for all
#endif

__device__ uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(bar)), "r"(count) : "memory");
}
__device__ void arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_u32(bar)) : "memory");
}
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{.reg .pred p; l: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra l;}" ::"r"(smem_u32(bar)),
      "r"(parity)
      : "memory");
}

__global__ void visit_tiles(const int* tiles, int* out) {
  __shared__ int mailbox;
  __shared__ uint64_t ready, received;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init(&ready, 1), init(&received, RECEIPTS);
  __syncthreads();
  for (int i = 0; i < NUM_TILES; i++) {
    if (warp == READERS && lane == 0) {  // the producer
      if (i > 0) wait(&received, (i - 1) % 2);
      mailbox = tiles[i];  // the write
      arrive(&ready);
    } else if (warp < READERS) {
      wait(&ready, i % 2);
      out[(blockIdx.x * NUM_TILES + i) * READERS * 32 + threadIdx.x] = mailbox;  // the read
      __syncwarp();
      if (lane == 0 && warp < RECEIPTS) arrive(&received);
    }
  }
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * NUM_TILES * READERS * 32;
  int *tiles, *out, wrong = 0;
  cudaMallocManaged(&tiles, NUM_TILES * sizeof(int)), cudaMallocManaged(&out, elements * sizeof(int));
  for (int i = 0; i < NUM_TILES; i++) tiles[i] = rand() % 1000;
  visit_tiles<<<blocks, (READERS + 1) * 32>>>(tiles, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < elements; i++) wrong += out[i] != tiles[i / (READERS * 32) % NUM_TILES];
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
