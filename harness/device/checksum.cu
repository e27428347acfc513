#include "harness/device/checksum.h"

#include <algorithm>
#include <memory>

#include "common/cuda/launch.h"
#include "harness/device/gpu.h"

namespace flashsteps {
namespace {

constexpr int kThreads = 256, kMostCtas = 1024;

// The values, each mixed with its index. Another value at an index always adds another number. That several
// changes cancel out is as likely as to guess 64 bits.
__global__ void __launch_bounds__(kThreads)
    add_up(const uint16_t* values, size_t count, unsigned long long* sum) {
  unsigned long long of_thread = 0;
  for (size_t i = blockIdx.x * size_t(kThreads) + threadIdx.x; i < count; i += size_t(gridDim.x) * kThreads) {
    unsigned long long mixed = (i + 1) * 0x9e3779b97f4a7c15 ^ values[i];
    mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
    of_thread += mixed ^ mixed >> 32;
  }
  atomicAdd(sum, of_thread);
}

}  // namespace

uint64_t gpu_checksum(const void* memory, size_t bytes, void* stream) {
  const std::unique_ptr<void, void (*)(void*)> sum(gpu_allocate(sizeof(uint64_t)), gpu_release);
  gpu_fill_zero(sum.get(), sizeof(uint64_t), stream);
  const size_t count = bytes / sizeof(uint16_t);
  // Each thread adds to the one sum, which takes longer than all else where there are many of them. Of layout
  // far, each row has a checksum of its own.
  const auto ctas = unsigned(std::clamp<size_t>((count + kThreads - 1) / kThreads, 1, kMostCtas));
  add_up<<<ctas, kThreads, 0, cudaStream_t(stream)>>>(static_cast<const uint16_t*>(memory), count,
                                                      static_cast<unsigned long long*>(sum.get()));
  check_launch();
  uint64_t found = 0;
  gpu_download(&found, sum.get(), sizeof found, stream);
  return found;
}

}  // namespace flashsteps
