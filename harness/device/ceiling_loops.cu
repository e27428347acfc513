// Kernels that keep one unit of the GPU busy and nothing else: the rate of each is a ceiling for every kernel
// that needs the unit. Loops are unrolled until what counts the rounds is a per cent of the instructions;
// what they compute ends in `sink`, or the compiler would see that nobody wants it.
#include <memory>
#include <stdexcept>

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

// Of kernels whose loads hide latency: 1536 threads, for which every GPU since sm_80 has room.
constexpr int kCtasPerSm = 3;

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

// A launch of all CTAs of a grid that fit. Neighbours in a warp read neighbours in memory, and a thread has
// LOADS loads of 16 bytes on their way. Evict first: what is read again in the next launch shall not be in L2
// any more. Or, with KEEP, it shall stay there in the place of all else.
template <int LOADS, bool KEEP>
__global__ void __launch_bounds__(kThreads) read_loop(const uint4* from, size_t vectors) {
  const size_t stride = size_t(gridDim.x) * kThreads;
  uint32_t sum = 0;
  for (size_t next = blockIdx.x * kThreads + threadIdx.x; next < vectors; next += LOADS * stride) {
    uint4 loaded[LOADS] = {};
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const uint4* const at = from + next + i * stride;
      if (next + i * stride < vectors) loaded[i] = KEEP ? __ldcg(at) : __ldcs(at);
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) sum += loaded[i].x + loaded[i].y + loaded[i].z + loaded[i].w;
  }
  if (sum == 0x5eed) sink[threadIdx.x] = 1;  // hardly ever: there is no traffic but the loads
}

// Reads and writes `rounds` * kLoads * 16 bytes in every thread.
constexpr int kLoads = 4;
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

// One CTA on every SM.
CeilingLaunch loop_on_every_sm(const char* what, const char* unit, double work_of_sm, void (*kernel)(),
                               cudaStream_t stream) {
  const int num_sms = device_properties().multiProcessorCount;
  return {what, unit, work_of_sm * num_sms, [=] {
            kernel<<<num_sms, kThreads, 0, stream>>>();
            CUDA_CHECK(cudaGetLastError());
          }};
}

int max_ctas() { return device_properties().multiProcessorCount * kCtasPerSm; }

// Owns so many bytes of random numbers; empty when memory is short.
std::shared_ptr<void> make_buffer(size_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();  // as in check_cuda()
    return {};
  }
  const std::shared_ptr<void> buffer(data, cudaFree);
  fill<<<max_ctas(), kThreads, 0, stream>>>(static_cast<uint4*>(data), bytes / sizeof(uint4));
  CUDA_CHECK(cudaGetLastError());
  return buffer;
}

template <int LOADS, bool KEEP>
std::function<void()> make_read_loop(const std::shared_ptr<void>& buffer, size_t bytes, int ctas,
                                     cudaStream_t stream) {
  return [=] {
    read_loop<LOADS, KEEP>
        <<<ctas, kThreads, 0, stream>>>(static_cast<const uint4*>(buffer.get()), bytes / sizeof(uint4));
    CUDA_CHECK(cudaGetLastError());
  };
}

template <int LOADS>
void add_read_loops(std::vector<CeilingLaunch>& ways, const std::shared_ptr<void>& buffer, size_t bytes,
                    cudaStream_t stream) {
  for (int ctas_per_sm = 2; ctas_per_sm <= kCtasPerSm; ++ctas_per_sm) {
    const std::string threads = std::to_string(ctas_per_sm * kThreads) + " threads an SM";
    ways.push_back(
        {"by " + threads + " with " + std::to_string(LOADS) + " loads of 16 bytes each", "bytes",
         double(bytes),
         make_read_loop<LOADS, false>(buffer, bytes, max_ctas() / kCtasPerSm * ctas_per_sm, stream)});
  }
}

// Half of bytes_beyond_l2() is read and half is written, in whole rounds of a grid.
CeilingLaunch make_copy_loop(cudaStream_t stream) {
  const int grid = max_ctas();
  const size_t round = size_t(grid) * kThreads * kLoads,
               rounds = bytes_beyond_l2() / 2 / sizeof(uint4) / round;
  const std::shared_ptr<void> buffer = make_buffer(2 * rounds * round * sizeof(uint4), stream);
  if (!buffer) return {};
  return {"global memory, copied: read and written", "bytes", 2.0 * rounds * round * sizeof(uint4), [=] {
            uint4* const data = static_cast<uint4*>(buffer.get());
            copy_loop<<<grid, kThreads, 0, stream>>>(data, data + rounds * round, int(rounds));
            CUDA_CHECK(cudaGetLastError());
          }};
}

}  // namespace

cudaDeviceProp device_properties() {
  cudaDeviceProp properties;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return properties;
}

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
  return make_copy_loop(stream);
}

size_t bytes_beyond_l2() { return size_t(64) * device_properties().l2CacheSize; }

std::vector<CeilingLaunch> make_read_loops(size_t bytes, cudaStream_t stream) {
  const std::shared_ptr<void> buffer = make_buffer(bytes, stream);
  if (!buffer) return {};
  std::vector<CeilingLaunch> ways;
  add_read_loops<2>(ways, buffer, bytes, stream);
  add_read_loops<4>(ways, buffer, bytes, stream);
  add_read_loops<8>(ways, buffer, bytes, stream);
  return ways;
}

std::function<void()> make_l2_flush(cudaStream_t stream) {
  const size_t bytes = size_t(kFlushOfL2) * device_properties().l2CacheSize;
  const std::shared_ptr<void> buffer = make_buffer(bytes, stream);
  if (!buffer) throw std::runtime_error("there is no memory to flush L2 with");
  return make_read_loop<4, true>(buffer, bytes, max_ctas(), stream);
}

}  // namespace flashsteps
