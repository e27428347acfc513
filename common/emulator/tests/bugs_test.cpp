// Kernels with one mistake each: every one must be reported, as what it is and with its line.
#include <dlfcn.h>

#include <memory>

#include "common/emulator/tests/support.h"
#include "common/named_barrier.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

// clang-format off
LINES_OF(missing_syncthreads);
__global__ void missing_syncthreads(float* out) {
  float* tile = shared_array<float>();
  tile[threadIdx.x] = float(threadIdx.x);
  out[threadIdx.x] = tile[(threadIdx.x + 32) % blockDim.x];
}

LINES_OF(syncwarp_is_not_enough);
__global__ void syncwarp_is_not_enough(float* out) {
  float* tile = shared_array<float>();
  tile[threadIdx.x] = float(threadIdx.x);
  __syncwarp();
  out[threadIdx.x] = tile[(threadIdx.x + 32) % blockDim.x];
}

LINES_OF(missing_syncwarp);
__global__ void missing_syncwarp(float* out) {
  float* tile = shared_array<float>();
  tile[threadIdx.x] = float(threadIdx.x);
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

LINES_OF(lanes_write_the_same);
__global__ void lanes_write_the_same(float* out, int other_lane, int other_warp) {
  float* tile = shared_array<float>();
  const int warp = threadIdx.x / 32;
  if (warp == 0 || warp == other_warp) tile[0] = int(threadIdx.x) == other_lane ? 8.0f : 7.0f;
  __syncthreads();
  out[threadIdx.x] = tile[0];
}

LINES_OF(divided_by_zero);
__global__ void divided_by_zero(float* out, int divisor) {
  out[0] = float(int(threadIdx.x) / divisor);
}

LINES_OF(refill_without_barrier);
__global__ void refill_without_barrier(float* out) {
  float* tile = shared_array<float>();
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    tile[threadIdx.x] = float(round);
    __syncthreads();
    sum += tile[blockDim.x - 1 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

LINES_OF(halves_in_one_word);
__global__ void halves_in_one_word(float* out) {
  __half* tile = shared_array<__half>();
  tile[threadIdx.x] = __half(1.0f);
  out[threadIdx.x] = float(tile[threadIdx.x]) + float(tile[63 - threadIdx.x]);
}

LINES_OF(static_shared_race);
__global__ void static_shared_race(float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1.0f;
  out[threadIdx.x] = tile[63 - threadIdx.x];
}

LINES_OF(named_barrier_race);
__global__ void named_barrier_race(float* out) {
  float* tile = shared_array<float>();
  if (threadIdx.x < 64) {
    tile[threadIdx.x] = 1.0f;
    bar_sync(1, 64);
    out[threadIdx.x] = tile[63 - threadIdx.x];
  } else {
    out[threadIdx.x] = 2.0f * tile[threadIdx.x - 64];  // took no part in the barrier
  }
}

LINES_OF(two_ctas_write);
__global__ void two_ctas_write(float* out) {
  out[threadIdx.x] = float(blockIdx.x);
}

LINES_OF(cta_reads_what_another_wrote);
__global__ void cta_reads_what_another_wrote(float* out) {
  out[1 + blockIdx.x] = 1.0f;
  if (blockIdx.x == 3) out[100] = out[2];
}

LINES_OF(cta_writes_what_others_read);
__global__ void cta_writes_what_others_read(float* out) {
  float value = out[0];
  if (blockIdx.x == 2) out[0] = 1.0f;
  out[1 + blockIdx.x] = value;
}

__device__ float device_variable[4];
LINES_OF(two_ctas_write_a_device_variable);
__global__ void two_ctas_write_a_device_variable(float* out) {
  device_variable[1] = float(blockIdx.x);
  out[blockIdx.x] = device_variable[blockIdx.x + 2];
}

LINES_OF(divergent_syncthreads);
__global__ void divergent_syncthreads(float* out) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  out[threadIdx.x] = 1.0f;
}

LINES_OF(two_syncthreads_in_a_warp);
__global__ void two_syncthreads_in_a_warp(float* out) {
  if (threadIdx.x % 32 < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1.0f;
}

LINES_OF(warps_at_different_barriers);
__global__ void warps_at_different_barriers(float* out) {
  if (threadIdx.x < 64) {
    bar_sync(1, 128);
  } else if (threadIdx.x < 96) {
    bar_sync(2, 64);
  }
  out[threadIdx.x] = 1.0f;
}

LINES_OF(caller_outside_mask);
__global__ void caller_outside_mask(float* out) {
  out[threadIdx.x] = __shfl_xor_sync(0x0fffffff, 1.0f, 1);
}

LINES_OF(odd_width);
__global__ void odd_width(float* out) {
  out[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1.0f, 1, 12);
}

LINES_OF(mixed_collectives);
__global__ void mixed_collectives(float* out) {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    out[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1.0f, 2);
  }
}

LINES_OF(masks_disagree);
__global__ void masks_disagree(float* out) {
  const unsigned mask = threadIdx.x >= 24 ? 0xff000000 : 0xffffffff;
  out[threadIdx.x] = float(__ballot_sync(mask, 1));
}

LINES_OF(lane_skips_shuffle);
__global__ void lane_skips_shuffle(float* out) {
  if (threadIdx.x != 5) out[threadIdx.x] = __shfl_xor_sync(0xffffffff, 1.0f, 1);
  __syncthreads();
}

LINES_OF(shared_after_end);
__global__ void shared_after_end(float* out) {
  shared_array<float>()[threadIdx.x + 224] = 1.0f;
  out[0] = 1.0f;
}

LINES_OF(shared_before_start);
__global__ void shared_before_start(float* out) {
  out[threadIdx.x] = shared_array<float>()[int(threadIdx.x) - 3];
}

LINES_OF(shared_straddles_end);
__global__ void shared_straddles_end(float* out) {
  float4* tile = reinterpret_cast<float4*>(smem + 16);
  tile[62] = make_float4(1, 2, 3, 4);
  tile[63].x = 1.0f;
  out[0] = 1.0f;
}

LINES_OF(shared_wild_index);
__global__ void shared_wild_index(float* out) {
  out[0] = shared_array<float>()[200000];
}

LINES_OF(global_access_at);
__global__ void global_access_at(float* out, long index) {
  out[index] = 1.0f;
}

LINES_OF(global_read_at);
__global__ void global_read_at(const float* in, long index, float* out) {
  *out = in[index];
}

LINES_OF(bytes_read_in_turn);
__global__ void bytes_read_in_turn(const unsigned char* in, int count, float* out) {
  for (int i = 0; i < 2 * count; ++i) *out += float(in[i / 2]);
}

LINES_OF(global_half_read_at);
__global__ void global_half_read_at(const __half* in, long index, float* out) {
  *out = float(in[index]);
}

#ifndef __clang__  // clang 14 copies 16-byte structs by a call to memcpy, which is not seen
LINES_OF(misaligned_vector);
__global__ void misaligned_vector(const float* in, float4* out) {
  *out = *reinterpret_cast<const float4*>(in);
}

LINES_OF(misaligned_shared_vector);
__global__ void misaligned_shared_vector(float4* out) {
  __half* row = shared_array<__half>() + 68 * threadIdx.x;
  out[threadIdx.x] = *reinterpret_cast<const float4*>(row);
}

#endif

LINES_OF(misaligned_float);
__global__ void misaligned_float(const char* in, float* out) {
  *out = *reinterpret_cast<const float*>(in + 2);
}

LINES_OF(misaligned_atomic);
__global__ void misaligned_atomic(char* memory) {
  atomicAdd(reinterpret_cast<int*>(memory + 2), 1);
}

LINES_OF(atomic_out_of_bounds);
__global__ void atomic_out_of_bounds(int* memory) {
  atomicAdd(memory + 4, 1);
}

LINES_OF(barrier_number_16);
__global__ void barrier_number_16(float*) {
  bar_sync(16, 32);
}

LINES_OF(barrier_of_33_threads);
__global__ void barrier_of_33_threads(float*) {
  bar_sync(1, 33);
}

LINES_OF(barrier_with_two_counts);
__global__ void barrier_with_two_counts(float*) {
  const int count = threadIdx.x < 32 ? 64 : 96;
  bar_sync(1, count);
}

// clang-format on
__global__ void correct_kernel(float* out) {
  float* tile = shared_array<float>();
  tile[threadIdx.x] = float(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

// Runs a kernel that takes an output buffer only.
Report report_of_kernel(void (*kernel)(float*), unsigned threads, unsigned ctas = 1) {
  Buffer<float> out(256);
  return report_of([&] { launch(kernel, ctas, threads, 1024, nullptr, out.get()); });
}

}  // namespace

TEST_CASE("races between warps name both accesses", "[bugs]") {
  fresh_options().race_detector = true;
  check_report(report_of_kernel(missing_syncthreads, 128), Bug::kRace, missing_syncthreads_line, {3, 4},
               {"__syncthreads", "block (0, 0, 0) warp "});
  check_report(report_of_kernel(syncwarp_is_not_enough, 64), Bug::kRace, syncwarp_is_not_enough_line, {3, 5});
  check_report(report_of_kernel(refill_without_barrier, 64), Bug::kRace, refill_without_barrier_line, {5, 7});
  check_report(report_of_kernel(named_barrier_race, 96), Bug::kRace, named_barrier_race_line, {4, 8});
}

TEST_CASE("races between lanes of one warp need no luck either", "[bugs]") {
  fresh_options().race_detector = true;
  check_report(report_of_kernel(missing_syncwarp, 32), Bug::kRace, missing_syncwarp_line, {3, 4},
               {"__syncwarp"});
}

TEST_CASE("lanes of a warp may write the same value to one place", "[bugs]") {
  in_all_orders(5, [] {
    Buffer<float> out(64);
    const auto run = [&](int other_lane, int other_warp) {
      launch(lanes_write_the_same, 1, 64, 1024, nullptr, out.get(), other_lane, other_warp);
    };
    CHECK_NOTHROW(run(-1, 0));
    CHECK(out.get()[63] == 7.0f);
    check_report(report_of([&] { run(5, 0); }), Bug::kRace, lanes_write_the_same_line, {4},
                 {"is not ordered after the write", "Is a __syncwarp()"});
    check_report(report_of([&] { run(-1, 1); }), Bug::kRace, lanes_write_the_same_line, {4},
                 {"is not ordered after the write", "Is a barrier"});
  });
}

#ifdef __x86_64__  // others divide by zero without a stop
TEST_CASE("a division by zero ends the launch, and not the program", "[bugs]") {
  fresh_options();
  Buffer<float> out(1);
  for (int round = 0; round < 2; ++round) {
    check_report(report_of([&] { launch(divided_by_zero, 1, 32, 0, nullptr, out.get(), 0); }), Bug::kTrap,
                 divided_by_zero_line, {2}, {"an integer is divided by zero"});
  }
  launch(divided_by_zero, 1, 1, 0, nullptr, out.get(), 3);
  CHECK(out.get()[0] == 0.0f);
}
#endif

TEST_CASE("neighbouring 2-byte elements are told apart", "[bugs]") {
  fresh_options().race_detector = true;
  const Report report = report_of_kernel(halves_in_one_word, 64);
  check_report(report, Bug::kRace, halves_in_one_word_line, {4});
  CHECK_FALSE(names_line(report, __FILE__, halves_in_one_word_line + 2));
}

TEST_CASE("races on static __shared__ arrays", "[bugs]") {
  fresh_options().race_detector = true;
  check_report(report_of_kernel(static_shared_race, 64), Bug::kRace, static_shared_race_line, {3, 4});
}

TEST_CASE("races between CTAs through global memory", "[bugs]") {
  fresh_options().race_detector = true;
  check_report(report_of_kernel(two_ctas_write, 32, 2), Bug::kRace, two_ctas_write_line, {2},
               {"block (1, 0, 0)"});
  check_report(report_of_kernel(cta_reads_what_another_wrote, 1, 4), Bug::kRace,
               cta_reads_what_another_wrote_line, {2, 3});
  check_report(report_of_kernel(cta_writes_what_others_read, 1, 4), Bug::kRace,
               cta_writes_what_others_read_line, {2, 3});
  check_report(report_of_kernel(two_ctas_write_a_device_variable, 1, 2), Bug::kRace,
               two_ctas_write_a_device_variable_line, {2}, {"block (1, 0, 0)"});
}

TEST_CASE("deadlocks say who waits where", "[bugs]") {
  fresh_options();
  check_report(report_of_kernel(divergent_syncthreads, 32), Bug::kDeadlock, divergent_syncthreads_line,
               {3, 5},
               {"16 of 32 threads have arrived: warp 0 lanes 0-15", "for lanes 0-15: warp 0 lanes 16-31"});
  check_report(report_of_kernel(warps_at_different_barriers, 128), Bug::kDeadlock,
               warps_at_different_barriers_line, {3, 5},
               {"64 of 128 threads have arrived: warp 0, warp 1.", "32 of 64 threads have arrived: warp 2.",
                "Exited: warp 3."});
  check_report(report_of_kernel(lane_skips_shuffle, 32), Bug::kDeadlock, lane_skips_shuffle_line, {2, 3},
               {"lanes 0-4, 6-31"});
}

TEST_CASE("a warp whose lanes are at different barriers has diverged", "[bugs]") {
  fresh_options();
  check_report(report_of_kernel(two_syncthreads_in_a_warp, 64), Bug::kDivergence,
               two_syncthreads_in_a_warp_line, {3, 5});
}

TEST_CASE("shuffles whose mask or width is wrong", "[bugs]") {
  fresh_options();
  check_report(report_of_kernel(caller_outside_mask, 32), Bug::kBadMask, caller_outside_mask_line, {2},
               {"lane 28"});
  check_report(report_of_kernel(odd_width, 32), Bug::kBadShuffle, odd_width_line, {2});
}

TEST_CASE("lanes that disagree about a warp-wide operation", "[bugs]") {
  fresh_options();
  check_report(report_of_kernel(mixed_collectives, 32), Bug::kDivergence, mixed_collectives_line, {3, 5});
  check_report(report_of_kernel(masks_disagree, 32), Bug::kDivergence, masks_disagree_line, {3});
}

TEST_CASE("shared memory beyond what was asked for", "[bugs]") {
  for (const bool race_detector : {false, true}) {
    fresh_options().race_detector = race_detector;
    check_report(report_of_kernel(shared_after_end, 64), Bug::kSharedOutOfBounds, shared_after_end_line, {2},
                 {"warp 1 lane 0", "smem + 1024"});
    check_report(report_of_kernel(shared_before_start, 32), Bug::kSharedOutOfBounds, shared_before_start_line,
                 {2}, {"smem - 12"});
    check_report(report_of_kernel(shared_straddles_end, 1), Bug::kSharedOutOfBounds,
                 shared_straddles_end_line, {4});
    check_report(report_of_kernel(shared_wild_index, 1), Bug::kSharedOutOfBounds, shared_wild_index_line,
                 {2});
  }
}

TEST_CASE("global memory that no kernel may touch", "[bugs]") {
  fresh_options();
  Buffer<float> out(100);
  const auto report_write = [](float* pointer, long index) {
    const Report report = report_of([&] { launch(global_access_at, 1, 1, 0, nullptr, pointer, index); });
    check_report(report, Bug::kGlobalOutOfBounds, global_access_at_line, {2});
    return std::string(report.what());
  };
  CHECK(contains(report_write(out.get(), 100), "0 bytes after the end of an allocation of 400 bytes"));
  CHECK(contains(report_write(out.get(), 101), "4 bytes after the end"));
  CHECK(contains(report_write(out.get(), -1), "4 bytes before an allocation of 400 bytes"));
  CHECK(contains(report_write(nullptr, 0), "null pointer"));
  CHECK(contains(report_write(nullptr, 100), "null pointer"));

  auto heap = std::make_unique<float[]>(100);
  report_write(heap.get(), 3);
  float on_host_stack = 0;
  report_write(&on_host_stack, 0);
  static const float constants[4] = {1, 2, 3, 4};
  report_write(const_cast<float*>(constants), 1);

  float* released = nullptr;
  {
    Buffer<float> temporary(100);
    released = temporary.get();
  }
  report_write(released, 0);

  check_report(report_of([&] { launch(global_read_at, 1, 1, 0, nullptr, out.get(), 100, out.get()); }),
               Bug::kGlobalOutOfBounds, global_read_at_line, {2}, {"read of 4 bytes"});
  CHECK_NOTHROW(launch(global_read_at, 1, 1, 0, nullptr, static_cast<const float*>(constants), 1, out.get()));
  const auto of_a_library = static_cast<const float*>(dlsym(RTLD_NEXT, "qsort"));
  REQUIRE(of_a_library != nullptr);
  check_report(report_of([&] { launch(global_read_at, 1, 1, 0, nullptr, of_a_library, 0, out.get()); }),
               Bug::kGlobalOutOfBounds, 0, {});
}

// The race detector does not look twice at what a CTA reads again.
TEST_CASE("what has been read says nothing about its neighbours, nor about the next launch", "[bugs]") {
  emulator::Options& options = fresh_options();
  options.race_detector = true;
  Buffer<float> out(1);
  Buffer<unsigned char> bytes(31);
  const auto read = [&](int count) {
    launch(bytes_read_in_turn, 1, 1, 0, nullptr, bytes.get(), count, out.get());
  };
  CHECK_NOTHROW(read(31));
  check_report(report_of([&] { read(32); }), Bug::kGlobalOutOfBounds, bytes_read_in_turn_line, {2});

  auto floats = std::make_unique<Buffer<float>>(8);
  const float* in = floats->get();
  const auto read_float = [&] { launch(global_read_at, 1, 1, 0, nullptr, in, 7, out.get()); };
  CHECK_NOTHROW(read_float());
  floats.reset();
  for (const bool race_detector : {false, true}) {
    options.race_detector = race_detector;
    CHECK(report_of(read_float).bug == Bug::kGlobalOutOfBounds);
  }
}

TEST_CASE("a load inside a conversion is the kernel's", "[bugs]") {
  fresh_options();
  Buffer<__half> in(8);
  Buffer<float> out(1);
  check_report(report_of([&] { launch(global_half_read_at, 1, 1, 0, nullptr, in.get(), 8, out.get()); }),
               Bug::kGlobalOutOfBounds, global_half_read_at_line, {2});
}

TEST_CASE("misaligned accesses", "[bugs]") {
  fresh_options();
  Buffer<float> in(64);

#ifndef __clang__
  Buffer<float4> out(64);
  for (const int offset : {1, 2}) {
    check_report(
        report_of([&] { launch(misaligned_vector, 1, 1, 0, nullptr, in.get() + offset, out.get()); }),
        Bug::kMisaligned, misaligned_vector_line, {2});
  }
  check_report(report_of([&] { launch(misaligned_shared_vector, 1, 2, 1024, nullptr, out.get()); }),
               Bug::kMisaligned, misaligned_shared_vector_line, {3}, {"lane 1: ", "smem + 136"});
  CHECK_NOTHROW(launch(misaligned_vector, 1, 1, 0, nullptr, in.get() + 4, out.get()));
#endif

  const auto* bytes = reinterpret_cast<const char*>(in.get());
  Buffer<float> result(1);
  check_report(report_of([&] { launch(misaligned_float, 1, 1, 0, nullptr, bytes, result.get()); }),
               Bug::kMisaligned, misaligned_float_line, {2});
}

TEST_CASE("atomics are checked like other accesses", "[bugs]") {
  fresh_options();
  Buffer<int> memory(4);
  check_report(report_of([&] { launch(atomic_out_of_bounds, 1, 1, 0, nullptr, memory.get()); }),
               Bug::kGlobalOutOfBounds, atomic_out_of_bounds_line, {2});
  auto* bytes = reinterpret_cast<char*>(memory.get());
  check_report(report_of([&] { launch(misaligned_atomic, 1, 1, 0, nullptr, bytes); }), Bug::kMisaligned,
               misaligned_atomic_line, {2});
}

TEST_CASE("barriers that cannot be", "[bugs]") {
  fresh_options();
  check_report(report_of_kernel(barrier_number_16, 32), Bug::kBadBarrier, barrier_number_16_line, {2});
  check_report(report_of_kernel(barrier_of_33_threads, 32), Bug::kBadBarrier, barrier_of_33_threads_line,
               {2});
  check_report(report_of_kernel(barrier_with_two_counts, 96), Bug::kBadBarrier, barrier_with_two_counts_line,
               {3}, {"96 threads here, but with 64"});
}

TEST_CASE("the emulator works on after a report", "[bugs]") {
  for (const int host_threads : {1, 3}) {
    fresh_options().host_threads = host_threads;
    Buffer<float> out(256);
    report_of_kernel(divergent_syncthreads, 32, 10);
    report_of_kernel(shared_after_end, 256, 10);
    launch(correct_kernel, 10, 256, 1024, nullptr, out.get());
    int wrong = 0;
    for (size_t i = 0; i < 256; ++i) wrong += out[i] != 255.0f - float(i);
    CHECK(wrong == 0);
  }
}

TEST_CASE("the lowest faulty CTA is the one reported", "[bugs]") {
  for (const int host_threads : {1, 4}) {
    fresh_options().host_threads = host_threads;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Report report = report_of_kernel(divergent_syncthreads, 32, 20);
      CHECK(contains(report.what(), "block (0, 0, 0)"));
    }
  }
}
