// C = A B^T in BF16 with inline PTX, as kernels for sm_90a have it: TMA, mbarriers, wgmma. Prints "ok".
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int BM = 64, BN = 64, BK = 64;  // of BK columns, 128 bytes, a row of a tile is
constexpr int STAGES = 2;
using bf16 = __nv_bfloat16;

struct SharedStorage {
  alignas(128) bf16 A[STAGES][BM * BK];
  alignas(128) bf16 B[STAGES][BN * BK];
  alignas(8) uint64_t full[STAGES];
};

__device__ __forceinline__ uint32_t smem_u32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void mbarrier_init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(bar)), "r"(count));
}

__device__ __forceinline__ void mbarrier_expect(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(bar)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint64_t* bar, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra.uni DONE;\n"
      "bra.uni LAB_WAIT;\n"
      "DONE:\n"
      "}" ::"r"(smem_u32(bar)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void tma_load(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];"
      :
      : "r"(smem_u32(dst)), "l"(map), "r"(smem_u32(bar)), "r"(x), "r"(y)
      : "memory");
}

// Of a tile with 128-byte rows, swizzled.
__device__ uint64_t make_desc(const void* tile) {
  const uint64_t address = smem_u32(tile) & 0x3ffff;
  return address >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ void wgmma_m64n64k16(float (&d)[8][4], uint64_t desc_a, uint64_t desc_b) {
  asm volatile(
      "{\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, %34, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(desc_a), "l"(desc_b), "n"(1));
}

__global__ void __launch_bounds__(128)
    gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* C,
         int N, int K, int offset) {
  extern __shared__ __align__(1024) uint8_t smem[];
  SharedStorage& s = *reinterpret_cast<SharedStorage*>(smem + offset);
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) mbarrier_init(&s.full[i], 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  auto load = [&](int tile) {
    const int stage = tile % STAGES;
    mbarrier_expect(&s.full[stage], (BM + BN) * BK * sizeof(bf16));
    tma_load(s.A[stage], &map_a, &s.full[stage], tile * BK, m0);
    tma_load(s.B[stage], &map_b, &s.full[stage], tile * BK, n0);
  };
  const int num_tiles = K / BK;
  if (threadIdx.x == 0) {
    for (int tile = 0; tile < STAGES && tile < num_tiles; tile++) load(tile);
  }

  float d[8][4] = {};
  for (int tile = 0; tile < num_tiles; tile++) {
    const int stage = tile % STAGES;
    mbarrier_wait(&s.full[stage], tile / STAGES % 2);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < BK; k += 16) wgmma_m64n64k16(d, make_desc(&s.A[stage][k]), make_desc(&s.B[stage][k]));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(0) : "memory");
    __syncthreads();  // all have read this stage
    if (threadIdx.x == 0 && tile + STAGES < num_tiles) load(tile + STAGES);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 8; i++) {
    float* c = &C[(m0 + 16 * warp + lane / 4) * N + n0 + 8 * i + lane % 4 * 2];
    c[0] = d[i][0];
    c[1] = d[i][1];
    c[8 * N] = d[i][2];
    c[8 * N + 1] = d[i][3];
  }
}

// Of a rows x cols matrix, in boxes of BM x BK.
CUtensorMap make_map(bf16* matrix, int rows, int cols) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  CUtensorMap map;
  const cuuint64_t size[] = {cuuint64_t(cols), cuuint64_t(rows)}, stride[] = {cols * sizeof(bf16)};
  const cuuint32_t box[] = {BK, BM}, step[] = {1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, size, stride, box, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) printf("no tensor map: error %d\n", int(result));
  return map;
}

int main() {
  const int M = 128, N = 64, K = 192;
  bf16 *A, *B;
  float* C;
  cudaMallocManaged(&A, M * K * sizeof(bf16));
  cudaMallocManaged(&B, N * K * sizeof(bf16));
  cudaMallocManaged(&C, M * N * sizeof(float));
  for (int i = 0; i < M * K; i++) A[i] = __float2bfloat16((rand() % 17 - 8) / 8.0f);
  for (int i = 0; i < N * K; i++) B[i] = __float2bfloat16((rand() % 17 - 8) / 8.0f);
  bool right = true;
  for (const int offset : {0, 384}) {  // the tiles begin in row 0 of the swizzle's pattern, or in row 3
    const int bytes = offset + sizeof(SharedStorage);
    cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaMemset(C, 0xff, M * N * sizeof(float));
    gemm<<<dim3(N / BN, M / BM), 128, bytes>>>(make_map(A, M, K), make_map(B, N, K), C, N, K, offset);
    cudaDeviceSynchronize();
    for (int m = 0; m < M; m++) {
      for (int n = 0; n < N; n++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += __bfloat162float(A[m * K + k]) * __bfloat162float(B[n * K + k]);
        right = right && C[m * N + n] == sum;  // these products and sums are exact
      }
    }
  }
  printf(right ? "ok\n" : "wrong\n");
}
