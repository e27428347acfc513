// What wgmma alone gives, see ceiling_loops.cu for the others. For compute capability 9.0 and nothing else:
// the build looks for the words needs_sm = "90a".
#include "common/cuda/check.h"
#include "harness/device/ceilings.h"
#include "harness/device/random_pair.h"

namespace flashsteps {
namespace {

constexpr int kWarpgroups = 2;  // of a CTA, of which an SM has one: while one waits, the other computes
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kRounds = 1024;  // about a millisecond
constexpr int kDepth = 64;     // elements of a row of A or B: the 128 bytes of the swizzle
constexpr int kProducts = kDepth / 16;
constexpr double kFlopsOfProduct = 2.0 * 64 * 256 * 16;

__device__ float sink[kThreads];

// Rows of 128 bytes, K-major, with the 128-byte swizzle. PTX ISA, "Asynchronous warpgroup level matrix
// shared memory layout": address / 16, 1024 bytes from eight rows to the next eight, the swizzle.
__device__ uint64_t descriptor(const void* rows) {
  return uint64_t(__cvta_generic_to_shared(rows)) >> 4 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// The accumulators are registers of the PTX below alone, d100 ... d107, d110 ... d257: 128 operands of an asm
// statement would say no more.
#define EIGHT(t) "d" #t "0, d" #t "1, d" #t "2, d" #t "3, d" #t "4, d" #t "5, d" #t "6, d" #t "7"
#define ACCUMULATORS \
  EIGHT(10) ", " EIGHT(11) ", " EIGHT(12) ", " EIGHT(13) ", " EIGHT(14) ", " EIGHT(15) ", " EIGHT(16) ", " \
  EIGHT(17) ", " EIGHT(18) ", " EIGHT(19) ", " EIGHT(20) ", " EIGHT(21) ", " EIGHT(22) ", " EIGHT(23) ", " \
  EIGHT(24) ", " EIGHT(25)
#define PRODUCT                                                          \
  "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" ACCUMULATORS \
  "}, a, b, accumulate, 1, 1, 0, 0;\n"                                   \
  "setp.eq.b32 accumulate, 0, 0;\n"
// The next 16 elements of the rows: 32 bytes on.
#define NEXT "add.u64 a, a, 2; add.u64 b, b, 2;\n"

// A launch: kRounds * kProducts * kWarpgroups products wgmma.m64n256k16 on every SM, bf16 with FP32
// accumulation, both operands in shared memory.
__global__ void __launch_bounds__(kThreads) wgmma_loop() {
  __shared__ alignas(1024) uint32_t rows_a[kWarpgroups][64 * kDepth / 2], rows_b[256 * kDepth / 2];
  for (int i = threadIdx.x; i < kWarpgroups * 64 * kDepth / 2; i += kThreads) rows_a[0][i] = random_pair(i);
  for (int i = threadIdx.x; i < 256 * kDepth / 2; i += kThreads) rows_b[i] = random_pair(~i);
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");  // before wgmma reads what threads wrote
  __syncthreads();
  float first;
  asm volatile(
      "{\n"
      ".reg .f32 d<258>;\n"
      ".reg .pred accumulate, again;\n"
      ".reg .b64 a, b;\n"
      ".reg .u32 round;\n"
      "setp.ne.b32 accumulate, 0, 0;\n"  // the first product overwrites
      "mov.u32 round, 0;\n"
      "ROUND:\n"
      "wgmma.fence.sync.aligned;\n"
      "mov.b64 a, %1; mov.b64 b, %2;\n"  //
      PRODUCT NEXT PRODUCT NEXT PRODUCT NEXT PRODUCT
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 1;\n"
      "add.u32 round, round, 1;\n"
      "setp.lt.u32 again, round, %3;\n"
      "@again bra ROUND;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "mov.f32 %0, d100;\n"
      "}\n"
      : "=f"(first)
      : "l"(descriptor(rows_a[threadIdx.x / 128])), "l"(descriptor(rows_b)), "n"(kRounds)
      : "memory");
  sink[threadIdx.x] = first;
}

}  // namespace

CeilingLaunch make_wgmma_loop(cudaStream_t stream) {
  cudaDeviceProp device;
  int number = 0;
  CUDA_CHECK(cudaGetDevice(&number));
  CUDA_CHECK(cudaGetDeviceProperties(&device, number));
  if (device.major != 9 || device.minor != 0) return {};
  const int num_sms = device.multiProcessorCount;
  return {"wgmma.m64n256k16 bf16 from shared memory", "FLOP",
          kFlopsOfProduct * kRounds * kProducts * kWarpgroups * num_sms, [=] {
            wgmma_loop<<<num_sms, kThreads, 0, stream>>>();
            CUDA_CHECK(cudaGetLastError());
          }};
}

}  // namespace flashsteps
