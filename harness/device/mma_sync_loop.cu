#include "common/cuda/check.h"
#include "common/mma.h"
#include "harness/device/ceilings.h"

namespace flashsteps {
namespace {

constexpr int kWarps = 16;  // per SM, four for each of its schedulers
constexpr int kProducts =
    8;  // of a warp that do not depend on each other: 128 products an SM hide any latency
constexpr int kRounds = 8192;  // about a millisecond
constexpr double kFlopsOfProduct = 2.0 * 16 * 8 * 16;

// Two bf16 of +-[1, 2) with random signs and mantissas. On zeros a GPU draws less power and clocks higher
// than any real kernel would.
__device__ uint32_t random_pair(uint32_t seed) {
  seed = (seed ^ (seed >> 16)) * 0x7feb352du;
  seed = (seed ^ (seed >> 15)) * 0x846ca68bu;
  return ((seed ^ (seed >> 16)) & 0x807f807fu) | 0x3f803f80u;
}

__device__ float sink[kWarps * 32];  // or the compiler would see that nobody wants the products

__global__ void __launch_bounds__(kWarps * 32) mma_sync_loop() {
  uint32_t a[kProducts][4], b[kProducts][2];
  float acc[kProducts][4] = {};
  for (int p = 0; p < kProducts; ++p) {
    for (int i = 0; i < 4; ++i) a[p][i] = random_pair((threadIdx.x * kProducts + p) * 6 + i);
    for (int i = 0; i < 2; ++i) b[p][i] = random_pair((threadIdx.x * kProducts + p) * 6 + 4 + i);
  }
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int p = 0; p < kProducts; ++p) mma_m16n8k16<__nv_bfloat16>(acc[p], a[p], b[p]);
  }
  float sum = 0;
  for (int p = 0; p < kProducts; ++p) sum += acc[p][0] + acc[p][1] + acc[p][2] + acc[p][3];
  sink[threadIdx.x] = sum;
}

}  // namespace

std::function<void()> make_mma_sync_loop(cudaStream_t stream, double& flops) {
  int device = 0, num_sms = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
  flops = kFlopsOfProduct * kProducts * kRounds * kWarps * num_sms;
  return [stream, num_sms] {
    mma_sync_loop<<<num_sms, kWarps * 32, 0, stream>>>();
    CUDA_CHECK(cudaGetLastError());
  };
}

}  // namespace flashsteps
