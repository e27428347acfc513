// Counters of kernels whose numbers can be worked out by hand.
//
// Which accesses a load or store becomes is the compiler's choice: these numbers hold for gcc.
#include "common/emulator/tests/support.h"

#ifndef __clang__

using namespace flashsteps;

namespace {

emulator::Counters count(void (*kernel)(float*, int), int threads, float* memory, int argument,
                         int host_threads = 1, unsigned ctas = 1) {
  emulator::Options& options = fresh_options();
  options.count = true;
  options.host_threads = host_threads;
  launch(kernel, ctas, unsigned(threads), 16384, nullptr, memory, argument);
  return emulator::last_counters();
}

__global__ void shared_stride_kernel(float*, int stride) {
  shared_array<float>()[int(threadIdx.x) * stride] = 1.0f;
}

__global__ void shared_vector_kernel(float*, int stride) {
  shared_array<float4>()[int(threadIdx.x) * stride] = make_float4(1, 2, 3, 4);
}

__global__ void shared_half_kernel(float*, int stride) {
  shared_array<__half>()[int(threadIdx.x) * stride] = __half(1.0f);
}

__global__ void global_stride_kernel(float* memory, int stride) { memory[int(threadIdx.x) * stride] = 1.0f; }

__global__ void global_vector_kernel(float* memory, int stride) {
  reinterpret_cast<float4*>(memory)[int(threadIdx.x) * stride] = make_float4(1, 2, 3, 4);
}

// 8 rounds of: everybody reads; some lanes write at the end of the loop's body.
__global__ void trailing_branch_kernel(float* memory, int writers) {
  float sum = 0;
  for (int i = 0; i < 8; ++i) {
    sum += memory[i * 32 + int(threadIdx.x)];
    if (int(threadIdx.x) < writers) memory[1024 + i * 32 + int(threadIdx.x)] = sum;
  }
}

// 8 rounds of: some lanes read at the start of the loop's body; everybody writes.
__global__ void leading_branch_kernel(float* memory, int readers) {
  for (int i = 0; i < 8; ++i) {
    float value = 0;
    if (int(threadIdx.x) < readers) value = memory[i * 32 + int(threadIdx.x)];
    memory[1024 + i * 32 + int(threadIdx.x)] = value;
  }
}

// Lane i reads i + 1 times, then everybody writes together.
__global__ void different_trip_counts_kernel(float* memory, int) {
  float sum = 0;
  for (int i = 0; i <= int(threadIdx.x); ++i) sum += memory[i * 32];
  memory[1024 + int(threadIdx.x)] = sum;
}

__global__ void long_loop_kernel(float* memory, int rounds) {
  float sum = 0;
  for (int i = 0; i < rounds; ++i) {
    sum += memory[int(threadIdx.x)];
    if (int(threadIdx.x) < 16) shared_array<float>()[threadIdx.x] = sum;
  }
  memory[1024 + blockIdx.x * 32 + threadIdx.x] = sum;
}

__global__ void barrier_kernel(float* memory, int) {
  shared_array<float>()[threadIdx.x] = 1.0f;
  __syncthreads();
  float sum = shared_array<float>()[threadIdx.x ^ 32];
  __syncwarp();
  __syncthreads();
  memory[threadIdx.x] = sum;
}

}  // namespace

TEST_CASE("shared wavefronts follow the banks", "[counters]") {
  Buffer<float> memory(1);
  struct Case {
    int stride;
    uint64_t wavefronts;
  };
  // Stride 0 is a broadcast, 1 and 33 reach all banks, 2^k reaches 32 / 2^k of them.
  for (const Case c : {Case{0, 1}, {1, 1}, {2, 2}, {4, 4}, {32, 32}, {33, 1}, {36, 4}, {3, 1}}) {
    CAPTURE(c.stride);
    const emulator::Counters counted = count(shared_stride_kernel, 32, memory.get(), c.stride);
    CHECK(counted.shared_requests == 1);
    CHECK(counted.shared_wavefronts == c.wavefronts);
    CHECK(counted.shared_wavefronts_ideal == 1);
    CHECK(counted.global_requests == 0);
  }
}

TEST_CASE("16-byte accesses are served eight lanes at a time", "[counters]") {
  Buffer<float> memory(1);
  const emulator::Counters dense = count(shared_vector_kernel, 32, memory.get(), 1);
  CHECK(dense.shared_requests == 1);
  CHECK(dense.shared_wavefronts == 4);
  CHECK(dense.shared_wavefronts_ideal == 4);
  // Rows of 128 bytes, one per lane: the eight lanes of a group all want the same four banks.
  CHECK(count(shared_vector_kernel, 32, memory.get(), 8).shared_wavefronts == 32);
  CHECK(count(shared_vector_kernel, 32, memory.get(), 9).shared_wavefronts == 4);
  CHECK(count(shared_vector_kernel, 16, memory.get(), 1).shared_wavefronts == 2);
}

TEST_CASE("two 2-byte elements share a bank's word", "[counters]") {
  Buffer<float> memory(1);
  CHECK(count(shared_half_kernel, 32, memory.get(), 1).shared_wavefronts == 1);
  CHECK(count(shared_half_kernel, 32, memory.get(), 2).shared_wavefronts == 1);
  CHECK(count(shared_half_kernel, 32, memory.get(), 64).shared_wavefronts == 32);
  CHECK(count(shared_half_kernel, 32, memory.get(), 66).shared_wavefronts == 1);
  CHECK(count(shared_half_kernel, 32, memory.get(), 72).shared_wavefronts == 4);
}

TEST_CASE("global sectors and bytes", "[counters]") {
  Buffer<float> memory(32 * 32 * 4);
  const emulator::Counters dense = count(global_stride_kernel, 32, memory.get(), 1);
  CHECK(dense.global_requests == 1);
  CHECK(dense.global_sectors == 4);
  CHECK(dense.global_bytes == 128);
  CHECK(dense.shared_requests == 0);
  CHECK(count(global_stride_kernel, 32, memory.get(), 0).global_sectors == 1);
  CHECK(count(global_stride_kernel, 32, memory.get(), 2).global_sectors == 8);
  CHECK(count(global_stride_kernel, 32, memory.get(), 32).global_sectors == 32);
  const emulator::Counters two_warps = count(global_stride_kernel, 64, memory.get(), 1);
  CHECK(two_warps.global_requests == 2);
  CHECK(two_warps.global_sectors == 8);
  // Shifted by one element, a row of 128 bytes touches a fifth sector.
  CHECK(count(global_stride_kernel, 32, memory.get() + 1, 1).global_sectors == 5);
  const emulator::Counters vectors = count(global_vector_kernel, 32, memory.get(), 1);
  CHECK(vectors.global_requests == 1);
  CHECK(vectors.global_sectors == 16);
  CHECK(vectors.global_bytes == 512);
}

TEST_CASE("lanes that diverge are brought back together", "[counters]") {
  Buffer<float> memory(4096);
  for (const int lanes : {1, 16, 31}) {
    CAPTURE(lanes);
    CHECK(count(trailing_branch_kernel, 32, memory.get(), lanes).global_requests == 16);
    CHECK(count(leading_branch_kernel, 32, memory.get(), lanes).global_requests == 16);
  }
  CHECK(count(trailing_branch_kernel, 32, memory.get(), 0).global_requests == 8);
  const emulator::Counters trips = count(different_trip_counts_kernel, 32, memory.get(), 0);
  CHECK(trips.global_requests == 32 + 1);
  CHECK(trips.global_sectors == 32 + 4);
  CHECK(trips.global_bytes == 4 * (32 * 33 / 2 + 32));
}

TEST_CASE("loops that are longer than a lane's log are counted whole", "[counters]") {
  Buffer<float> memory(4096);
  const int rounds = 30000;
  const emulator::Counters counted = count(long_loop_kernel, 32, memory.get(), rounds);
  CHECK(counted.global_requests == uint64_t(rounds) + 1);
  CHECK(counted.shared_requests == uint64_t(rounds));
  CHECK(counted.shared_wavefronts == uint64_t(rounds));
}

TEST_CASE("barriers are counted per warp, and memory across them", "[counters]") {
  Buffer<float> memory(128);
  const emulator::Counters counted = count(barrier_kernel, 128, memory.get(), 0);
  CHECK(counted.barriers == 8);
  CHECK(counted.syncwarps == 4);
  CHECK(counted.shared_requests == 8);
  CHECK(counted.shared_wavefronts == 8);
  CHECK(counted.global_requests == 4);
}

TEST_CASE("counters do not depend on the number of host threads", "[counters]") {
  Buffer<float> memory(8192);
  const emulator::Counters one = count(long_loop_kernel, 32, memory.get(), 5000, 1, 16);
  const emulator::Counters four = count(long_loop_kernel, 32, memory.get(), 5000, 4, 16);
  CHECK(one == four);
  CHECK(one.global_requests == 16 * 5001);
}

TEST_CASE("counters do not depend on the order of threads", "[counters]") {
  Buffer<float> memory(4096);
  emulator::Counters first;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    emulator::Options& options = fresh_options();
    options.count = true;
    options.shuffle = true;
    options.seed = seed;
    launch(barrier_kernel, 1, 128, 16384, nullptr, memory.get(), 0);
    emulator::Counters counted = emulator::last_counters();
    counted.switches = 0;
    if (seed == 1) first = counted;
    CHECK(counted == first);
    CHECK(counted.shared_requests == 8);
  }
}

TEST_CASE("nothing is counted that was not asked for", "[counters]") {
  fresh_options();
  Buffer<float> memory(128);
  launch(barrier_kernel, 1, 128, 16384, nullptr, memory.get(), 0);
  CHECK(emulator::last_counters().shared_requests == 0);
  CHECK(emulator::last_counters().barriers == 8);
}

#endif  // __clang__
