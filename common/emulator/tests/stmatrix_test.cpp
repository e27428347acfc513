// stmatrix: what it writes, what it counts, and the mistakes around it.
#include "common/stmatrix.h"

#include <array>

#include "common/emulator/tests/support.h"
#include "common/ldmatrix.h"
#include "common/mbarrier.h"
#include "common/named_barrier.h"
#include "common/swizzle.h"
#include "common/tma.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

constexpr int kStoreLine = __LINE__ + 3;
template <bool TRANSPOSED>
__device__ void store(void* row, const uint32_t (&registers)[4]) {
  TRANSPOSED ? stmatrix_x4_trans(row, registers) : stmatrix_x4(row, registers);
}

// Element e of lane l's register m is 8 l + 2 m + e. Rows of 24 elements, from the last to the first.
template <bool TRANSPOSED>
__global__ void values(uint16_t* out) {
  const uint32_t lane = threadIdx.x;
  uint32_t registers[4];
  for (uint32_t m = 0; m < 4; ++m) registers[m] = (8 * lane + 2 * m) | (8 * lane + 2 * m + 1) << 16;
  store<TRANSPOSED>(smem + 48 * (31 - lane), registers);
  __syncwarp();
  const auto* row = reinterpret_cast<const uint16_t*>(smem + 48 * (31 - lane));
  for (int i = 0; i < 8; ++i) out[8 * lane + i] = row[i];
}

__global__ void rows_apart(int stride_bytes) {
  stmatrix_x4(smem + stride_bytes * int(threadIdx.x), {1, 2, 3, 4});
}

// clang-format off
LINES_OF(back_and_forth);
template <bool TRANSPOSED>
__global__ void back_and_forth(int variant) {
  uint32_t registers[4];
  auto* row = smem + 16 * threadIdx.x;
  if (variant == 0) registers[0] = *reinterpret_cast<uint32_t*>(smem + 16 * (31 - threadIdx.x));  // line 5
  if (variant == 1) ldmatrix_x4(registers, row);  // line 6
  if (variant == 2 && threadIdx.x == 9) *reinterpret_cast<uint16_t*>(row + 2) = 5;  // line 7
  if (variant == 5) {
    registers[0] = *reinterpret_cast<uint32_t*>(row);
    __syncwarp();
  }
  store<TRANSPOSED>(row, {1, 2, 3, 4});
  if (variant == 5) store<TRANSPOSED>(row, {1, 2, 3, 5});  // by the same lanes
  if (variant == 5) __syncwarp();
  if (variant >= 3) ldmatrix_x4(registers, row);  // line 15
}

LINES_OF(between_warps);
__global__ void between_warps(float* out, bool barrier) {
  auto* row = smem + 16 * (threadIdx.x % 32);
  if (threadIdx.x < 32) stmatrix_x4(row, {1, 2, 3, 4});  // line 3
  if (barrier) __syncthreads();
  if (threadIdx.x >= 32) out[threadIdx.x] = *reinterpret_cast<float*>(row);  // line 5
  if (barrier) __syncthreads();
  if (threadIdx.x < 32) stmatrix_x4(row, {1, 2, 3, 4});  // line 7
}

// The lanes that write to row 0 of the first matrix have heard that it is free; in the other variant, others.
LINES_OF(lanes_that_know);
template <bool TRANSPOSED>
__global__ void lanes_that_know(bool right_ones) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 512);
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  __syncthreads();
  if (threadIdx.x == 32) {
    *reinterpret_cast<uint16_t*>(smem) = 5;  // line 7
    mbarrier_arrive(barrier);
  } else if (threadIdx.x < 32) {
    if (TRANSPOSED == right_ones ? threadIdx.x % 4 == 0 : threadIdx.x < 4) mbarrier_wait(barrier, 0);
    store<TRANSPOSED>(smem + 16 * threadIdx.x, {1, 2, 3, 4});
  }
}

using Tile = SwizzledTile<__half, 8, 64, 128>;  // one of a warp

LINES_OF(warps_store_own_rows);
__global__ void warps_store_own_rows(const TensorMap map, int variant) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Tile& tile = reinterpret_cast<Tile*>(smem)[warp];
  for (int col = 0; col < 64; col += 32) {
    uint32_t registers[4];
    for (uint32_t m = 0; m < 4; ++m) registers[m] = uint32_t(0x3c00 + 256 * warp + lane) * 0x10001;
    stmatrix_x4(tile.at(tile.offset_of(lane % 8, col + lane / 8 * 8), 0, 0), registers);  // line 7
  }
  if (variant != 0) fence_proxy_async();
  if (variant != 1) __syncwarp();
  if (lane == 0) {
    tma_store_5d(map, &tile, 0, 8 * warp, 0, 0, 0);  // line 12
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}

LINES_OF(misuse);
template <int VARIANT>
__global__ void misuse(void* global) {
  if (VARIANT == 0) stmatrix_x4(smem + 8 + 16 * threadIdx.x, {1, 2, 3, 4});  // line 3
  if (VARIANT == 1) stmatrix_x4(smem + 32 * threadIdx.x + 528, {1, 2, 3, 4});  // line 4
  if (VARIANT == 2) stmatrix_x4(global, {1, 2, 3, 4});  // line 5
  if (VARIANT == 3 && threadIdx.x != 5) stmatrix_x4(smem, {1, 2, 3, 4});  // line 6
  if (VARIANT == 4) stmatrix_x4(smem + 16 * (threadIdx.x % 16), {1, 2, 3, 4});  // line 7
}

// clang-format on

void check_race(const Report& report, int line, int other_line) {
  check_report(report, Bug::kRace, 0, {line, other_line});
}

template <bool TRANSPOSED>
void check_values() {
  Buffer<uint16_t> out(256);
  launch(values<TRANSPOSED>, 1, 32, 32 * 48, nullptr, out.get());
  int wrong = 0;
  for (int m = 0; m < 4; ++m) {
    for (int row = 0; row < 8; ++row) {
      for (int col = 0; col < 8; ++col) {
        // PTX ISA: lanes 0-3 hold row 0, two neighbours each, lanes 4-7 row 1.
        const int r = TRANSPOSED ? col : row, c = TRANSPOSED ? row : col;
        const int expected = 8 * (4 * r + c / 2) + 2 * m + c % 2;
        wrong += int(out[size_t(8 * (8 * m + row) + col)]) != expected;
      }
    }
  }
  CHECK(wrong == 0);
}

template <bool TRANSPOSED>
void check_back_and_forth() {
  in_all_orders(6, [] {
    const auto report = [](int variant) {
      return report_of([&] { launch(back_and_forth<TRANSPOSED>, 1, 32, 512, nullptr, variant); });
    };
    for (int variant = 0; variant < 3; ++variant) {
      CAPTURE(variant);
      check_race(report(variant), kStoreLine, back_and_forth_line + 5 + variant);
    }
    check_race(report(3), back_and_forth_line + 15, kStoreLine);
    CHECK_NOTHROW(launch(back_and_forth<TRANSPOSED>, 1, 32, 512, nullptr, 5));
    const auto run = [](bool right_ones) {
      launch(lanes_that_know<TRANSPOSED>, 1, 64, 520, nullptr, right_ones);
    };
    check_race(report_of([&] { run(false); }), kStoreLine, lanes_that_know_line + 7);
    CHECK_NOTHROW(run(true));
  });
}

}  // namespace

TEST_CASE("stmatrix writes the documented elements", "[matrix]") {
  in_all_orders(6, [] {
    check_values<false>();
    check_values<true>();
  });
}

TEST_CASE("stmatrix takes as many wavefronts as its rows collide", "[matrix][counters]") {
  struct Case {
    int stride_bytes;
    uint64_t wavefronts;
  };
  for (const Case c : {Case{16, 4}, {32, 8}, {64, 16}, {128, 32}, {144, 4}}) {
    CAPTURE(c.stride_bytes);
    fresh_options().count = true;
    launch(rows_apart, 1, 32, 8192, nullptr, c.stride_bytes);
    const emulator::Counters counted = emulator::last_counters();
    CHECK(counted.shared_requests == 1);
    CHECK(counted.shared_wavefronts == c.wavefronts);
    CHECK(counted.shared_wavefronts_ideal == 4);
    CHECK(counted.ldmatrix == 0);
  }
}

TEST_CASE("between stmatrix and what other lanes do there must be a __syncwarp", "[matrix][bugs]") {
  check_back_and_forth<false>();
  check_back_and_forth<true>();
}

TEST_CASE("between stmatrix and other warps there must be a barrier", "[matrix][bugs]") {
  Buffer<float> out(64);
  in_all_orders(6, [&] {
    const auto run = [&](bool barrier) { launch(between_warps, 1, 64, 512, nullptr, out.get(), barrier); };
    const Report report = report_of([&] { run(false); });
    check_report(report, Bug::kRace, between_warps_line, {5});
    CHECK((names_line(report, __FILE__, between_warps_line + 3) ||
           names_line(report, __FILE__, between_warps_line + 7)));
    CHECK_NOTHROW(run(true));
  });
}

TEST_CASE("each warp stores its own rows of a tile by TMA, behind a fence", "[matrix][copy][bugs]") {
  Buffer<__half> out(32 * 64);
  const TensorMap map = make_tensor_map<Tile>(View{out.get(), 1, 1, 29, 0, 0, 64});
  in_all_modes(2, [&] {
    const auto run = [&](int variant) {
      launch(warps_store_own_rows, 1, 128, 4 * sizeof(Tile), nullptr, map, variant);
    };
    check_report(report_of([&] { run(0); }), Bug::kProxyFence, warps_store_own_rows_line, {12, 7});
    check_race(report_of([&] { run(1); }), warps_store_own_rows_line + 12, warps_store_own_rows_line + 7);
    std::memset(out.get(), 0, 32 * 64 * sizeof(__half));
    CHECK_NOTHROW(run(2));
    int wrong = 0;
    for (int row = 0; row < 32; ++row) {
      for (int col = 0; col < 64; ++col) {
        const int lane = row % 8 * 4 + col % 8 / 2;
        uint16_t bits;
        std::memcpy(&bits, &out[size_t(64 * row + col)], 2);
        wrong += bits != (row < 29 ? 0x3c00 + row / 8 * 256 + lane : 0);
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("stmatrix's rows and lanes are checked", "[matrix][bugs]") {
  constexpr void (*kKernels[])(void*) = {misuse<0>, misuse<1>, misuse<2>, misuse<3>, misuse<4>};
  Buffer<uint4> global(8);
  constexpr Bug kBugs[] = {Bug::kMisaligned, Bug::kSharedOutOfBounds, Bug::kSharedOutOfBounds,
                           Bug::kDivergence, Bug::kRace};
  in_all_orders(6, [&] {
    for (int variant = 0; variant < 5; ++variant) {
      CAPTURE(variant);
      check_report(report_of([&] {
                     launch(kKernels[variant], 1, 32, 1024 + 256, nullptr, static_cast<void*>(global.get()));
                   }),
                   kBugs[variant], misuse_line, {3 + variant});
    }
  });
}
