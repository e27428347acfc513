// Launching: indices, limits, shared memory, early exit, many threads, several host threads.
#include <functional>
#include <set>

#include "common/emulator/tests/support.h"
#include "common/named_barrier.h"

// Normally the harness's; the emulator's tests do without it.
namespace flashsteps {
std::vector<LaunchRecord>*& launch_recorder() {
  thread_local std::vector<LaunchRecord>* recorder = nullptr;
  return recorder;
}
}  // namespace flashsteps

using namespace flashsteps;

namespace {

__global__ void index_kernel(int* out) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = int(threadIdx.x * 100 + threadIdx.y * 10 + threadIdx.z) +
                                  1000 * int(blockIdx.x) + 10000 * int(blockIdx.y) + 100000 * int(blockIdx.z);
}

__global__ void smem_kernel(float* out) {
  out[threadIdx.x] = shared_array<float>()[threadIdx.x];
  __syncthreads();
  shared_array<float>()[threadIdx.x] = 1.0f;  // must not be seen by the next CTA
}

// As a mistake: `sums` is not set to 0.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
__global__ void uninitialised_kernel(const float* in, float* out, int n) {
  float sums[8];
  for (int i = 0; i < n; ++i) sums[(i + int(threadIdx.x)) % 8] += in[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sums[3];
}
#pragma GCC diagnostic pop

template <int A, int B>
__global__ void two_tiles_kernel(float* out) {
  __shared__ float tile_a[A], tile_b[B];
  tile_a[threadIdx.x] = float(threadIdx.x);
  tile_b[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile_a[threadIdx.x ^ 1] + tile_b[threadIdx.x ^ 1];
}

[[gnu::noinline]] __device__ int sum_below(int n, const int* ones) {
  return n == 0 ? 0 : sum_below(n - 1, ones) + ones[n % 4];
}
__global__ void recursive_kernel(const int* ones, int* out, int depth) {
  out[threadIdx.x] = sum_below(threadIdx.x == 5 ? depth : 10, ones);
}

__global__ void large_locals_kernel(int* out, int n) {
  int values[130'000];
  for (int i = 0; i < n; ++i) values[i] = i;
  out[threadIdx.x] = values[n / 2];
}

// Signs of life.
int num_signs;

// Reads n numbers and writes the sum, and that so many times, to as many places.
__global__ void sums_kernel(const float* in, float* out, int n, int times, int num_places) {
  for (int time = 0; time < times; ++time) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += in[i];
    __syncthreads();
    out[time % num_places * 64 + int(threadIdx.x)] = sum;
  }
}

__global__ void smem_address_kernel(uint64_t* out) { *out = reinterpret_cast<uint64_t>(smem); }

__global__ void reverse_kernel(int* out) {
  int* tile = shared_array<int>();
  const int i = threadIdx.x;
  for (int round = 0; round < 10; ++round) {
    tile[i] = i + round;
    __syncthreads();
    out[blockIdx.x * blockDim.x + i] = tile[int(blockDim.x) - 1 - i];
    __syncthreads();
  }
}

__global__ void early_return_kernel(int* out, int live) {
  const int i = threadIdx.x;
  if (i >= live) return;
  shared_array<int>()[i] = i;
  __syncthreads();
  out[i] = shared_array<int>()[live - 1 - i];
}

__global__ void return_while_others_wait_kernel(int* out) {
  // With lanes in order, the first warps wait when the last one leaves.
  if (threadIdx.x >= 96) return;
  __syncthreads();
  out[threadIdx.x] = 1;
  if (threadIdx.x >= 32) return;
  __syncthreads();
  out[threadIdx.x] = 2;
}

__global__ void big_stack_kernel(int* out) {
  volatile int local[30000];
  for (int i = 0; i < 30000; ++i) local[i] = i + int(threadIdx.x);
  __syncthreads();
  long sum = 0;
  for (int i = 0; i < 30000; ++i) sum += local[i];
  out[threadIdx.x] = int(sum % 1000003);
}

struct LargeArgument {
  int values[200];
};
__global__ void argument_kernel(LargeArgument large, short small, const int* pointer, double* out) {
  *out = large.values[199] + small + *pointer;
}

__global__ void flag_kernel(volatile int* flag, int* out) {
  // The waiting lanes come first in the default order.
  if (threadIdx.x < 63) {
    while (*flag == 0) {
    }
    out[threadIdx.x] = *flag;
  } else {
    *flag = 7;
  }
}

__global__ void atomic_spin_kernel(int* ticket, int* order) {
  while (atomicAdd(ticket, 0) != 31 - int(threadIdx.x)) {
  }
  order[threadIdx.x] = *static_cast<volatile int*>(ticket);
  atomicAdd(ticket, 1);
}

__global__ void atomics_kernel(int* counts, float* sum, unsigned* largest) {
  int* shared_count = shared_array<int>();
  if (threadIdx.x == 0) *shared_count = 0;
  __syncthreads();
  atomicAdd(shared_count, 2);
  atomicAdd(sum, 0.5f);
  __threadfence();
  atomicMax(largest, blockIdx.x * 1000 + threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(counts, *shared_count);
}

__global__ void static_shared_kernel(int* out) {
  __shared__ int tile[64];
  tile[threadIdx.x] = int(threadIdx.x + blockIdx.x);
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

// What it reads first of all must not depend on what the CTA before it left.
__global__ void unwritten_static_shared_kernel(float* out, bool atomic) {
  __shared__ float row_sum[64];
  if (atomic) {
    atomicAdd(&row_sum[threadIdx.x], 1.0f);
  } else {
    row_sum[threadIdx.x] += 1.0f;
  }
  out[blockIdx.x * 64 + threadIdx.x] = row_sum[threadIdx.x];
  __syncthreads();
  row_sum[threadIdx.x] = 0;
}

// Classes that CUDA allows in shared memory: none of their constructors does anything unless it is called.
struct MaxAndSum {
  float max, sum;
  __half weights[3];
  MaxAndSum() = default;
  explicit MaxAndSum(float x) : max(x), sum(x), weights{} {}
  operator float() const { return sum; }
};
__half2 make(float x, __half2*) { return __floats2half2_rn(x, x); }
__nv_bfloat162 make(float x, __nv_bfloat162*) { return __floats2bfloat162_rn(x, x); }
template <typename T>
T make(float x, T*) {
  return T(x);
}
float first(__half2 x) { return __low2float(x); }
float first(__nv_bfloat162 x) { return __low2float(x); }
template <typename T>
float first(T x) {
  return float(x);
}
template <typename T>
__global__ void static_shared_class_kernel(float* out) {
  __shared__ T tile[64];
  __shared__ T one;
  tile[threadIdx.x] = make(float(threadIdx.x), static_cast<T*>(nullptr));
  if (threadIdx.x == 63) one = make(1.0f, static_cast<T*>(nullptr));
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = first(tile[63 - threadIdx.x]) + first(one);
}

__device__ int counter = 5;
__device__ float table_of_ctas[8];
__global__ void device_variables_kernel(int* out) {
  if (threadIdx.x == 0) {
    out[blockIdx.x] = atomicAdd(&counter, 1);
    table_of_ctas[blockIdx.x] = float(blockIdx.x);
  }
}

__global__ void table_kernel(int* out) {
  static const int table[4] = {10, 20, 30, 40};
  out[threadIdx.x] = table[threadIdx.x % 4];
}

// Two warps hand a value back and forth through barriers 1 and 2.
__global__ void named_barrier_kernel(int* out) {
  int* slot = shared_array<int>();
  const bool producer = threadIdx.x < 32;
  for (int round = 0; round < 5; ++round) {
    if (producer) {
      if (threadIdx.x == 0) *slot = round * 10;
      bar_arrive(1, 64);
      bar_sync(2, 64);
    } else {
      bar_sync(1, 64);
      out[round * 32 + int(threadIdx.x) - 32] = *slot;
      bar_arrive(2, 64);
    }
  }
}

__global__ void empty_kernel() {}

__global__ void nested_launch_kernel(int*) { launch(empty_kernel, 1, 32, 0, nullptr); }

}  // namespace

TEST_CASE("every thread of every CTA runs once, with its own indices", "[launch]") {
  fresh_options();
  const dim3 grid(3, 2, 2), block(4, 3, 2);
  Buffer<int> out(3 * 2 * 2 * 4 * 3 * 2);
  launch(index_kernel, grid, block, 0, nullptr, out.get());
  std::set<int> seen;
  for (size_t i = 0; i < 288; ++i) seen.insert(out[i]);
  CHECK(seen.size() == 288);
  CHECK(out[0] == 0);
  CHECK(out[287] == 100000 + 10000 + 2000 + 300 + 20 + 1);
  CHECK(out[1] == 100);
  CHECK(out[4] == 10);
}

TEST_CASE("shared memory starts as poison in every CTA and is aligned", "[launch]") {
  fresh_options();
  Buffer<float> out(64);
  launch(smem_kernel, 3, 64, 256, nullptr, out.get());
  for (size_t i = 0; i < 64; ++i) CHECK(std::isnan(out[i]));
  emulator::options().poison = emulator::Poison::kLarge;
  launch(smem_kernel, 3, 64, 256, nullptr, out.get());
  for (size_t i = 0; i < 64; ++i) CHECK((out[i] > 1e36f && out[i] < INFINITY));
  emulator::options().poison = emulator::Poison::kSmall;
  launch(smem_kernel, 3, 64, 256, nullptr, out.get());
  for (size_t i = 0; i < 64; ++i) CHECK((out[i] > 0 && out[i] < 1e-35f));
  Buffer<uint64_t> address(1);
  launch(smem_address_kernel, 1, 1, 16, nullptr, address.get());
  CHECK(address[0] % 1024 == 0);
}

TEST_CASE("local variables start as poison in every CTA", "[launch]") {
  fresh_options();
  constexpr int kInputs = 16;
  Buffer<float> in(kInputs), out(3 * 64);
  for (size_t i = 0; i < kInputs; ++i) in[i] = 1.0f;
  const auto run = [&](emulator::Poison poison) {
    emulator::options().poison = poison;
    launch(uninitialised_kernel, 3, 64, 0, nullptr, in.get(), out.get(), kInputs);
  };
  run(emulator::Poison::kNan);
  for (size_t i = 0; i < 3 * 64; ++i) CHECK(std::isnan(out[i]));
  run(emulator::Poison::kLarge);
  for (size_t i = 0; i < 3 * 64; ++i) CHECK((out[i] > 1e36f && out[i] < INFINITY));
  run(emulator::Poison::kSmall);
  for (size_t i = 0; i < 3 * 64; ++i) CHECK(out[i] == 2.0f);
}

TEST_CASE("a long CTA gives signs of life, and a loop without end does not", "[launch][long]") {
  constexpr int kTimes = 10, kInputs = 1 << 14;
  constexpr int kSigns = kInputs * 4 / 64 / 16;  // at least, of a CTA that reads them once
  Buffer<float> in(4 * kInputs), out(kTimes * 64);
  std::memset(in.get(), 0, 4 * kInputs * sizeof(float));
  const auto signs_of = [&](const auto& run) {
    num_signs = 0;
    run();
    return num_signs;
  };
  const auto sums = [&](int n, int times, int num_places) {
    return signs_of(
        [&] { launch(sums_kernel, 1, 64, 0, nullptr, in.get(), out.get(), n, times, num_places); });
  };
  for (const bool race_detector : {false, true}) {
    CAPTURE(race_detector);
    fresh_options().progress = [] { ++num_signs; };
    emulator::options().race_detector = race_detector;
    emulator::options().count = true;
    // More to read, or more to write: more signs.
    CHECK(sums(kInputs, 1, 1) >= kSigns);
    CHECK(sums(4 * kInputs, 1, 1) >= 4 * kSigns);
    CHECK(sums(kInputs, kTimes, kTimes) >= kTimes * kSigns);
    // The same again and again: at some time there are no more.
    const int twice = sums(kInputs, 2, 1);
    CHECK(sums(kInputs, 3, 1) == twice);
    CHECK(sums(kInputs, kTimes, 1) == twice);
  }
  // Nor does it help to wait, whatever a thread does meanwhile.
  Buffer<int> flag(1), seen(64);
  for (const bool shuffle : {false, true}) {
    emulator::options().shuffle = shuffle;
    flag[0] = 0;
    CHECK(signs_of([&] { launch(flag_kernel, 1, 64, 0, nullptr, flag.get(), seen.get()); }) < 20);
  }
}

TEST_CASE("allocations are aligned and start as NaN", "[launch]") {
  Buffer<float> memory(1000);
  CHECK(reinterpret_cast<uintptr_t>(memory.get()) % 256 == 0);
  CHECK(std::isnan(memory[0]));
  CHECK(std::isnan(memory[999]));
}

TEST_CASE("__syncthreads separates phases", "[launch]") {
  fresh_options();
  for (const unsigned threads : {32u, 64u, 96u, 1024u}) {
    CAPTURE(threads);
    Buffer<int> out(threads);
    launch(reverse_kernel, 1, threads, threads * 4, nullptr, out.get());
    int wrong = 0;
    for (size_t i = 0; i < threads; ++i) wrong += out[i] != int(threads - 1 - i) + 9;
    CHECK(wrong == 0);
  }
}

TEST_CASE("threads that have returned count as arrived at __syncthreads", "[launch]") {
  fresh_options();
  for (const int live : {1, 31, 32, 33, 64, 100}) {
    CAPTURE(live);
    Buffer<int> out(128);
    launch(early_return_kernel, 1, 128, 512, nullptr, out.get(), live);
    int wrong = 0;
    for (int i = 0; i < live; ++i) wrong += out[size_t(i)] != live - 1 - i;
    CHECK(wrong == 0);
  }
  Buffer<int> out(128);
  launch(return_while_others_wait_kernel, 1, 128, 0, nullptr, out.get());
  CHECK(out[0] == 2);
  CHECK(out[95] == 1);
}

TEST_CASE("a thread has room for large local arrays", "[launch]") {
  fresh_options();
  Buffer<int> out(64);
  launch(big_stack_kernel, 1, 64, 0, nullptr, out.get());
  for (size_t i = 0; i < 64; ++i) CHECK(out[i] == int((30000L * 29999 / 2 + 30000L * long(i)) % 1000003));
}

TEST_CASE("a thread that needs more than its stack is reported", "[launch]") {
  fresh_options();
  Buffer<int> ones(4), out(64);
  for (size_t i = 0; i < 4; ++i) ones[i] = 1;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const auto& run : std::vector<std::function<void()>>{
             [&] { launch(recursive_kernel, 2, 64, 0, nullptr, ones.get(), out.get(), 1'000'000); },
             [&] { launch(large_locals_kernel, 2, 64, 0, nullptr, out.get(), 10); }}) {
      const emulator::Report report = report_of(run);
      INFO(report.what());
      CHECK(contains(report.what(),
                     "the thread needs more than its stack of 256 KiB, at common/emulator/tests/"));
    }
    launch(recursive_kernel, 2, 64, 0, nullptr, ones.get(), out.get(), 1000);
    for (size_t i = 0; i < 64; ++i) CHECK(out[i] == (i == 5 ? 1000 : 10));
  }
}

TEST_CASE("arguments are converted to the kernel's parameters", "[launch]") {
  fresh_options();
  LargeArgument large = {};
  large.values[199] = 5;
  Buffer<int> value(1);
  value[0] = 30;
  Buffer<double> out(1);
  launch(argument_kernel, 1, 1, 0, nullptr, large, 200, value.get(), out.get());
  CHECK(out[0] == 235);
}

TEST_CASE("spinning on memory lets the others run", "[launch]") {
  for (const bool shuffle : {false, true}) {
    fresh_options().shuffle = shuffle;
    Buffer<int> flag(1);
    flag[0] = 0;
    Buffer<int> out(64);
    launch(flag_kernel, 1, 64, 0, nullptr, flag.get(), out.get());
    for (size_t i = 0; i < 63; ++i) CHECK(out[i] == 7);

    Buffer<int> ticket(1);
    ticket[0] = 0;
    launch(atomic_spin_kernel, 1, 32, 0, nullptr, ticket.get(), out.get());
    for (size_t i = 0; i < 32; ++i) CHECK(out[i] == 31 - int(i));
  }
}

TEST_CASE("atomics add up over threads and CTAs", "[launch]") {
  fresh_options().host_threads = 4;
  Buffer<int> counts(1);
  Buffer<float> sum(1);
  Buffer<unsigned> largest(1);
  counts[0] = 0;
  sum[0] = 0;
  largest[0] = 0;
  launch(atomics_kernel, 20, 96, 16, nullptr, counts.get(), sum.get(), largest.get());
  CHECK(counts[0] == 20 * 96 * 2);
  CHECK(sum[0] == 20 * 96 * 0.5f);
  CHECK(largest[0] == 19095);
  CHECK(emulator::last_counters().atomics == 20 * 96 * 3 + 20);
}

TEST_CASE("static __shared__ arrays are one per CTA", "[launch]") {
  fresh_options().host_threads = 3;
  emulator::options().race_detector = true;
  Buffer<int> out(64 * 12);
  launch(static_shared_kernel, 12, 64, 0, nullptr, out.get());
  int wrong = 0;
  for (int i = 0; i < 64 * 12; ++i) wrong += out[size_t(i)] != 63 - i % 64 + i / 64;
  CHECK(wrong == 0);
}

TEST_CASE("static __shared__ arrays start as poison in every CTA", "[launch]") {
  for (const int host_threads : {1, 3}) {
    for (const bool atomic : {false, true}) {
      for (const bool race_detector : {false, true}) {
        CAPTURE(host_threads, atomic, race_detector);
        fresh_options().host_threads = host_threads;
        emulator::options().race_detector = race_detector;
        Buffer<float> out(64 * 6);
        launch(unwritten_static_shared_kernel, 6, 64, 0, nullptr, out.get(), atomic);
        int numbers = 0;
        for (size_t i = 0; i < 64 * 6; ++i) numbers += !std::isnan(out[i]);
        CHECK(numbers == 0);
        emulator::options().poison = emulator::Poison::kLarge;
        launch(unwritten_static_shared_kernel, 6, 64, 0, nullptr, out.get(), atomic);
        int others = 0;
        for (size_t i = 0; i < 64 * 6; ++i) others += !(out[i] > 1e36f && out[i] < INFINITY);
        CHECK(others == 0);
      }
    }
  }
}

TEMPLATE_TEST_CASE("static __shared__ arrays of classes are no race", "[launch]", __half, __nv_bfloat16,
                   __half2, __nv_bfloat162, MaxAndSum) {
  for (uint64_t seed = 0; seed <= 5; ++seed) {
    CAPTURE(seed);
    emulator::Options& options = fresh_options();
    options.race_detector = true;
    options.shuffle = seed > 0;
    options.seed = seed;
    Buffer<float> out(64 * 3);
    launch(static_shared_class_kernel<TestType>, 3, 64, 0, nullptr, out.get());
    int wrong = 0;
    for (size_t i = 0; i < 64 * 3; ++i) wrong += out[i] != float(63 - i % 64) + 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("__device__ variables are global memory", "[launch]") {
  fresh_options().race_detector = true;
  emulator::options().count = true;
  counter = 5;
  Buffer<int> out(8);
  launch(device_variables_kernel, 8, 32, 0, nullptr, out.get());
  CHECK(counter == 5 + 8);
  std::set<int> tickets(out.get(), out.get() + 8);
  CHECK(tickets.size() == 8);
  CHECK(*tickets.begin() == 5);
  for (int i = 0; i < 8; ++i) CHECK(table_of_ctas[i] == float(i));
  CHECK(emulator::last_counters().global_requests == 2 * 8);
}

TEST_CASE("constant tables can be read", "[launch]") {
  fresh_options();
  Buffer<int> out(32);
  launch(table_kernel, 1, 32, 0, nullptr, out.get());
  CHECK(out[6] == 30);
}

TEST_CASE("memory of the caller's own can be registered", "[launch]") {
  fresh_options();
  std::vector<int> out(288);
  emulator::register_memory(out.data(), out.size() * sizeof(int));
  launch(index_kernel, dim3(3, 2, 2), dim3(4, 3, 2), 0, nullptr, out.data());
  emulator::unregister_memory(out.data());
  CHECK(out[1] == 100);
  const auto launch_again = [&] {
    launch(index_kernel, dim3(3, 2, 2), dim3(4, 3, 2), 0, nullptr, out.data());
  };
  CHECK(report_of(launch_again).bug == emulator::Bug::kGlobalOutOfBounds);
}

TEST_CASE("named barriers", "[launch]") {
  emulator::Options& options = fresh_options();
  options.race_detector = true;
  Buffer<int> out(5 * 32);
  launch(named_barrier_kernel, 1, 64, 16, nullptr, out.get());
  for (size_t i = 0; i < 5 * 32; ++i) CHECK(out[i] == int(i / 32) * 10);
  CHECK(emulator::last_counters().barriers == 5 * 4);
}

TEST_CASE("CTAs are spread over host threads", "[launch]") {
  for (const int host_threads : {0, 1, 2, 7}) {
    CAPTURE(host_threads);
    fresh_options().host_threads = host_threads;
    Buffer<int> out(50 * 64);
    launch(reverse_kernel, 50, 64, 256, nullptr, out.get());
    int wrong = 0;
    for (int i = 0; i < 50 * 64; ++i) wrong += out[size_t(i)] != 63 - i % 64 + 9;
    CHECK(wrong == 0);
  }
}

TEST_CASE("a recorder records and launches nothing", "[launch]") {
  fresh_options();
  Buffer<int> out(288);
  std::vector<LaunchRecord> records;
  launch_recorder() = &records;
  launch(index_kernel, dim3(3, 2, 2), dim3(4, 3, 2), 1000, nullptr, out.get());
  launch_recorder() = nullptr;
  REQUIRE(records.size() == 1);
  CHECK(records[0].grid[0] == 3);
  CHECK(records[0].grid[2] == 2);
  CHECK(records[0].block[1] == 3);
  CHECK(records[0].smem_bytes == 1000);
  CHECK(records[0].registers == 0);
  CHECK(out[0] == -1);
}

TEST_CASE("what CUDA would refuse is refused", "[launch]") {
  fresh_options();
  const auto bug_of = [](dim3 grid, dim3 block, size_t smem_bytes) {
    const emulator::Report report =
        report_of([&] { launch(empty_kernel, grid, block, smem_bytes, nullptr); });
    check_report(report, emulator::Bug::kLaunch, 0, {});
    return std::string(report.what());
  };
  CHECK(contains(bug_of(1, 1025, 0), "1024"));
  CHECK(contains(bug_of(1, dim3(32, 33), 0), "1024"));
  CHECK(contains(bug_of(1, 0, 0), "empty"));
  CHECK(contains(bug_of(0, 32, 0), "empty"));
  CHECK(contains(bug_of(dim3(1, 65536), 32, 0), "65535"));
  CHECK(contains(bug_of(dim3(1, 1, 65536), 32, 0), "65535"));
  CHECK(contains(bug_of(dim3(0x80000000u), 32, 0), "2147483647"));
  CHECK(contains(bug_of(1, 32, 232449), "232448"));
  std::vector<LaunchRecord> records;
  launch_recorder() = &records;  // it would take long to run
  CHECK_NOTHROW(launch(empty_kernel, dim3(0x7fffffff, 65535, 65535), 32, 0, nullptr));
  launch_recorder() = nullptr;
  emulator::options().race_detector = true;
  CHECK(contains(bug_of(dim3(0x7fffffff), 32, 0), "the race detector can tell 2147483646 CTAs apart"));
  emulator::options().race_detector = false;
  CHECK_NOTHROW(launch(empty_kernel, 1, 32, 232448, nullptr));
  CHECK_NOTHROW(launch(empty_kernel, 1, 1024, 0, nullptr));
}

TEST_CASE("more static __shared__ memory than nvcc allows is refused", "[launch]") {
  fresh_options();
  Buffer<float> out(32);
  constexpr int kHalf = 6144;  // of 48 KiB
  CHECK_NOTHROW(launch(two_tiles_kernel<kHalf, kHalf>, 2, 32, 0, nullptr, out.get()));
  for (size_t i = 0; i < 32; ++i) CHECK(out[i] == float((i ^ 1) + 1));
  // What other kernels have declared does not count.
  CHECK_NOTHROW(launch(two_tiles_kernel<kHalf, kHalf - 1>, 2, 32, 0, nullptr, out.get()));
  check_report(report_of([&] { launch(two_tiles_kernel<kHalf, kHalf + 1>, 2, 32, 0, nullptr, out.get()); }),
               emulator::Bug::kLaunch, 0, {},
               {"take 49156 bytes, and 49152 are the most", "::tile_a of 24576", "::tile_b of 24580"});
}

TEST_CASE("a kernel cannot launch a kernel", "[launch]") {
  fresh_options();
  Buffer<int> out(1);
  const emulator::Report report =
      report_of([&] { launch(nested_launch_kernel, 1, 1, 0, nullptr, out.get()); });
  check_report(report, emulator::Bug::kLaunch, 0, {});
}
