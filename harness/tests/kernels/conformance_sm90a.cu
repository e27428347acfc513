// What conformance.cu does, for the header that only sm_90a has: setmaxnreg.
#include "common/launch.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "harness/tests/kernels/conformance.h"

namespace STEP_NAMESPACE {

constexpr const char* needs_sm = "90a";  // the build looks for these very words

// One warpgroup gives registers back and passes words on; the other takes them, and has more values at once
// than there were registers at launch.
constexpr int NUM_THREADS = 256, CTAS_PER_SM = 2;
constexpr int AT_LAUNCH = registers_at_launch(NUM_THREADS, CTAS_PER_SM);
constexpr int NUM_VALUES = 192;
static_assert(AT_LAUNCH < NUM_VALUES);

__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM) registers(const uint32_t* in, uint32_t* out) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(smem);
  const int thread = threadIdx.x % 128;
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<24, AT_LAUNCH>();
    for (int i = thread; i < 512; i += 128) words[i] = in[i];
    __syncthreads();
    return;
  }
  warpgroup_reg_alloc<232, AT_LAUNCH>();
  __syncthreads();
  uint32_t values[NUM_VALUES];
#pragma unroll
  for (int i = 0; i < NUM_VALUES; ++i) values[i] = words[(thread + i) % 512];
  for (int round = 0; round < 8; ++round) {
#pragma unroll
    for (int i = 0; i < NUM_VALUES; ++i) values[i] = 3 * values[i] ^ values[(i + 1) % NUM_VALUES];
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < NUM_VALUES; ++i) sum += values[i];
  out[thread] = sum;
}

void run(const AttentionCall& call, void* stream) {
  launch(registers, dim3(1), dim3(NUM_THREADS), 2048, static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), static_cast<uint32_t*>(call.o.data));
}

constexpr ConformanceCase kCases[] = {
    {"warpgroup_reg_alloc, warpgroup_reg_dealloc", {{Words::kBits, 512}}, 128, 0, run, needs_sm},
};

}  // namespace STEP_NAMESPACE

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
std::span<const ConformanceCase> conformance_cases_sm90a() { return STEP_NAMESPACE::kCases; }
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
