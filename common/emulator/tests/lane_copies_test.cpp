// cp.async: what it brings and when, what is counted, and the mistakes around it. Each of these must be
// reported with its lines, in every async mode and every order.
#include <vector>

#include "common/cp_async.h"
#include "common/emulator/tests/support.h"
#include "common/ldmatrix.h"

using namespace flashsteps;
using emulator::AsyncMode;
using emulator::Bug;
using emulator::Report;

namespace {

// clang-format off
// ---- A pipeline: 64 threads copy tiles of 32 rows of 64 bytes into two stages, and add them up.

enum Mistake {
  kNone,
  kNoWait, kWaitLeavesTwo, kNoBarrierAfterWait, kRefilledTooEarly, kNoCommit, kWaitBehindBarrier,
  kStoredOver,
};

constexpr int THREADS = 64, CHUNKS = 128, TILE_BYTES = CHUNKS * 16;

LINES_OF(pipeline);
template <Mistake MISTAKE>
__global__ void pipeline(const unsigned char* in, int num_rows, float* out, int num_tiles) {
  const auto stage_of = [](int tile) { return smem + tile % 2 * TILE_BYTES; };
  const auto load = [&](int tile) {
    for (int chunk = threadIdx.x; tile < num_tiles && chunk < CHUNKS; chunk += THREADS) {
      const int row = 32 * tile + chunk / 4;
      cp_async_16_zfill(stage_of(tile) + 16 * chunk, in + 64 * row + chunk % 4 * 16, row < num_rows);  // line 7
    }
    if (MISTAKE != kNoCommit) cp_async_commit();
  };
  float sum = 0;
  load(0);
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (MISTAKE != kRefilledTooEarly) __syncthreads();  // all have read the tile before
    load(tile + 1);
    if (MISTAKE == kWaitBehindBarrier) __syncthreads();
    if (MISTAKE == kWaitLeavesTwo) cp_async_wait<2>();
    else if (MISTAKE != kNoWait) cp_async_wait<1>();
    if (MISTAKE == kStoredOver && threadIdx.x == 8) *reinterpret_cast<float*>(stage_of(tile + 1) + 128) = 0.0f;  // line 19
    if (MISTAKE != kNoBarrierAfterWait && MISTAKE != kWaitBehindBarrier) __syncthreads();
    const auto* tile_rows = reinterpret_cast<const float*>(stage_of(tile));
    for (int row = 0; row < 32; ++row) sum += tile_rows[row * 16 + threadIdx.x % 16];  // line 22
  }
  out[threadIdx.x] = sum;
}

// Each thread for itself: nobody else needs to hear of it.
LINES_OF(own_chunk);
__global__ void own_chunk(const unsigned char* in, float* out, int variant) {
  auto* chunk = smem + 16 * threadIdx.x;
  *reinterpret_cast<float*>(chunk) = 5.0f;
  cp_async_16(chunk, in + 16 * threadIdx.x);  // line 4
  if (variant != 3) cp_async_commit();
  if (variant == 0) out[threadIdx.x] = *reinterpret_cast<float*>(chunk);  // line 6
  if (variant == 1) *reinterpret_cast<float*>(chunk + 4) = 0.0f;  // line 7
  if (variant == 2) cp_async_16(chunk, in + 16 * threadIdx.x);  // line 8
  cp_async_wait<0>();
  out[threadIdx.x] = *reinterpret_cast<float*>(chunk + 12);  // line 10
}

// A thread's wait is for its own copies, not for its neighbour's.
LINES_OF(one_lane_waits);
__global__ void one_lane_waits(const unsigned char* in, bool sync) {
  if (threadIdx.x == 3) {
    cp_async_16(smem, in);  // line 3
    cp_async_commit();
    cp_async_wait<0>();
  }
  if (sync) __syncwarp();
  __shfl_sync(0xffffffff, 1, 0);  // does not order memory
  uint32_t registers[4];
  ldmatrix_x4(registers, smem);  // line 10
}

// Warp 1 copies to where warp 0 has read.
LINES_OF(copied_over_a_read);
__global__ void copied_over_a_read(const unsigned char* in, bool sync) {
  uint32_t registers[4];
  if (threadIdx.x < 32) ldmatrix_x4(registers, smem + 16 * threadIdx.x);  // line 3
  if (sync) __syncthreads();
  if (threadIdx.x >= 32) cp_async_16(smem + 16 * (threadIdx.x - 32), in);  // line 5
}

// The CTA that comes last writes what the others have copied, with no order between them.
LINES_OF(source_of_other_ctas);
__global__ void source_of_other_ctas(float* in, bool write) {
  if (write && blockIdx.x == gridDim.x - 1) in[threadIdx.x] = 1.0f;  // line 2
  else cp_async_16(smem + 16 * threadIdx.x, in + 4 * threadIdx.x);  // line 3
}

LINES_OF(bad_address);
template <int VARIANT>
__global__ void bad_address(const unsigned char* in, bool valid) {
  unsigned char local[32];
  if (VARIANT == 0) cp_async_16_zfill(smem + 8, in, valid);  // line 4
  if (VARIANT == 1) cp_async_16_zfill(smem, in + 4, valid);  // line 5
  if (VARIANT == 2) cp_async_16_zfill(smem + 1024, in, valid);  // line 6
  if (VARIANT == 3) cp_async_16_zfill(const_cast<unsigned char*>(in), in, valid);  // line 7
  if (VARIANT == 4) cp_async_16_zfill(local, in, valid);  // line 8
  if (VARIANT == 5) cp_async_16_zfill(smem, in + 1024, valid);  // line 9
  if (VARIANT == 6) cp_async_16_zfill(smem, smem + 16, valid);  // line 10
  cp_async_commit();
  cp_async_wait<0>();
}

// clang-format on

// Who exits need not have waited, and the next CTA finds nothing of it.
__global__ void exits_without_wait(const unsigned char* in, float* out) {
  auto* chunk = smem + 16 * threadIdx.x;
  *reinterpret_cast<float*>(chunk) = float(blockIdx.x);
  out[blockIdx.x * 32 + threadIdx.x] = *reinterpret_cast<float*>(chunk);
  cp_async_16(chunk, in);
  if (threadIdx.x % 2 == 0) cp_async_commit();
}

// When the bytes come: copies are 1, what was there is 5.
__global__ void moments(const float* in, float* out) {
  auto* values = reinterpret_cast<float*>(smem);
  for (int i = 0; i < 12; ++i) values[i] = 5.0f;
  cp_async_16(values, in);
  cp_async_commit();
  cp_async_commit();  // an empty group is one, too
  cp_async_16(values + 4, in);
  cp_async_commit();
  cp_async_16(values + 8, in);
  out[0] = values[0];
  cp_async_wait<3>();
  out[1] = values[0];
  cp_async_wait<2>();
  out[2] = values[0];
  cp_async_wait<1>();
  out[3] = values[4];
  cp_async_wait<0>();
  out[4] = values[4];
  out[5] = values[8];
  cp_async_commit();
  cp_async_wait<0>();
  out[6] = values[8];
}

// The source is read when the copy is done, not before.
__global__ void changes_source(float* in, float* out) {
  cp_async_16(smem, in);
  cp_async_commit();
  in[0] = 2.0f;
  cp_async_wait<0>();
  out[0] = *reinterpret_cast<float*>(smem);
}

__global__ void counted(const unsigned char* in, int num_valid, int stride, bool last_ones) {
  const int number = last_ones ? 31 - int(threadIdx.x) : int(threadIdx.x);
  for (int i = 0; i < 3; ++i) {
    cp_async_16_zfill(smem + 512 * i + 16 * threadIdx.x, in + stride * number, number < num_valid);
  }
  cp_async_commit();
  cp_async_wait<0>();
}

__global__ void many_groups(const unsigned char* in, float* out) {
  for (int i = 0; i < 1000; ++i) {
    cp_async_16(smem + 16 * (threadIdx.x + i % 4 * 32), in + 16 * (i % 64));
    cp_async_commit();
    cp_async_wait<3>();
  }
  cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) {
    out[4 * threadIdx.x + i] = *reinterpret_cast<float*>(smem + 16 * (threadIdx.x + i * 32));
  }
}

constexpr int NUM_TILES = 5, NUM_ROWS = 32 * (NUM_TILES - 1) + 9;

struct Problem {
  Buffer<float> in{16 * NUM_ROWS}, out{THREADS};
  const unsigned char* bytes() { return reinterpret_cast<const unsigned char*>(in.get()); }

  Problem() {
    for (int i = 0; i < 16 * NUM_ROWS; ++i) in[size_t(i)] = float(i % 61);
  }
  template <Mistake MISTAKE>
  void run() {
    std::memset(out.get(), 0xff, THREADS * sizeof(float));
    launch(pipeline<MISTAKE>, 1, THREADS, 2 * TILE_BYTES, nullptr, bytes(), NUM_ROWS, out.get(), NUM_TILES);
  }
  bool is_solved() {
    for (int thread = 0; thread < THREADS; ++thread) {
      float sum = 0;
      for (int row = 0; row < NUM_ROWS; ++row) sum += in[size_t(row * 16 + thread % 16)];
      if (out[size_t(thread)] != sum) return false;
    }
    return true;
  }
};

void check_race(const Report& report, int line, int other_line, const char* words) {
  check_report(report, Bug::kRace, 0, {line, other_line}, {words});
}

template <Mistake MISTAKE>
void check_pipeline(int line, int other_line, const char* words) {
  Problem problem;
  in_all_modes(5, [&] {
    CAPTURE(int(MISTAKE));
    const Report report = report_of([&] { problem.run<MISTAKE>(); });
    check_race(report, pipeline_line + line, pipeline_line + other_line, words);
    CHECK_NOTHROW(problem.run<kNone>());  // nothing is left of the mistake
    CHECK(problem.is_solved());
  });
}

}  // namespace

TEST_CASE("cp.async brings tiles, and zeros beyond the tensor", "[copy]") {
  Problem problem;
  for (const bool race_detector : {true, false}) {
    in_all_modes(5, [&] {
      emulator::options().race_detector = race_detector;
      CHECK_NOTHROW(problem.run<kNone>());
      CHECK(problem.is_solved());
    });
  }
}

TEST_CASE("cp.async's bytes come at once, or as late as they may", "[copy]") {
  Buffer<float> in(4), out(7);
  for (size_t i = 0; i < 4; ++i) in[i] = 1.0f;
  const auto arrived = [&] {
    launch(moments, 1, 1, 48, nullptr, in.get(), out.get());
    std::string text;
    for (size_t i = 0; i < 7; ++i) text += out[i] == 1.0f ? '1' : out[i] != out[i] ? 'x' : '5';
    return text;
  };
  fresh_options();
  CHECK(arrived() == "1111111");
  emulator::options().async = AsyncMode::kLate;
  CHECK(arrived() == "xx1x1x1");  // neither the old value nor the new one
  emulator::options().poison = emulator::Poison::kLarge;
  launch(moments, 1, 1, 48, nullptr, in.get(), out.get());
  CHECK(out[0] > 1e36f);
  launch(changes_source, 1, 1, 16, nullptr, in.get(), out.get());
  CHECK(out[0] == 2.0f);
  fresh_options();
  in[0] = 1.0f;
  launch(changes_source, 1, 1, 16, nullptr, in.get(), out.get());
  CHECK(out[0] == 1.0f);
  // At random, when others run in between: here nobody does but in shuffled accesses.
  int late = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::Options& options = fresh_options();
    options.async = AsyncMode::kRandom;
    options.shuffle = true;
    options.seed = seed;
    Buffer<float> sums(128);
    launch(many_groups, 1, 32, 2048, nullptr,
           reinterpret_cast<const unsigned char*>(Buffer<float>(256).get()), sums.get());
    late += arrived()[0] == 'x';
  }
  CHECK(late > 0);
}

TEST_CASE("a thousand groups of cp.async are each waited for", "[copy]") {
  Buffer<float> in(256), out(128);
  for (size_t i = 0; i < 256; ++i) in[i] = float(i);
  in_all_modes(5, [&] {
    launch(many_groups, 1, 32, 2048, nullptr, reinterpret_cast<const unsigned char*>(in.get()), out.get());
    int wrong = 0;
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) wrong += out[size_t(4 * lane + i)] != float((996 + i) % 64 * 4);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("copies of cp.async that are not waited for are found", "[copy][bugs]") {
  check_pipeline<kNoWait>(22, 7, "has not waited for it");
  check_pipeline<kWaitLeavesTwo>(22, 7, "that lane's last cp_async_wait leaves it pending");
  check_pipeline<kStoredOver>(19, 7, "that lane's last cp_async_wait leaves it pending");
  check_pipeline<kNoCommit>(22, 7, "no cp_async_wait includes it: cp_async_commit is missing after it");
}

TEST_CASE("what cp.async brings others see behind a barrier after the wait", "[copy][bugs]") {
  check_pipeline<kNoBarrierAfterWait>(22, 7, "a barrier");
  check_pipeline<kWaitBehindBarrier>(22, 7, "a barrier");
  Problem problem;
  in_all_modes(5, [&] {
    const auto run = [&](bool sync) {
      launch(one_lane_waits, 1, 32, 16 * 32, nullptr, problem.bytes(), sync);
    };
    check_race(report_of([&] { run(false); }), one_lane_waits_line + 10, one_lane_waits_line + 3,
               "a barrier");
    CHECK_NOTHROW(run(true));
  });
  // Who comes before the wait hears of that, who comes behind it, of the order.
  fresh_options().race_detector = true;
  const Report report =
      report_of([&] { launch(one_lane_waits, 1, 32, 16, nullptr, problem.bytes(), false); });
  CHECK(contains(report.what(), "is not ordered after the write at"));
}

TEST_CASE("cp.async into what others may still read is found", "[copy][bugs]") {
  check_pipeline<kRefilledTooEarly>(7, 22, "race on shared memory at smem + ");
  Problem problem;
  in_all_modes(5, [&] {
    const auto run = [&](bool sync) {
      launch(copied_over_a_read, 1, 64, 512, nullptr, problem.bytes(), sync);
    };
    check_race(report_of([&] { run(false); }), copied_over_a_read_line + 3, copied_over_a_read_line + 5,
               "race on shared memory at smem + ");
    CHECK_NOTHROW(run(true));
  });
  fresh_options().race_detector = true;
  const Report report =
      report_of([&] { launch(copied_over_a_read, 1, 64, 512, nullptr, problem.bytes(), false); });
  CHECK(contains(report.what(), "is not ordered after the read at"));
}

TEST_CASE("what cp.async reads of other CTAs is looked at", "[copy][bugs]") {
  Buffer<float> in(128);
  in_all_modes(5, [&] {
    const auto run = [&](bool write) { launch(source_of_other_ctas, 3, 32, 512, nullptr, in.get(), write); };
    check_race(report_of([&] { run(true); }), source_of_other_ctas_line + 2, source_of_other_ctas_line + 3,
               "race between CTAs on global memory");
    CHECK_NOTHROW(run(false));
  });
}

TEST_CASE("a lane's own accesses to what its cp.async brings are found", "[copy][bugs]") {
  Problem problem;
  in_all_modes(5, [&] {
    const auto run = [&](int variant) {
      launch(own_chunk, 1, 32, 512, nullptr, problem.bytes(), problem.out.get(), variant);
    };
    for (int variant = 0; variant < 4; ++variant) {
      CAPTURE(variant);
      check_race(report_of([&] { run(variant); }), own_chunk_line + (variant == 3 ? 10 : 6 + variant),
                 own_chunk_line + 4,
                 variant == 3 ? "no cp_async_wait includes it" : "this lane has not waited for it");
    }
    CHECK_NOTHROW(run(4));
    for (int lane = 0; lane < 32; ++lane) CHECK(problem.out[size_t(lane)] == float((4 * lane + 3) % 61));
  });
}

TEST_CASE("copies that nobody waits for harm nobody", "[copy]") {
  Problem problem;
  Buffer<float> out(3 * 32);
  in_all_modes(5, [&] {
    CHECK_NOTHROW(launch(exits_without_wait, 3, 32, 512, nullptr, problem.bytes(), out.get()));
    for (size_t i = 0; i < 3 * 32; ++i) CHECK(out[i] == float(i / 32));
  });
}

TEST_CASE("cp.async's addresses are checked", "[copy][bugs]") {
  Buffer<unsigned char> in(1024);
  constexpr void (*kKernels[])(const unsigned char*, bool) = {bad_address<0>, bad_address<1>, bad_address<2>,
                                                              bad_address<3>, bad_address<4>, bad_address<5>,
                                                              bad_address<6>, bad_address<7>};
  const auto run = [&](int variant, bool valid) {
    launch(kKernels[variant], 1, 1, 1024, nullptr, in.get(), valid);
  };
  constexpr Bug kBugs[] = {Bug::kMisaligned,        Bug::kMisaligned,        Bug::kSharedOutOfBounds,
                           Bug::kSharedOutOfBounds, Bug::kSharedOutOfBounds, Bug::kGlobalOutOfBounds,
                           Bug::kGlobalOutOfBounds};
  for (const bool race_detector : {false, true}) {
    fresh_options().race_detector = race_detector;
    for (int variant = 0; variant < 7; ++variant) {
      CAPTURE(variant, race_detector);
      for (const bool valid : {true, false}) {
        // What is not read need not be there, but must be aligned.
        if (!valid && variant >= 5) {
          CHECK_NOTHROW(run(variant, valid));
          continue;
        }
        const Report report = report_of([&] { run(variant, valid); });
        check_report(report, kBugs[variant], bad_address_line, {4 + variant});
      }
    }
    CHECK_NOTHROW(run(7, true));
  }
}

TEST_CASE("cp.async is counted as a load and a store of 16 bytes", "[copy][counters]") {
  Buffer<unsigned char> in(4096);
  const auto count = [&](int num_valid, int stride, bool last_ones = false) {
    fresh_options().count = true;
    launch(counted, 1, 32, 1536, nullptr, in.get(), num_valid, stride, last_ones);
    return emulator::last_counters();
  };
  emulator::Counters counters = count(32, 16);
  CHECK(counters.global_requests == 3);
  CHECK(counters.global_sectors == 3 * 16);
  CHECK(counters.global_bytes == 3 * 512);
  CHECK(counters.shared_requests == 3);
  CHECK(counters.shared_wavefronts == 3 * 4);
  CHECK(counters.shared_wavefronts_ideal == 3 * 4);
  counters = count(32, 32);
  CHECK(counters.global_sectors == 3 * 32);
  for (const int valid : {1, 5, 31}) {
    for (const bool last_ones : {false, true}) {
      CAPTURE(valid, last_ones);
      counters = count(valid, 32, last_ones);
      CHECK(counters.global_requests == 3);
      CHECK(counters.global_sectors == uint64_t(3 * valid));
      CHECK(counters.shared_requests == 3);
      CHECK(counters.shared_wavefronts == 3 * 4);
    }
  }
  counters = count(0, 32);
  CHECK(counters.global_requests == 0);
  CHECK(counters.shared_requests == 3);
}
