// Mistakes around ldmatrix, mma.sync and WMMA: each must be reported, as what it is and with its line. And no
// correct kernel may be.
#include "common/emulator/tests/support.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/wmma.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using FragA = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;

// clang-format off
// ---- Addresses

LINES_OF(ldmatrix_at);
__global__ void ldmatrix_at(long offset_of_lane_9) {
  uint32_t registers[4];
  ldmatrix_x4(registers, smem + (threadIdx.x == 9 ? offset_of_lane_9 : 16 * threadIdx.x));
}

LINES_OF(ldmatrix_trans_at);
__global__ void ldmatrix_trans_at(long offset_of_lane_9) {
  uint32_t registers[4];
  ldmatrix_x4_trans(registers, smem + (threadIdx.x == 9 ? offset_of_lane_9 : 16 * threadIdx.x));
}

LINES_OF(ldmatrix_of);
__global__ void ldmatrix_of(const void* row) {
  uint32_t registers[4];
  ldmatrix_x4(registers, row);
}

LINES_OF(ldmatrix_of_a_local_array);
__global__ void ldmatrix_of_a_local_array(const void*) {
  uint32_t registers[4];
  uint4 row = make_uint4(1, 2, 3, 4);
  ldmatrix_x4(registers, &row);
}

LINES_OF(wmma_load_at);
__global__ void wmma_load_at(long offset, unsigned stride) {
  FragA a;
  wmma::load_matrix_sync(a, reinterpret_cast<const __half*>(smem + offset), stride);
}

LINES_OF(wmma_load_accumulator_at);
__global__ void wmma_load_accumulator_at(long offset, unsigned stride) {
  Accumulator c;
  wmma::load_matrix_sync(c, reinterpret_cast<const float*>(smem + offset), stride, wmma::mem_row_major);
}

LINES_OF(wmma_store_at);
__global__ void wmma_store_at(long offset, unsigned stride) {
  Accumulator c;
  wmma::fill_fragment(c, 1.0f);
  wmma::store_matrix_sync(reinterpret_cast<float*>(smem + offset), c, stride, wmma::mem_row_major);
}

LINES_OF(wmma_store_to);
__global__ void wmma_store_to(float* out) {
  Accumulator c;
  wmma::fill_fragment(c, 1.0f);
  wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
}

// ---- Lanes that do not come, or not to the same instruction

LINES_OF(lane_goes_elsewhere);
__global__ void lane_goes_elsewhere(int lane) {
  uint32_t registers[4];
  if (int(threadIdx.x) == lane) {
    __syncwarp();
  } else {
    ldmatrix_x4(registers, smem + 16 * threadIdx.x);
  }
}

LINES_OF(lane_waits_at_a_barrier);
__global__ void lane_waits_at_a_barrier(int lane) {
  float acc[4] = {};
  if (int(threadIdx.x) != lane) mma_m16n8k16<__half>(acc, {1, 2, 3, 4}, {5, 6});
  __syncthreads();
}

LINES_OF(lane_exits);
__global__ void lane_exits(int lane) {
  uint32_t registers[4];
  if (int(threadIdx.x) == lane) return;
  ldmatrix_x4(registers, smem + 16 * threadIdx.x);
}

LINES_OF(lane_exits_before_mma);
__global__ void lane_exits_before_mma(int lane) {
  float acc[4] = {};
  if (int(threadIdx.x) == lane) return;
  mma_m16n8k16<__nv_bfloat16>(acc, {1, 2, 3, 4}, {5, 6});
}

LINES_OF(lane_exits_before_mma_e4m3);
__global__ void lane_exits_before_mma_e4m3(int lane) {
  float acc[4] = {};
  if (int(threadIdx.x) == lane) return;
  mma_m16n8k32_e4m3(acc, {1, 2, 3, 4}, {5, 6});
}

LINES_OF(lane_exits_before_wmma);
__global__ void lane_exits_before_wmma(int lane) {
  FragA a;
  if (int(threadIdx.x) == lane) return;
  wmma::load_matrix_sync(a, shared_array<__half>(), 16);
}

LINES_OF(both_branches);
__global__ void both_branches(int lane) {
  uint32_t registers[4];
  if (int(threadIdx.x) < lane) {
    ldmatrix_x4(registers, smem);
  } else {
    ldmatrix_x4(registers, smem + 16);
  }
}

LINES_OF(some_lanes_transpose);
__global__ void some_lanes_transpose(int lane) {
  uint32_t registers[4];
  if (int(threadIdx.x) < lane) ldmatrix_x4(registers, smem); else ldmatrix_x4_trans(registers, smem);
}

LINES_OF(two_pointers);
__global__ void two_pointers(int lane) {
  Accumulator c;
  const float* tile = shared_array<float>() + (int(threadIdx.x) < lane ? 0 : 256);
  wmma::load_matrix_sync(c, tile, 16, wmma::mem_row_major);
}

LINES_OF(two_strides);
__global__ void two_strides(int lane) {
  FragA a;
  wmma::load_matrix_sync(a, shared_array<__half>(), int(threadIdx.x) < lane ? 16 : 24);
}

// ---- Races. `sync` says whether what is missing is there.

__device__ void maybe_syncwarp(bool sync) { if (sync) __syncwarp(); }
__device__ void maybe_syncthreads(bool sync) { if (sync) __syncthreads(); }

LINES_OF(write_by_another_warp);
__global__ void write_by_another_warp(bool sync) {
  uint32_t registers[4];
  shared_array<float4>()[threadIdx.x] = make_float4(1, 2, 3, 4);
  maybe_syncthreads(sync);
  ldmatrix_x4(registers, shared_array<float4>() + (threadIdx.x ^ 32));
}

LINES_OF(write_by_another_lane);
__global__ void write_by_another_lane(bool sync) {
  uint32_t registers[4];
  shared_array<float4>()[threadIdx.x] = make_float4(1, 2, 3, 4);
  maybe_syncwarp(sync);
  ldmatrix_x4_trans(registers, shared_array<float4>() + (threadIdx.x ^ 1));
}

// Every lane writes the row that it hands in. Other lanes receive it.
LINES_OF(write_of_the_own_row);
__global__ void write_of_the_own_row(bool sync) {
  uint32_t registers[4];
  shared_array<float4>()[threadIdx.x] = make_float4(1, 2, 3, 4);
  maybe_syncwarp(sync);
  ldmatrix_x4(registers, shared_array<float4>() + threadIdx.x);
}

LINES_OF(overwritten_after_ldmatrix);
__global__ void overwritten_after_ldmatrix(bool sync) {
  uint32_t registers[4];
  ldmatrix_x4(registers, shared_array<float4>() + threadIdx.x);
  maybe_syncwarp(sync);
  shared_array<float4>()[threadIdx.x] = make_float4(1, 2, 3, 4);
}

LINES_OF(overwritten_by_another_warp);
__global__ void overwritten_by_another_warp(bool sync) {
  uint32_t registers[4];
  ldmatrix_x4(registers, shared_array<float4>() + threadIdx.x);
  maybe_syncthreads(sync);
  shared_array<float4>()[threadIdx.x ^ 32] = make_float4(1, 2, 3, 4);
}

LINES_OF(wmma_after_write);
__global__ void wmma_after_write(bool sync) {
  FragA a;
  for (int i = 0; i < 8; ++i) shared_array<__half>()[32 * i + threadIdx.x % 32] = __half(1.0f);
  maybe_syncwarp(sync);
  wmma::load_matrix_sync(a, shared_array<__half>(), 16);
}

// The lanes write what they would hold of mma.sync's accumulators. WMMA's layout is not that, nor any other.
LINES_OF(wmma_after_write_in_mma_layout);
__global__ void wmma_after_write_in_mma_layout(bool sync) {
  Accumulator c;
  for (int i = 0; i < 4; ++i) {
    const int row = threadIdx.x / 4 + i % 2 * 8, col = threadIdx.x % 4 * 2 + i / 2 * 8;
    *reinterpret_cast<float2*>(shared_array<float>() + 16 * row + col) = make_float2(1, 2);
  }
  maybe_syncwarp(sync);
  wmma::load_matrix_sync(c, shared_array<float>(), 16, wmma::mem_row_major);
}

LINES_OF(read_after_wmma_store);
__global__ void read_after_wmma_store(bool sync) {
  Accumulator c;
  wmma::fill_fragment(c, 1.0f);
  wmma::store_matrix_sync(shared_array<float>(), c, 16, wmma::mem_col_major);
  maybe_syncwarp(sync);
  c.x[0] = shared_array<float>()[threadIdx.x];
  shared_array<float>()[256 + threadIdx.x] = c.x[0];
}

LINES_OF(wmma_store_over_a_read);
__global__ void wmma_store_over_a_read(bool sync) {
  Accumulator c;
  wmma::fill_fragment(c, shared_array<float>()[threadIdx.x]);
  maybe_syncwarp(sync);
  wmma::store_matrix_sync(shared_array<float>(), c, 16, wmma::mem_row_major);
}

LINES_OF(wmma_reload_by_another_warp);
__global__ void wmma_reload_by_another_warp(bool sync) {
  Accumulator c;
  wmma::fill_fragment(c, 1.0f);
  wmma::store_matrix_sync(shared_array<float>() + threadIdx.x / 32 * 256, c, 16, wmma::mem_row_major);
  maybe_syncthreads(sync);
  wmma::load_matrix_sync(c, shared_array<float>() + (1 - threadIdx.x / 32) * 256, 16, wmma::mem_row_major);
}

LINES_OF(wmma_of_what_another_warp_writes);
__global__ void wmma_of_what_another_warp_writes(bool sync) {
  FragA a;
  if (threadIdx.x == 40) shared_array<__half>()[15 * 16 + 12] = __half(1.0f);
  maybe_syncthreads(sync);
  wmma::load_matrix_sync(a, shared_array<__half>(), 16);
}

// The rows overlap: an element is written two times by the same instruction.
LINES_OF(overlapping_rows);
__global__ void overlapping_rows(bool sync) {
  Accumulator c;
  wmma::fill_fragment(c, 1.0f);
  wmma::store_matrix_sync(shared_array<float>(), c, sync ? 16 : 8, wmma::mem_row_major);
}

// clang-format on

// Reads do not race with each other, whoever reads.
__global__ void all_warps_read_the_same() {
  uint32_t registers[4];
  FragA a;
  Accumulator c;
  ldmatrix_x4(registers, smem + 16 * (threadIdx.x % 32));
  ldmatrix_x4_trans(registers, smem + 16 * (threadIdx.x % 32));
  wmma::load_matrix_sync(a, shared_array<__half>(), 16);
  wmma::load_matrix_sync(c, shared_array<float>(), 16, wmma::mem_row_major);
  wmma::load_matrix_sync(c, shared_array<float>(), 16, wmma::mem_col_major);
}

Report report_at(void (*kernel)(long), long offset) {
  return report_of([&] { launch(kernel, 1, 32, 1024, nullptr, offset); });
}

Report report_at(void (*kernel)(long, unsigned), long offset, unsigned stride) {
  return report_of([&] { launch(kernel, 1, 32, 2048, nullptr, offset, stride); });
}

}  // namespace

TEST_CASE("ldmatrix rows are 16 bytes on 16 bytes, in the launch's shared memory", "[matrix][bugs]") {
  for (const bool race_detector : {false, true}) {
    fresh_options().race_detector = race_detector;
    check_report(report_at(ldmatrix_at, 24), Bug::kMisaligned, ldmatrix_at_line, {3},
                 {"warp 0 lane 9: ldmatrix.x4 at", "smem + 24"});
    check_report(report_at(ldmatrix_trans_at, 1002), Bug::kMisaligned, ldmatrix_trans_at_line, {3},
                 {"ldmatrix.x4.trans"});

    for (const long offset : {1024l, 1016l, -16l, 300000l}) {
      CAPTURE(offset);
      check_report(report_at(ldmatrix_at, offset), Bug::kSharedOutOfBounds, ldmatrix_at_line, {3},
                   {"lane 9:", "the launch asked for 1024 bytes"});
    }
    CHECK_NOTHROW(launch(ldmatrix_at, 1, 32, 1024, nullptr, 1008));
  }
}

TEST_CASE("ldmatrix reads shared memory only", "[matrix][bugs]") {
  fresh_options();
  Buffer<uint4> global(8);
  const auto report_row = [](void (*kernel)(const void*), const void* row) {
    return report_of([&] { launch(kernel, 1, 32, 1024, nullptr, row); });
  };
  check_report(report_row(ldmatrix_of, global.get()), Bug::kSharedOutOfBounds, ldmatrix_of_line, {3},
               {"not in shared memory"});
  check_report(report_row(ldmatrix_of_a_local_array, nullptr), Bug::kSharedOutOfBounds,
               ldmatrix_of_a_local_array_line, {4}, {"not in shared memory"});
  check_report(report_row(ldmatrix_of, nullptr), Bug::kGlobalOutOfBounds, ldmatrix_of_line, {3},
               {"null pointer"});
}

TEST_CASE("WMMA pointers lie on 32 bytes, strides on 16", "[matrix][bugs]") {
  fresh_options();
  check_report(report_at(wmma_load_at, 16, 16), Bug::kMisaligned, wmma_load_at_line, {3},
               {"wmma::load_matrix_sync at", "smem + 16 is not a multiple of 32 bytes"});
  check_report(report_at(wmma_load_at, 32, 20), Bug::kMisaligned, wmma_load_at_line, {3},
               {"a stride of 20 elements is not a multiple of 16 bytes"});
  check_report(report_at(wmma_load_accumulator_at, 4, 16), Bug::kMisaligned, wmma_load_accumulator_at_line,
               {3});
  check_report(report_at(wmma_load_accumulator_at, 0, 18), Bug::kMisaligned, 0, {},
               {"a stride of 18 elements"});
  check_report(report_at(wmma_store_at, 48, 16), Bug::kMisaligned, wmma_store_at_line, {4},
               {"wmma::store_matrix_sync at", "smem + 48"});
  check_report(report_at(wmma_store_at, 0, 17), Bug::kMisaligned, 0, {});

  CHECK_NOTHROW(launch(wmma_load_at, 1, 32, 2048, nullptr, 32, 24));
  CHECK_NOTHROW(launch(wmma_load_accumulator_at, 1, 32, 2048, nullptr, 32, 20));
  CHECK_NOTHROW(launch(wmma_store_at, 1, 32, 2048, nullptr, 96, 28));
}

TEST_CASE("WMMA stays within the launch's shared memory", "[matrix][bugs]") {
  fresh_options();
  // 16 rows of 64 halves end at 2048 - 96; from 128 bytes on, the last row does not fit.
  CHECK_NOTHROW(launch(wmma_load_at, 1, 32, 2048, nullptr, 96, 64));
  check_report(report_at(wmma_load_at, 128, 64), Bug::kSharedOutOfBounds, wmma_load_at_line, {3},
               {"the launch asked for 2048 bytes"});
  // 16 rows, 48 bytes apart: only the right half of the last row is outside.
  check_report(report_at(wmma_load_at, 2048 + 16 - (15 * 48 + 32), 24), Bug::kSharedOutOfBounds, 0, {},
               {"read of 16 bytes at smem + 2048"});
  check_report(report_at(wmma_load_at, 2048, 16), Bug::kSharedOutOfBounds, 0, {});
  check_report(report_at(wmma_load_at, -32, 16), Bug::kSharedOutOfBounds, 0, {});
  check_report(report_at(wmma_store_at, 0, 36), Bug::kSharedOutOfBounds, wmma_store_at_line, {4},
               {"write of 8 bytes"});

  // Further on, another allocation may lie.
  Buffer<float> global(256);
  check_report(report_of([&] { launch(wmma_store_to, 1, 32, 1024, nullptr, global.get() + 8); }),
               Bug::kGlobalOutOfBounds, wmma_store_to_line, {4});
  emulator::options().race_detector = true;
  check_report(report_of([&] { launch(wmma_store_to, 2, 32, 1024, nullptr, global.get()); }),
               Bug::kRace, wmma_store_to_line, {4});
}

TEST_CASE("a lane that does not come to a matrix instruction", "[matrix][bugs]") {
  // In order of lanes and in others: the one that is missing may be the last to be asked.
  in_all_orders(10, [&] {
    for (const int lane : {0, 5, 31}) {
      CAPTURE(lane);
      const auto report_lane = [&](void (*kernel)(int)) {
        return report_of([&] { launch(kernel, 1, 32, 2048, nullptr, lane); });
      };
      check_report(report_lane(lane_goes_elsewhere), Bug::kDivergence, lane_goes_elsewhere_line, {4, 6});
      check_report(report_lane(lane_waits_at_a_barrier), Bug::kDeadlock, lane_waits_at_a_barrier_line, {3, 4},
                   {"mma.m16n8k16 (fp16) at", "for lane " + std::to_string(lane)});

      const std::string will_not_come = "lane " + std::to_string(lane) + " will not come";
      const Report report = report_lane(lane_exits);
      check_report(report, Bug::kDivergence, lane_exits_line, {4}, {"ldmatrix.x4 at", will_not_come});
      CHECK_FALSE(contains(report.what(), "warp 0 lane " + std::to_string(lane) + ":"));

      check_report(report_lane(lane_exits_before_mma), Bug::kDivergence, lane_exits_before_mma_line, {4},
                   {"mma.m16n8k16 (bf16) at", will_not_come});
      check_report(report_lane(lane_exits_before_mma_e4m3), Bug::kDivergence, lane_exits_before_mma_e4m3_line,
                   {4}, {"mma.m16n8k32 (e4m3) at", will_not_come});
      check_report(report_lane(lane_exits_before_wmma), Bug::kDivergence, lane_exits_before_wmma_line, {4},
                   {will_not_come});
    }
  });
}

TEST_CASE("a matrix instruction needs a whole warp", "[matrix][bugs]") {
  fresh_options();
  check_report(report_of([&] { launch(lane_exits_before_mma, 1, 40, 0, nullptr, -1); }), Bug::kDivergence, 0,
               {}, {"warp 1 lane 0: ", "lanes 8-31 will not come: they have exited or do not exist"});
}

TEST_CASE("the lanes of a warp must be at the same instruction, with the same matrix", "[matrix][bugs]") {
  fresh_options();
  const auto report_lane = [&](void (*kernel)(int)) {
    return report_of([&] { launch(kernel, 1, 32, 2048, nullptr, 16); });
  };
  check_report(report_lane(both_branches), Bug::kDivergence, both_branches_line, {4, 6});
  CHECK_NOTHROW(launch(both_branches, 1, 32, 2048, nullptr, 0));
  CHECK_NOTHROW(launch(both_branches, 1, 32, 2048, nullptr, 32));

  check_report(report_lane(some_lanes_transpose), Bug::kDivergence, some_lanes_transpose_line, {3});
  check_report(report_lane(two_pointers), Bug::kDivergence, two_pointers_line, {4}, {"lane 16: "});
  check_report(report_lane(two_strides), Bug::kDivergence, two_strides_line, {3});
}

TEST_CASE("races with matrix instructions", "[matrix][bugs]") {
  struct Case {
    void (*kernel)(bool);
    int first_line;  // of LINES_OF
    int earlier, later;
    bool between_warps;
  };
#define RACE(kernel, earlier, later, between_warps) \
  Case { kernel, kernel##_line, earlier, later, between_warps }
  const Case cases[] = {
      RACE(write_by_another_warp, 3, 5, true),
      RACE(write_by_another_lane, 3, 5, false),
      RACE(write_of_the_own_row, 3, 5, false),
      RACE(overwritten_after_ldmatrix, 3, 5, false),
      RACE(overwritten_by_another_warp, 3, 5, true),
      RACE(wmma_after_write, 3, 5, false),
      RACE(wmma_after_write_in_mma_layout, 5, 8, false),
      RACE(read_after_wmma_store, 4, 6, false),
      RACE(wmma_store_over_a_read, 3, 5, false),
      RACE(wmma_reload_by_another_warp, 4, 6, true),
      RACE(wmma_of_what_another_warp_writes, 3, 5, true),
      RACE(overlapping_rows, 4, 4, false),
  };
#undef RACE
  in_all_orders(20, [&] {
    for (const Case& c : cases) {
      CAPTURE(c.first_line);
      const unsigned threads = c.between_warps ? 64 : 32;
      check_report(report_of([&] { launch(c.kernel, 1, threads, 4096, nullptr, false); }), Bug::kRace, 0,
                   {c.first_line + c.earlier, c.first_line + c.later});
      CHECK_NOTHROW(launch(c.kernel, 1, threads, 4096, nullptr, true));
    }
  });
}

TEST_CASE("matrix reads of several warps are no race", "[matrix][bugs]") {
  in_all_orders(5, [&] { CHECK_NOTHROW(launch(all_warps_read_the_same, 1, 128, 1024, nullptr)); });
}
