// C = A B in FP16 with inline PTX, as kernels for sm_80 have it: cp.async into two buffers, ldmatrix,
// mma.sync. Prints "ok".
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int BM = 64, BN = 64, BK = 32;
constexpr int PAD = 8;  // halves

__device__ __forceinline__ uint32_t smem_u32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void cp_async16(uint32_t dst, const void* src, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(addr)
               : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(d[0]), "f"(d[1]), "f"(d[2]),
        "f"(d[3]));
}

// M, N and K are multiples of BM, BN and BK. Four warps, each with 32 x 32 of the tile.
__global__ void __launch_bounds__(128) gemm(const half* A, const half* B, float* C, int N, int K) {
  __shared__ __align__(16) half As[2][BM][BK + PAD];
  __shared__ __align__(16) half Bs[2][BK][BN + PAD];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int wm = warp / 2 * 32, wn = warp % 2 * 32;

  auto load = [&](int stage, int k0) {
    for (int i = tid; i < BM * BK / 8; i += 128) {
      const int row = i / (BK / 8), col = i % (BK / 8) * 8;
      cp_async16(smem_u32(&As[stage][row][col]), &A[(m0 + row) * K + k0 + col], true);
    }
    for (int i = tid; i < BK * BN / 8; i += 128) {
      const int row = i / (BN / 8), col = i % (BN / 8) * 8;
      cp_async16(smem_u32(&Bs[stage][row][col]), &B[(k0 + row) * N + n0 + col], true);
    }
    asm volatile("cp.async.commit_group;\n" ::);
  };

  float acc[2][4][4] = {};
  load(0, 0);
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    if (k0 + BK < K) {
      load(stage ^ 1, k0 + BK);
      asm volatile("cp.async.wait_group %0;\n" ::"n"(1));
    } else {
      asm volatile("cp.async.wait_all;");
    }
    __syncthreads();
    for (int k = 0; k < BK; k += 16) {
      uint32_t a[2][4], b[4][2];
      for (int i = 0; i < 2; i++)
        ldmatrix_x4(a[i], smem_u32(&As[stage][wm + 16 * i + lane % 16][k + lane / 16 * 8]));
      for (int j = 0; j < 4; j++) ldmatrix_x2_trans(b[j], smem_u32(&Bs[stage][k + lane % 16][wn + 8 * j]));
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) mma(acc[i][j], a[i], b[j]);
    }
    __syncthreads();  // before the next copies overwrite this stage
  }

  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 4; j++) {
      float* c = &C[(m0 + wm + 16 * i + lane / 4) * N + n0 + wn + 8 * j + lane % 4 * 2];
      asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(c), "f"(acc[i][j][0]), "f"(acc[i][j][1])
                   : "memory");
      asm volatile("st.global.v2.f32 [%0 + 0], {%1, %2};" ::"l"(c + 8 * N), "f"(acc[i][j][2]),
                   "f"(acc[i][j][3])
                   : "memory");
    }
  }
}

int main() {
  const int M = 128, N = 128, K = 96;
  half *A, *B;
  float* C;
  cudaMallocManaged(&A, M * K * sizeof(half));
  cudaMallocManaged(&B, K * N * sizeof(half));
  cudaMallocManaged(&C, M * N * sizeof(float));
  for (int i = 0; i < M * K; i++) A[i] = __float2half((rand() % 17 - 8) / 8.0f);
  for (int i = 0; i < K * N; i++) B[i] = __float2half((rand() % 17 - 8) / 8.0f);
  gemm<<<dim3(N / BN, M / BM), 128>>>(A, B, C, N, K);
  cudaDeviceSynchronize();
  bool right = true;
  for (int m = 0; m < M; m++) {
    for (int n = 0; n < N; n++) {
      float sum = 0;
      for (int k = 0; k < K; k++) sum += __half2float(A[m * K + k]) * __half2float(B[k * N + n]);
      right = right && C[m * N + n] == sum;  // these products and sums are exact
    }
  }
  printf(right ? "ok\n" : "wrong\n");
}
