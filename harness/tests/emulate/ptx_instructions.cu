// Inline PTX of many kinds, each with what it must give. Prints "ok".
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

__device__ unsigned num_wrong;
__device__ void check(bool right, int number) {
  if (right) return;
  if (atomicAdd(&num_wrong, 1u) == 0) printf("check %d, lane %d\n", number, threadIdx.x);
}

__device__ void registers_and_bits(unsigned lane) {
  uint32_t a, b, c;
  asm("mov.u32 %0, %%laneid;" : "=r"(a));
  asm("{ .reg .b32 %%x, y<2>;\n\t add.u32 %%x, %1, 1; // comment\n mul.lo.u32 y1, %%x, 3; mov.b32 %0, y1; }"
      : "=r"(b)
      : "r"(a));
  check(a == lane && b == 3 * (lane + 1), 1);
  asm("{ .reg .pred p; setp.ge.s32 p, %1, 16; selp.u32 %0, 7, 8, p; @p add.u32 %0, %0, 100; @!p add.u32 %0, "
      "%0, 200; }"
      : "=r"(a)
      : "r"(lane));
  check(a == (lane >= 16 ? 107 : 208), 2);
  asm("{ .reg .pred p, q, r; setp.lt.u32 r, %1, 9; setp.ge.and.u32 p|q, %1, 4, r; selp.u32 %0, 1, 2, p; @q "
      "add.u32 %0, %0, 10; }"
      : "=r"(c)
      : "r"(lane));
  check(c == (lane < 4 ? 12 : lane < 9 ? 1 : 2), 6);
  uint64_t wide;
  uint16_t low, high;
  asm("mov.b64 %0, {%1, %2};" : "=l"(wide) : "r"(lane), "r"(9));
  asm("mov.b64 {%0, %1}, %2;" : "=r"(a), "=r"(b) : "l"(wide));
  asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(0x12345678));
  check(wide == (9ull << 32 | lane) && a == lane && b == 9 && low == 0x5678 && high == 0x1234, 3);
  asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(a) : "r"(0x11112222), "r"(0x33334444));
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(b) : "r"(0xff00ff00), "r"(0xf0f0f0f0), "r"(lane));
  asm("shf.l.wrap.b32 %0, %1, %2, 8;" : "=r"(c) : "r"(0x80000000), "r"(0x00000001));
  check(a == 0x44442222 && b == ((0xff00ff00 & 0xf0f0f0f0) ^ lane) && c == 0x00000180, 4);
  int32_t field;
  asm("bfe.s32 %0, %1, 4, 8;" : "=r"(field) : "r"(0xf80));
  asm("bfi.b32 %0, %1, %2, 8, 4;" : "=r"(a) : "r"(0x5), "r"(0xffffffff));
  asm("shr.u32 %0, %1, 40;" : "=r"(b) : "r"(0xffffffff));
  check(field == -8 && a == 0xfffff5ff && b == 0, 5);
}

__device__ void numbers(unsigned lane) {
  float x;
  uint32_t bits;
  uint16_t half_bits;
  asm("fma.rn.f32 %0, %1, 0f40000000, 1.5;" : "=f"(x) : "f"(float(lane)));
  check(x == 2 * lane + 1.5f, 10);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(3.0f));
  check(x == 8, 11);
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(2.0f), "f"(1.0f));
  check(bits == 0x40003f80, 12);
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(2.0f), "f"(1.0f));
  check(bits == 0x40003c00, 13);
  asm("add.rn.f16x2 %0, %0, %1;" : "+r"(bits) : "r"(0x3c003c00));
  check(bits == 0x42004000, 14);
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half_bits) : "f"(1.0f));
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half_bits));
  check(half_bits == 0x3c00 && x == 1, 15);
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(bits) : "f"(-2.75f));
  check(int(bits) == -2, 16);
  asm("{ .reg .f32 a; rcp.approx.ftz.f32 a, %1; sqrt.rn.f32 %0, a; }" : "=f"(x) : "f"(0.25f));
  check(x == 2, 17);
  asm("max.f32 %0, %1, %2;" : "=f"(x) : "f"(1.0f), "f"(-1.0f));
  check(x == 1, 18);
}

__device__ void memory(unsigned lane, float* global, const uint4* source) {
  __shared__ __align__(16) float tile[32 * 4];
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(&tile[4 * lane]));
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(1.0f), "f"(2.0f), "f"(3.0f),
               "f"(lane * 1.0f));
  __syncwarp();
  uint32_t neighbour;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
      : "=r"(neighbour)
      : "l"(&tile[4 * (lane ^ 1)]));
  float x, y, z;
  asm volatile("ld.shared.f32 %0, [%1+12];" : "=f"(x) : "r"(neighbour) : "memory");
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(y), "=f"(z) : "r"(neighbour) : "memory");
  check(x == (lane ^ 1) && y == 1 && z == 2, 20);
  asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(global + lane), "f"(x) : "memory");
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global + lane), "f"(1.0f) : "memory");
  asm volatile("ld.global.L1::no_allocate.L2::128B.f32 %0, [%1];" : "=f"(y) : "l"(global + lane) : "memory");
  check(y == (lane ^ 1) + 1, 21);
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source + lane));
  check(v.x == 4 * lane && v.w == 4 * lane + 3, 22);
  __syncwarp();
  // Copies of 4 bytes, of which the last are zeros.
  const int bytes = lane < 16 ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n cp.async.wait_all;" ::"r"(address),
               "l"(source + lane), "r"(bytes)
               : "memory");
  __syncwarp();
  check(__float_as_uint(tile[4 * (lane ^ 1)]) == (lane < 16 ? 4 * (lane ^ 1) : 0), 23);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
}

__device__ void lanes(unsigned lane) {
  uint32_t a, b, in_segment;
  asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=r"(a) : "r"(lane));
  asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 4, 0x1800, 0xffffffff; selp.u32 %1, 1, 0, p; }"
               : "=r"(b), "=r"(in_segment)
               : "r"(lane));
  check(a == (lane ^ 1) && b == (lane % 8 < 4 ? lane : lane - 4) && in_segment == (lane % 8 >= 4), 30);
  asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 3; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
               : "=r"(a)
               : "r"(lane));
  asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(b) : "r"(lane));
  check(a == 7 && b == 496, 31);
  // A loop with labels
  asm("{\n"
      ".reg .pred done;\n"
      "mov.u32 %0, 0;\n"
      "AGAIN:\n"
      "setp.ge.u32 done, %0, %1;\n"
      "@done bra DONE;\n"
      "add.u32 %0, %0, 5;\n"
      "bra.uni AGAIN;\n"
      "DONE:\n"
      "}"
      : "=&r"(a)
      : "r"(lane));
  check(a == (lane + 4) / 5 * 5, 32);
  asm volatile("bar.sync 1, 32; membar.gl; fence.acq_rel.gpu;" ::: "memory");
}

// D = A I, with A from shared memory by ldmatrix, and the transposed D back to it.
__device__ void matrices(unsigned lane) {
  __shared__ __align__(16) half a[16][8];
  for (int i = lane; i < 128; i += 32) a[i / 8][i % 8] = __float2half(i);
  __syncwarp();
  const uint32_t row = static_cast<uint32_t>(__cvta_generic_to_shared(a[lane % 16]));
  uint32_t r[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
  // Of the identity, a lane has B[c][r] and B[c + 1][r], with r = lane / 4 and c = 2 (lane % 4).
  const uint32_t one = lane / 4 == lane % 4 * 2 ? 0x00003c00 : lane / 4 == lane % 4 * 2 + 1 ? 0x3c000000 : 0;
  float d[4], zero = 0;
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(r[0]), "r"(r[1]), "r"(one), "f"(zero));
  const unsigned i = lane / 4 * 8 + lane % 4 * 2;
  check(d[0] == i && d[1] == i + 1 && d[2] == i + 64 && d[3] == i + 65, 40);
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(r[0]));
  const half2 pair = *reinterpret_cast<half2*>(&transposed);
  const unsigned j = lane % 4 * 2 * 8 + lane / 4;
  check(__low2float(pair) == j && __high2float(pair) == j + 8, 44);
  uint32_t sums[2] = {0, 0};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
               : "+r"(sums[0]), "+r"(sums[1])
               : "r"(r[0]), "r"(r[1]), "r"(one));
  check(sums[0] == r[0] && sums[1] == r[1], 41);

  // Bytes: a row of A is of ones, and B[k][n] = n - 4.
  const int n = int(lane / 4) - 4;
  const uint32_t bytes = 0x01010101u * uint32_t(n & 0xff);
  int sum[4] = {1, 1, 1, 1};
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, "
      "%1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(0x01010101), "r"(bytes));
  const int column = int(lane % 4) * 2 - 4;
  check(sum[0] == 32 * column + 1 && sum[1] == 32 * (column + 1) + 1 && sum[3] == sum[1], 42);
  // TF32: A[m][k] = m, B[k][n] = n.
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %4, %5}, {%6, %6}, {%7, "
      "%7, %7, %7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(__float_as_uint(lane / 4)), "r"(__float_as_uint(lane / 4 + 8)), "r"(__float_as_uint(lane / 4)),
        "f"(zero));
  const float row_0 = lane / 4, column_0 = lane % 4 * 2;
  check(d[0] == 8 * row_0 * column_0 && d[3] == 8 * (row_0 + 8) * (column_0 + 1), 43);
}

__global__ void check_all(float* global, const uint4* source) {
  const unsigned lane = threadIdx.x;
  registers_and_bits(lane);
  numbers(lane);
  memory(lane, global, source);
  lanes(lane);
  matrices(lane);
}

int main() {
  float* global;
  uint4* source;
  cudaMallocManaged(&global, 32 * sizeof(float));
  cudaMallocManaged(&source, 32 * sizeof(uint4));
  for (unsigned i = 0; i < 32; i++) source[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
  check_all<<<1, 32>>>(global, source);
  unsigned wrong = 1;
  cudaMemcpyFromSymbol(&wrong, num_wrong, sizeof(wrong));
  printf(cudaGetLastError() == cudaSuccess && wrong == 0 ? "ok\n" : "wrong\n");
}
