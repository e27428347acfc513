#include "common/launch.h"
#include "harness/tests/gpu/launch_kernels.h"

namespace flashsteps {
namespace {

__global__ void spin(long long clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

__global__ void __launch_bounds__(64) narrow() {}

__global__ void sum_shared_memory(int bytes, float* sum) {
  for (int i = 0; i < bytes; ++i) smem[i] = 1;
  float total = 0;
  for (int i = 0; i < bytes; ++i) total += smem[i];
  *sum = total;
}

// Each load needs what the one before has returned: the time is that of so many round trips.
__global__ void follow(float* next, int count) {
  float at = 0;
  for (int i = 0; i < count; ++i) at = next[size_t(at)];
  next[1] = at;
}

void run_spin(const AttentionCall& call, void* stream) {
  launch(spin, dim3(1), dim3(32), 0, static_cast<Stream>(stream), 1000ll * call.seqlen_q);
}

void run_shared_memory(const AttentionCall& call, void* stream) {
  launch(sum_shared_memory, dim3(1), dim3(1), size_t(call.seqlen_kv), static_cast<Stream>(stream),
         call.seqlen_kv, call.lse);
}

void run_grid(const AttentionCall& call, void* stream) {
  launch(narrow, dim3(1, call.num_heads_q, call.batch), dim3(32), 0, static_cast<Stream>(stream));
}

void run_follow(const AttentionCall& call, void* stream) {
  launch(follow, dim3(1), dim3(1), 0, static_cast<Stream>(stream), call.lse, call.seqlen_kv);
}

constexpr StepInfo kInfo{.title = "for the tests", .removes = "nothing"};

}  // namespace

const void* spin_kernel() { return reinterpret_cast<const void*>(spin); }
const void* narrow_kernel() { return reinterpret_cast<const void*>(narrow); }
const Step kSpin{"spin", BackendKind::kCuda, kInfo, run_spin};
const Step kSharedMemory{"shared_memory", BackendKind::kCuda, kInfo, run_shared_memory};
const Step kGrid{"grid", BackendKind::kCuda, kInfo, run_grid};
const Step kFollow{"follow", BackendKind::kCuda, kInfo, run_follow};

}  // namespace flashsteps
