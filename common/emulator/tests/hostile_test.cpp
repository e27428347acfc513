// Seeded hostile scheduling: repeatable, really different, and silent about correct kernels.
#include "common/emulator/tests/support.h"
#include "common/named_barrier.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

// Writes the order in which threads came by.
__global__ void order_kernel(int* ticket, int* order) {
  order[blockIdx.x * 64 + threadIdx.x] = atomicAdd(ticket + blockIdx.x, 1);
}

// Wrong without a race detector too, but only in some orders.
__global__ void racy_kernel(int* out, int zero) {
  int* slot = shared_array<int>();
  slot[0] = int(threadIdx.x);
  out[threadIdx.x] = slot[zero];
}

// Tiles through shared memory, double buffered, with a reduction by shuffles and an exchange between warps.
__global__ void pipeline_kernel(const float* in, float* out, int rounds) {
  struct Shared {
    float tile[2][128];
    float sums[4];
  };
  Shared& shared = *reinterpret_cast<Shared*>(smem);
  const int i = threadIdx.x;
  const float* my_in = in + blockIdx.x * rounds * 128;
  float total = 0;
  shared.tile[0][i] = my_in[i];
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    if (round + 1 < rounds) shared.tile[(round + 1) % 2][i] = my_in[(round + 1) * 128 + i];
    float sum = shared.tile[round % 2][127 - i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (i % 32 == 0) shared.sums[i / 32] = sum;
    __syncthreads();
    for (int warp = 0; warp < 4; ++warp) total += shared.sums[warp];
  }
  out[blockIdx.x * 128 + i] = total;
}

// A warp's lanes exchange through shared memory with __syncwarp only, and some threads leave early.
__global__ void warp_exchange_kernel(float* out) {
  float* tile = shared_array<float>() + threadIdx.x / 32 * 32;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= 96) return;
  for (int round = 0; round < 4; ++round) {
    tile[lane] = float(lane + round);
    __syncwarp();
    const float value = tile[lane ^ 5];
    __syncwarp();
    out[threadIdx.x] = value;
  }
  __syncthreads();
  if (threadIdx.x < 32) out[threadIdx.x] += shared_array<float>()[threadIdx.x + 64];
}

// 2-byte elements written by different lanes lie in the same word.
__global__ void half_kernel(float* out) {
  __half* tile = shared_array<__half>();
  tile[threadIdx.x] = __half(float(threadIdx.x));
  __syncthreads();
  out[threadIdx.x] = float(tile[threadIdx.x ^ 63]);
}

// A producer warp and a consumer warp, with named barriers for full and empty.
__global__ void producer_consumer_kernel(float* out) {
  float* slot = shared_array<float>();
  const int lane = threadIdx.x % 32;
  for (int round = 0; round < 6; ++round) {
    if (threadIdx.x < 32) {
      if (round > 0) bar_sync(2, 64);
      slot[lane] = float(round * 100 + lane);
      bar_arrive(1, 64);
    } else {
      bar_sync(1, 64);
      out[round * 32 + lane] = slot[31 - lane];
      if (round < 5) bar_arrive(2, 64);
    }
  }
}

std::vector<int> order_with(uint64_t seed, int host_threads) {
  emulator::Options& options = fresh_options();
  options.shuffle = true;
  options.seed = seed;
  options.host_threads = host_threads;
  Buffer<int> ticket(8), order(8 * 64);
  for (size_t i = 0; i < 8; ++i) ticket[i] = 0;
  launch(order_kernel, 8, 64, 0, nullptr, ticket.get(), order.get());
  return std::vector<int>(order.get(), order.get() + 8 * 64);
}

}  // namespace

TEST_CASE("the same seed gives the same order, on any number of host threads", "[hostile]") {
  const std::vector<int> order = order_with(1, 1);
  CHECK(order_with(1, 1) == order);
  CHECK(order_with(1, 4) == order);
  CHECK(order_with(2, 1) != order);
  // Every CTA has an order of its own.
  CHECK(std::vector<int>(order.begin(), order.begin() + 64) !=
        std::vector<int>(order.begin() + 64, order.begin() + 128));
}

TEST_CASE("without shuffling, lanes go in order", "[hostile]") {
  fresh_options();
  Buffer<int> ticket(1), order(64);
  ticket[0] = 0;
  launch(order_kernel, 1, 64, 0, nullptr, ticket.get(), order.get());
  for (size_t i = 0; i < 64; ++i) CHECK(order[i] == int(i));
}

TEST_CASE("threads are interrupted between plain shared accesses", "[hostile]") {
  int interrupted = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::Options& options = fresh_options();
    options.shuffle = true;
    options.seed = seed;
    Buffer<int> out(64);
    launch(racy_kernel, 1, 64, 16, nullptr, out.get(), 0);
    for (size_t i = 0; i < 64; ++i) interrupted += out[i] != int(i);
  }
  CHECK(interrupted > 0);
}

TEST_CASE("the same seed gives the same report", "[hostile]") {
  emulator::Options& options = fresh_options();
  options.shuffle = true;
  options.race_detector = true;
  std::string first[3];
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      options.seed = seed;
      options.host_threads = repeat == 0 ? 1 : 4;
      Buffer<int> out(64);
      const Report report = report_of([&] { launch(racy_kernel, 1, 64, 16, nullptr, out.get(), 0); });
      CHECK(report.bug == Bug::kRace);
      if (repeat == 0) first[seed - 1] = report.what();
      CHECK(first[seed - 1] == report.what());
    }
  }
  CHECK((first[0] != first[1] || first[1] != first[2]));
}

TEST_CASE("correct kernels are right and unreported whatever the order", "[hostile]") {
  constexpr int kRounds = 5;
  Buffer<float> in(4 * kRounds * 128);
  float expected[4] = {};
  for (size_t i = 0; i < 4 * kRounds * 128; ++i) {
    in[i] = float(i % 7);
    expected[i / (kRounds * 128)] += in[i];
  }
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    emulator::Options& options = fresh_options();
    options.shuffle = true;
    options.race_detector = true;
    options.count = seed % 2 == 0;
    options.seed = seed;
    options.host_threads = int(seed % 3);
    Buffer<float> out(512);
    int wrong = 0;

    launch(pipeline_kernel, 4, 128, 2048, nullptr, in.get(), out.get(), kRounds);
    for (size_t i = 0; i < 512; ++i) wrong += out[i] != expected[i / 128];

    launch(warp_exchange_kernel, 1, 128, 512, nullptr, out.get());
    for (size_t i = 32; i < 96; ++i) wrong += out[i] != float((i % 32) ^ 5) + 3;
    for (size_t i = 0; i < 32; ++i) wrong += out[i] != float(i ^ 5) + 3 + float(i) + 3;

    launch(half_kernel, 1, 64, 128, nullptr, out.get());
    for (size_t i = 0; i < 64; ++i) wrong += out[i] != float(i ^ 63);

    launch(producer_consumer_kernel, 1, 64, 128, nullptr, out.get());
    for (size_t i = 0; i < 192; ++i) wrong += out[i] != float(i / 32 * 100 + 31 - i % 32);

    CHECK(wrong == 0);
  }
}
