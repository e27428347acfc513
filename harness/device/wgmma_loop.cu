// What wgmma alone gives, and what exp2 gives beside it; see ceiling_loops.cu for the others. For compute
// capability 9.0 and nothing else: the build looks for the words needs_sm = "90a".
#include "common/cuda/check.h"
#include "common/exp2.h"
#include "common/named_barrier.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "common/wgmma.h"
#include "harness/device/ceilings.h"
#include "harness/device/random_pair.h"

namespace flashsteps {
namespace {

constexpr int kWarpgroups = 2;  // of a CTA, of which an SM has one: while one waits, the other computes
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kRounds = 1024, kExp2Rounds = 8192;  // about a millisecond
constexpr int kChains = 8;                         // of a thread that exponentiates, as in ceiling_loops.cu
constexpr int kDepth = 64;                         // columns of A's and B's tiles: 128 bytes, the swizzle's
constexpr int kProducts = kDepth / 16;
constexpr double kFlopsOfProduct = 2.0 * 64 * 256 * 16;

using TileA = SwizzledTile<__nv_bfloat16, 64, kDepth, 128>;
using TileB = SwizzledTile<__nv_bfloat16, 256, kDepth, 128>;
template <int WARPGROUPS>
struct Operands {
  TileA a[WARPGROUPS];
  TileB b;

  __device__ void fill() {  // by all threads of the CTA
    uint32_t* const pairs = reinterpret_cast<uint32_t*>(this);
    for (int i = threadIdx.x; i < int(sizeof(*this) / 4); i += blockDim.x) pairs[i] = random_pair(i);
    fence_proxy_async();
    __syncthreads();
  }
};

__device__ float sink[3 * 128];

// A round of a warpgroup's products is under way when this returns, and the one before is complete. They all
// add to the same accumulators: that waits for nothing.
__device__ __forceinline__ void start_products(float (&acc)[128], const TileA& a, const TileB& b) {
  warpgroup_arrive();
#pragma unroll
  for (int p = 0; p < kProducts; ++p)
    wgmma_m64k16<__nv_bfloat16>(acc, make_smem_descriptor(a, 0, 16 * p), make_smem_descriptor(b, 0, 16 * p),
                                true);
  warpgroup_commit_batch();
  warpgroup_wait<1>();
}
__device__ __forceinline__ void finish_products(const float (&acc)[128]) {
  warpgroup_wait<0>();
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += acc[i];
  sink[threadIdx.x] = sum;
}

// A launch: kRounds * kProducts * kWarpgroups products wgmma.m64n256k16 on every SM, bf16 with FP32
// accumulation, both operands in shared memory.
__global__ void __launch_bounds__(kThreads) wgmma_loop() {
  __shared__ Operands<kWarpgroups> shared;
  shared.fill();
  float acc[128] = {};
  for (int round = 0; round < kRounds; ++round) start_products(acc, shared.a[threadIdx.x / 128], shared.b);
  finish_products(acc);
}

// A launch: kExp2Rounds * kChains * kThreads ex2.approx.ftz on every SM, by two warpgroups. Until they are
// done, a third multiplies as in wgmma_loop.
__global__ void __launch_bounds__(kThreads + 128) exp2_beside_wgmma_loop() {
  __shared__ Operands<1> shared;
  __shared__ int warps_done, stop;
  if (threadIdx.x == 0) warps_done = 0;
  shared.fill();
  if (threadIdx.x < kThreads) {
    float x[kChains];
    for (int i = 0; i < kChains; ++i) x[i] = random_number(threadIdx.x * kChains + i);
#pragma unroll 16
    for (int round = 0; round < kExp2Rounds; ++round) {
#pragma unroll
      for (int i = 0; i < kChains; ++i) x[i] = exp2_approx(-x[i]);
    }
    float sum = 0;
    for (int i = 0; i < kChains; ++i) sum += x[i];
    sink[threadIdx.x] = sum;
    if (threadIdx.x % 32 == 0) atomicAdd(&warps_done, 1);
    return;
  }
  // The four warps must multiply equally often, so one of them decides for all.
  float acc[128] = {};
  bool stops;
  do {
    for (int round = 0; round < 16; ++round) start_products(acc, shared.a[0], shared.b);
    if (threadIdx.x == kThreads) stop = *static_cast<volatile int*>(&warps_done) == kThreads / 32;
    bar_sync(1, 128);  // `stop` is written
    stops = stop;
    bar_sync(1, 128);  // all have read it
  } while (!stops);
  finish_products(acc);
}

}  // namespace

CeilingLaunch make_wgmma_loop(const std::string& name, cudaStream_t stream) {
  const cudaDeviceProp device = device_properties();
  if (device.major != 9 || device.minor != 0) return {};
  const int num_sms = device.multiProcessorCount;
  if (name == "exp2_beside_wgmma") {
    return {"ex2.approx from registers, beside wgmma", "exp2",
            double(kExp2Rounds) * kChains * kThreads * num_sms, [=] {
              exp2_beside_wgmma_loop<<<num_sms, kThreads + 128, 0, stream>>>();
              CUDA_CHECK(cudaGetLastError());
            }};
  }
  return {"wgmma.m64n256k16 bf16 from shared memory", "FLOP",
          kFlopsOfProduct * kRounds * kProducts * kWarpgroups * num_sms, [=] {
            wgmma_loop<<<num_sms, kThreads, 0, stream>>>();
            CUDA_CHECK(cudaGetLastError());
          }};
}

}  // namespace flashsteps
