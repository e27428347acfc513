// What wgmma alone gives, see ceiling_loops.cu for the others. For compute capability 9.0 and nothing else:
// the build looks for the words needs_sm = "90a".
#include "common/cuda/check.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "common/wgmma.h"
#include "harness/device/ceilings.h"
#include "harness/device/random_pair.h"

namespace flashsteps {
namespace {

constexpr int kWarpgroups = 2;  // of a CTA, of which an SM has one: while one waits, the other computes
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kRounds = 1024;  // about a millisecond
constexpr int kDepth = 64;     // columns of A's and B's tiles: 128 bytes, the swizzle's
constexpr int kProducts = kDepth / 16;
constexpr double kFlopsOfProduct = 2.0 * 64 * 256 * 16;

using TileA = SwizzledTile<__nv_bfloat16, 64, kDepth, 128>;
using TileB = SwizzledTile<__nv_bfloat16, 256, kDepth, 128>;
struct SharedStorage {
  TileA a[kWarpgroups];
  TileB b;
};

__device__ float sink[kThreads];

// A launch: kRounds * kProducts * kWarpgroups products wgmma.m64n256k16 on every SM, bf16 with FP32
// accumulation, both operands in shared memory. They all add to the same accumulators: that waits for
// nothing.
__global__ void __launch_bounds__(kThreads) wgmma_loop() {
  __shared__ SharedStorage shared;
  uint32_t* const pairs = reinterpret_cast<uint32_t*>(&shared);
  for (int i = threadIdx.x; i < int(sizeof(shared) / 4); i += kThreads) pairs[i] = random_pair(i);
  fence_proxy_async();
  __syncthreads();
  const TileA& tile_a = shared.a[threadIdx.x / 128];
  float acc[128] = {};
  for (int round = 0; round < kRounds; ++round) {
    warpgroup_arrive();
#pragma unroll
    for (int p = 0; p < kProducts; ++p)
      wgmma_m64k16<__nv_bfloat16>(acc, make_smem_descriptor(tile_a, 0, 16 * p),
                                  make_smem_descriptor(shared.b, 0, 16 * p), true);
    warpgroup_commit_batch();
    warpgroup_wait<1>();
  }
  warpgroup_wait<0>();
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += acc[i];
  sink[threadIdx.x] = sum;
}

}  // namespace

CeilingLaunch make_wgmma_loop(cudaStream_t stream) {
  const cudaDeviceProp device = device_properties();
  if (device.major != 9 || device.minor != 0) return {};
  const int num_sms = device.multiProcessorCount;
  return {"wgmma.m64n256k16 bf16 from shared memory", "FLOP",
          kFlopsOfProduct * kRounds * kProducts * kWarpgroups * num_sms, [=] {
            wgmma_loop<<<num_sms, kThreads, 0, stream>>>();
            CUDA_CHECK(cudaGetLastError());
          }};
}

}  // namespace flashsteps
