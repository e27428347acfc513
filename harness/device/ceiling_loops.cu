// Kernels that keep one unit of the GPU busy and nothing else: the rate of each is a ceiling for every kernel
// that needs the unit. Loops are unrolled until what counts the rounds is a per cent of the instructions;
// what they compute ends in `sink`, or the compiler would see that nobody wants it.
#include <memory>

#include "common/cuda/check.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "harness/device/ceilings.h"
#include "harness/device/random_pair.h"

namespace flashsteps {
namespace {

constexpr int kWarps = 16;  // of a CTA, of which an SM has one: four warps for each of its schedulers
constexpr int kThreads = 32 * kWarps;
constexpr int kChains = 8;  // of a thread, that do not depend on each other: they and the warps hide latency
// About a millisecond each.
constexpr int kMmaRounds = 8192, kFmaRounds = 65536, kExp2Rounds = 8192, kSharedRounds = 4096;

__device__ float sink[kThreads];

// A launch: kMmaRounds * kChains * kWarps products mma.sync.m16n8k16 on every SM, bf16 with FP32
// accumulation, from registers into registers.
__global__ void __launch_bounds__(kThreads) mma_sync_loop() {
  uint32_t a[kChains][4], b[kChains][2];
  float acc[kChains][4] = {};
  for (int p = 0; p < kChains; ++p) {
    for (int i = 0; i < 4; ++i) a[p][i] = random_pair((threadIdx.x * kChains + p) * 6 + i);
    for (int i = 0; i < 2; ++i) b[p][i] = random_pair((threadIdx.x * kChains + p) * 6 + 4 + i);
  }
#pragma unroll 16
  for (int round = 0; round < kMmaRounds; ++round) {
#pragma unroll
    for (int p = 0; p < kChains; ++p) mma_m16n8k16<__nv_bfloat16>(acc[p], a[p], b[p]);
  }
  float sum = 0;
  for (int p = 0; p < kChains; ++p) sum += acc[p][0] + acc[p][1] + acc[p][2] + acc[p][3];
  sink[threadIdx.x] = sum;
}

// A launch: kFmaRounds * kChains * kThreads FP32 multiply-adds on every SM.
__global__ void __launch_bounds__(kThreads) fma_loop() {
  const float factor = -0.5f * fabsf(random_number(threadIdx.x)), summand = random_number(threadIdx.x + 1);
  float x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = random_number(threadIdx.x * kChains + i);
#pragma unroll 16
  for (int round = 0; round < kFmaRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = fmaf(x[i], factor, summand);
  }
  float sum = 0;
  for (int i = 0; i < kChains; ++i) sum += x[i];
  sink[threadIdx.x] = sum;
}

// A launch: kExp2Rounds * kChains * kThreads ex2.approx.ftz on every SM, as softmax computes them.
__global__ void __launch_bounds__(kThreads) exp2_loop() {
  float x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = random_number(threadIdx.x * kChains + i);
#pragma unroll 16
  for (int round = 0; round < kExp2Rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i)
      x[i] = exp2_approx(-x[i]);  // the sign costs nothing, and keeps x finite
  }
  float sum = 0;
  for (int i = 0; i < kChains; ++i) sum += x[i];
  sink[threadIdx.x] = sum;
}

// A launch: kSharedRounds * kChains * kWarps * 4 wavefronts on every SM. One ldmatrix.x4 reads 512 bytes in a
// row, 128 bytes of 32 different banks in each wavefront. Where a round begins follows from all that the
// round before has loaded, although it is 0 every time: or the compiler would load once what it needs.
__global__ void __launch_bounds__(kThreads) shared_loop() {
  __shared__ uint32_t rows[kChains][32][4];
  for (int i = threadIdx.x; i < kChains * 32 * 4; i += kThreads) rows[0][0][i] = random_pair(i);
  __syncthreads();
  uint32_t begin = 0;
  for (int round = 0; round < kSharedRounds; ++round) {
    uint32_t loaded[kChains][4], all = ~0u;
#pragma unroll
    for (int i = 0; i < kChains; ++i) ldmatrix_x4(loaded[i], rows[i][threadIdx.x % 32] + begin);
#pragma unroll
    for (int i = 0; i < kChains; ++i) all &= loaded[i][0];
    begin = ~all & 0x80u;  // random_pair() has set this bit
  }
  sink[threadIdx.x] = __uint_as_float(begin);
}

// A launch of all CTAs of a grid that fit: reads `rounds` * kLoads * 16 bytes in every thread. Neighbours in
// a warp read neighbours in memory, and a thread has kLoads loads on their way. Evict first: what is read
// again in the next launch shall not be in L2 any more.
constexpr int kLoads = 4;
__global__ void __launch_bounds__(kThreads) read_loop(const uint4* from, int rounds) {
  const size_t stride = size_t(gridDim.x) * kThreads;
  const uint4* next = from + blockIdx.x * kThreads + threadIdx.x;
  uint32_t sum = 0;
  for (int round = 0; round < rounds; ++round, next += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i] = __ldcs(next + i * stride);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += loaded[i].x + loaded[i].y + loaded[i].z + loaded[i].w;
  }
  if (sum == 0x5eed) sink[threadIdx.x] = 1;  // hardly ever: there is no traffic but the loads
}

// The same, and writes what it reads: half of the bytes are read and half are written.
__global__ void __launch_bounds__(kThreads) copy_loop(const uint4* from, uint4* to, int rounds) {
  const size_t stride = size_t(gridDim.x) * kThreads;
  size_t next = blockIdx.x * kThreads + threadIdx.x;
  for (int round = 0; round < rounds; ++round, next += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i] = __ldcs(from + next + i * stride);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) __stcs(to + next + i * stride, loaded[i]);
  }
}

__global__ void __launch_bounds__(kThreads) fill(uint4* to, size_t vectors) {
  for (size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += size_t(gridDim.x) * kThreads) {
    const uint32_t seed = uint32_t(4 * i);
    to[i] =
        make_uint4(random_pair(seed), random_pair(seed + 1), random_pair(seed + 2), random_pair(seed + 3));
  }
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// One CTA on every SM.
CeilingLaunch loop_on_every_sm(const char* what, const char* unit, double work_of_sm, void (*kernel)(),
                               cudaStream_t stream) {
  const int num_sms = attribute(cudaDevAttrMultiProcessorCount);
  return {what, unit, work_of_sm * num_sms, [=] {
            kernel<<<num_sms, kThreads, 0, stream>>>();
            CUDA_CHECK(cudaGetLastError());
          }};
}

// Over kBufferOfL2 times L2's size, so that next to nothing of it is still there at the next launch, in whole
// rounds of a grid. Empty when memory is short.
CeilingLaunch loop_over_memory(bool copies, cudaStream_t stream) {
  constexpr size_t kBufferOfL2 = 16;
  constexpr int kCtasPerSm = 3;  // 1536 threads, which every GPU since sm_80 has room for
  const int grid = attribute(cudaDevAttrMultiProcessorCount) * kCtasPerSm;
  const size_t round = size_t(grid) * kThreads * kLoads;
  const size_t rounds = kBufferOfL2 * attribute(cudaDevAttrL2CacheSize) / (round * sizeof(uint4));
  uint4* data = nullptr;
  if (cudaMalloc(&data, rounds * round * sizeof(uint4)) != cudaSuccess) {
    cudaGetLastError();  // as in check_cuda()
    return {};
  }
  const std::shared_ptr<uint4> buffer(data, cudaFree);
  fill<<<grid, kThreads, 0, stream>>>(data, rounds * round);
  CUDA_CHECK(cudaGetLastError());
  if (!copies) {
    return {"global memory, read", "bytes", double(rounds * round * sizeof(uint4)), [=] {
              read_loop<<<grid, kThreads, 0, stream>>>(buffer.get(), int(rounds));
              CUDA_CHECK(cudaGetLastError());
            }};
  }
  const size_t half = rounds / 2;
  return {"global memory, copied: read and written", "bytes", 2.0 * half * round * sizeof(uint4), [=] {
            copy_loop<<<grid, kThreads, 0, stream>>>(buffer.get(), buffer.get() + half * round, int(half));
            CUDA_CHECK(cudaGetLastError());
          }};
}

}  // namespace

CeilingLaunch make_ceiling_loop(const std::string& name, cudaStream_t stream) {
  if (name == "mma_sync")
    return loop_on_every_sm("mma.sync.m16n8k16 bf16 from registers", "FLOP",
                            2.0 * 16 * 8 * 16 * kMmaRounds * kChains * kWarps, mma_sync_loop, stream);
  if (name == "fma")
    return loop_on_every_sm("FP32 multiply-adds from registers", "FLOP",
                            2.0 * kFmaRounds * kChains * kThreads, fma_loop, stream);
  if (name == "exp2")
    return loop_on_every_sm("ex2.approx from registers", "exp2", 1.0 * kExp2Rounds * kChains * kThreads,
                            exp2_loop, stream);
  if (name == "shared")
    return loop_on_every_sm("shared memory, 128 bytes a wavefront", "wavefronts",
                            4.0 * kSharedRounds * kChains * kWarps, shared_loop, stream);
  return loop_over_memory(/*copies=*/name == "copy", stream);
}

}  // namespace flashsteps
