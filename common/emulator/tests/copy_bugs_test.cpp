// Mistakes around TMA and mbarriers: each must be reported, as what it is and with its line, in every async
// mode and every order. And no correct kernel may be.
#include <vector>

#include "common/elect.h"
#include "common/emulator/tests/support.h"
#include "common/ldmatrix.h"
#include "common/mbarrier.h"
#include "common/named_barrier.h"
#include "common/swizzle.h"
#include "common/tma.h"

using namespace flashsteps;
using emulator::AsyncMode;
using emulator::Bug;
using emulator::Report;

namespace {

// clang-format off
// ---- A pipeline: warp 0 loads tiles into two stages, warps 1 and 2 add them up and store the sum.

enum Mistake {
  kNone,
  kProducerWaitsForOther, kProducerNeverFlips, kConsumerWaitsForOther, kConsumerNeverFlips, kNobodyWaits,
  kOnlyOneLaneWaits, kReleasedEarly, kReleasedWithoutSyncwarp,
  kExpectTooLittle, kExpectTooMuch, kExpectNothing,
  kOtherSwizzle, kNoSwizzle,
  kNoFence, kFenceByOneThread, kFenceAfterBarrier,  // the last one is none
  kNoRefillFence, kRefillFencedByReaders,  // the second one is none
  kNoInitFence, kInitFencedForBoth, kNoBarrierAfterInit,  // the second one is none
  kNoCommit, kNoWaitBeforeExit,
};

using Tile = SwizzledTile<__half, 16, 64, 128>;
constexpr int TILE_BYTES = sizeof(Tile);

struct Shared {
  Tile stages[2];
  Tile sum;
  uint64_t full[2];
  uint64_t empty[2];
};

LINES_OF(pipeline);
template <Mistake MISTAKE>
__global__ void pipeline(const TensorMap in, const TensorMap out, int num_tiles) {
  auto& shared = *reinterpret_cast<Shared*>(smem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 64) {  // not the producer, whose fence before a refill would do
    for (uint64_t& barrier : shared.full) mbarrier_init(&barrier, 1);  // line 6
    for (uint64_t& barrier : shared.empty) mbarrier_init(&barrier, 2);  // line 7
    if (MISTAKE != kNoInitFence) MISTAKE == kInitFencedForBoth ? fence_proxy_async() : fence_mbarrier_init();
  }
  if (MISTAKE != kNoBarrierAfterInit) __syncthreads();
  if (warp == 0) {
    if (!elect_one()) return;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % 2;
      int parity = tile / 2 % 2 ^ 1;
      if (MISTAKE == kProducerWaitsForOther) parity ^= 1;
      if (MISTAKE == kProducerNeverFlips) parity = 1;
      mbarrier_wait(&shared.empty[stage], parity);  // line 18
      if (MISTAKE != kNoRefillFence && MISTAKE != kRefillFencedByReaders) fence_proxy_async();
      int bytes = TILE_BYTES;
      if (MISTAKE == kExpectTooLittle) bytes /= 2;
      if (MISTAKE == kExpectTooMuch) bytes *= 2;
      if (MISTAKE == kExpectNothing) mbarrier_arrive(&shared.full[stage]);  // line 23
      else mbarrier_arrive_expect_tx(&shared.full[stage], bytes);  // line 24
      tma_load_5d(&shared.stages[stage], in, &shared.full[stage], 0, 16 * tile, 0, 0, 0);  // line 25
    }
    return;
  }
  float sums[2][8] = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int stage = tile % 2;
    int parity = tile / 2 % 2;
    if (MISTAKE == kConsumerWaitsForOther) parity ^= 1;
    if (MISTAKE == kConsumerNeverFlips) parity = 0;
    const bool waits = MISTAKE == kOnlyOneLaneWaits ? lane == 0 : MISTAKE != kNobodyWaits;
    if (waits) mbarrier_wait(&shared.full[stage], parity);  // line 36
    if (MISTAKE == kReleasedEarly && lane == 0) mbarrier_arrive(&shared.empty[stage]);
    for (int block = 0; block < 2; ++block) {
      const int row = lane % 16, col = (warp - 1) * 32 + block * 16 + lane / 16 * 8;
      int offset = Tile::offset_of(row, col);
      if (MISTAKE == kOtherSwizzle) offset = (row * 128 + col * 2) ^ (row / 2 % 4 * 16);
      if (MISTAKE == kNoSwizzle) offset = row * 128 + col * 2;
      uint32_t registers[4];
      ldmatrix_x4(registers, shared.stages[stage].at(offset, 0, 0));  // line 44
      const auto* elements = reinterpret_cast<const __half*>(registers);
      for (int i = 0; i < 8; ++i) sums[block][i] += float(elements[i]);
    }
    if (MISTAKE == kRefillFencedByReaders) fence_proxy_async();
    if (MISTAKE != kReleasedWithoutSyncwarp) __syncwarp();
    if (MISTAKE != kReleasedEarly && lane == 0) mbarrier_arrive(&shared.empty[stage]);
  }
  for (int i = 0; i < 16; ++i) {
    const int row = lane / 4 + i / 2 % 2 * 8;
    const int col = (warp - 1) * 32 + i / 8 * 16 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
    *shared.sum.at(Tile::offset_of(row, col), 0, 0) = __half(sums[i / 8][i % 8]);  // line 55
  }
  const bool no_fence = MISTAKE == kNoFence || MISTAKE == kFenceAfterBarrier;
  if (MISTAKE == kFenceByOneThread ? threadIdx.x == 32 : !no_fence) fence_proxy_async();
  bar_sync(1, 64);
  if (MISTAKE == kFenceAfterBarrier) fence_proxy_async();
  if (threadIdx.x == 32) {
    tma_store_5d(out, &shared.sum, 0, 0, 0, 0, 0);  // line 62
    if (MISTAKE != kNoCommit) tma_store_commit();
    if (MISTAKE != kNoWaitBeforeExit) tma_store_wait_read<0>();
  }
}

// ---- Small ones

struct Small {
  Tile tile;
  uint64_t barrier;
  uint64_t other;
};

LINES_OF(overwritten_source);
__global__ void overwritten_source(const TensorMap map, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  auto* values = reinterpret_cast<float*>(&shared.tile);
  for (int i = threadIdx.x; i < TILE_BYTES / 4; i += 32) values[i] = 1.0f;
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 3) tma_store_5d(map, &shared.tile, 0, 0, 0, 0, 0);  // line 7
  if (threadIdx.x == 3) tma_store_commit();
  __syncwarp();
  if (threadIdx.x == 3 && variant != 0) tma_store_wait_read<0>();
  __shfl_sync(0xffffffff, 1, 3);  // does not order memory
  if (variant != 1) __syncwarp();
  values[threadIdx.x] = 2.0f;  // line 13
  tma_store_wait_read<0>();
}

LINES_OF(overwritten_by_its_thread);
__global__ void overwritten_by_its_thread(const TensorMap map, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  tma_store_5d(map, &shared.tile, 0, 0, 0, 0, 0);  // line 3
  tma_store_commit();
  if (variant == 1) tma_store_wait_read<0>();
  shared.tile.data[0][1][2] = __half(2.0f);  // line 6
  tma_store_wait_read<0>();
}

LINES_OF(loaded_over_source);
__global__ void loaded_over_source(const TensorMap map, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  mbarrier_init(&shared.barrier, 1);
  fence_mbarrier_init();
  tma_store_5d(map, &shared.tile, 0, 0, 0, 0, 0);  // line 5
  tma_store_commit();
  if (variant == 1) tma_store_wait_read<0>();
  mbarrier_arrive_expect_tx(&shared.barrier, TILE_BYTES);
  tma_load_5d(&shared.tile, map, &shared.barrier, 0, 0, 0, 0, 0);  // line 9
  mbarrier_wait(&shared.barrier, 0);
  tma_store_wait_read<0>();
}

// A group that is left pending when the thread exits.
LINES_OF(group_left_pending);
__global__ void group_left_pending(const TensorMap map, int variant) {
  for (int store = 0; store < 2; ++store) {
    tma_store_5d(map, smem, 0, 0, 0, 0, 0);  // line 3
    tma_store_commit();
  }
  tma_store_wait_read<1>();
  if (variant == 1) tma_store_wait_read<0>();
}

LINES_OF(nobody_waits_for_load);
__global__ void nobody_waits_for_load(const TensorMap map, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  mbarrier_init(&shared.barrier, 1);  // line 3
  fence_mbarrier_init();
  mbarrier_wait(&shared.barrier, 1);
  mbarrier_arrive_expect_tx(&shared.barrier, TILE_BYTES);
  tma_load_5d(&shared.tile, map, &shared.barrier, 0, 0, 0, 0, 0);  // line 7
  if (variant == 1) mbarrier_wait(&shared.barrier, 0);
}

// Two copies, one announced: the phase completes when the first one is done.
LINES_OF(one_copy_announced);
__global__ void one_copy_announced(const TensorMap map, int variant) {
  auto* tiles = reinterpret_cast<Tile*>(smem);
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 2 * TILE_BYTES);
  mbarrier_init(barrier, 1);  // line 4
  fence_mbarrier_init();
  mbarrier_arrive_expect_tx(barrier, variant == 1 ? 2 * TILE_BYTES : TILE_BYTES);  // line 6
  tma_load_5d(&tiles[0], map, barrier, 0, 0, 0, 0, 0);
  tma_load_5d(&tiles[1], map, barrier, 0, 0, 0, 0, 0);  // line 8
  mbarrier_wait(barrier, 0);
  *reinterpret_cast<float*>(barrier + 1) = float(tiles[1].data[0][15][63]);  // line 10
}

LINES_OF(written_before_load);
__global__ void written_before_load(const TensorMap map, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  mbarrier_init(&shared.barrier, 1);
  fence_mbarrier_init();
  shared.tile.data[0][3][3] = __half(1.0f);  // line 5
  if (variant >= 1) fence_proxy_async();
  if (variant == 1) shared.tile.data[0][4][4] = __half(1.0f);
  mbarrier_arrive_expect_tx(&shared.barrier, TILE_BYTES);
  tma_load_5d(&shared.tile, map, &shared.barrier, 0, 0, 0, 0, 0);  // line 9
  mbarrier_wait(&shared.barrier, 0);
}

// Only what a swizzled copy was the last to write is swizzled.
__global__ void written_without_swizzle(const TensorMap map, int) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&shared.barrier, TILE_BYTES);
    tma_load_5d(&shared.tile, map, &shared.barrier, 0, 0, 0, 0, 0);
  }
  __syncwarp();
  mbarrier_wait(&shared.barrier, 0);
  auto* chunks = reinterpret_cast<uint4*>(&shared.tile);
  for (int i = threadIdx.x; i < TILE_BYTES / 16; i += 32) chunks[i] = make_uint4(1, 2, 3, 4);
  __syncwarp();
  uint32_t registers[4];
  ldmatrix_x4(registers, &chunks[threadIdx.x * 2]);
}

// A matrix whose upper rows are those of one copy, and its lower ones those of another.
LINES_OF(rows_of_two_copies);
__global__ void rows_of_two_copies(const TensorMap map, int variant) {
  auto* tiles = reinterpret_cast<Tile*>(smem);
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 2 * TILE_BYTES);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 2 * TILE_BYTES);
    tma_load_5d(&tiles[0], map, barrier, 0, 0, 0, 0, 0);  // line 8
    tma_load_5d(&tiles[1], map, barrier, 0, 0, 0, 0, 0);  // line 9
  }
  __syncwarp();
  mbarrier_wait(barrier, 0);
  const int row = threadIdx.x % 16;
  const int tile = row / (variant == 0 ? 4 : 8) % 2;
  uint32_t registers[4];
  ldmatrix_x4(registers, tiles[tile].at(Tile::offset_of(row, 8), 0, 0));  // line 16
}

constexpr int RING_STAGES = 1100;
struct Ring {
  float slots[RING_STAGES][32];  // 8 rows of 4
  uint64_t full[RING_STAGES];
};

LINES_OF(ring_of_mbarriers);
__global__ void ring_of_mbarriers(const TensorMap map, float* out, int not_waited_for) {
  auto& ring = *reinterpret_cast<Ring*>(smem);
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : ring.full) mbarrier_init(&barrier, 1);
    fence_mbarrier_init();
    for (int stage = 0; stage < RING_STAGES; ++stage) {
      mbarrier_arrive_expect_tx(&ring.full[stage], 128);
      tma_load_5d(ring.slots[stage], map, &ring.full[stage], 0, stage % 8 * 8, 0, 0, 0);  // line 8
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) return;
  float sum = 0;
  for (int stage = 0; stage < RING_STAGES; ++stage) {
    if (stage != not_waited_for) mbarrier_wait(&ring.full[stage], 0);
    sum += ring.slots[stage][threadIdx.x % 32];  // line 16
  }
  out[threadIdx.x - 32] = sum;
}

__global__ void many_mbarriers(const TensorMap, int count) {
  for (int i = 0; i < count; ++i) mbarrier_init(reinterpret_cast<uint64_t*>(smem) + i, 1);
}

LINES_OF(overwritten_mbarrier);
__global__ void overwritten_mbarrier(const TensorMap, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  mbarrier_init(&shared.barrier, 1);  // line 3
  if (variant == 0) reinterpret_cast<float*>(&shared)[TILE_BYTES / 4 + 1] = 0;
  mbarrier_arrive(&shared.barrier);  // line 5
}

LINES_OF(mbarrier_misuse);
__global__ void mbarrier_misuse(const TensorMap map, int variant) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (variant == 0) mbarrier_arrive(&shared.barrier);  // line 3
  if (variant == 1) mbarrier_init(&shared.barrier, 0);  // line 4
  if (variant == 2) mbarrier_init(&shared.barrier, 1 << 20);  // line 5
  mbarrier_init(&shared.barrier, 2);  // line 6
  if (variant == 3) mbarrier_init(&shared.barrier, 2);  // line 7
  if (variant == 4) mbarrier_try_wait(&shared.barrier, 2);  // line 8
  if (variant == 5) mbarrier_try_wait(&shared.barrier, -1);  // line 9
  if (variant == 6) mbarrier_arrive_expect_tx(&shared.barrier, -1);  // line 10
  if (variant == 7) mbarrier_arrive_expect_tx(&shared.barrier, 1 << 20);  // line 11
  if (variant == 8) mbarrier_wait(&shared.other, 0);  // line 12
  if (variant == 9) tma_load_5d(&shared.tile, map, &shared.other, 0, 0, 0, 0, 0);  // line 13
  mbarrier_arrive_expect_tx(&shared.barrier, 16);
  mbarrier_arrive(&shared.barrier);
  if (variant == 10) mbarrier_arrive(&shared.barrier);  // line 16
  if (variant == 11) mbarrier_init(reinterpret_cast<uint64_t*>(smem + 4), 1);  // line 17
  uint64_t local = 0;
  if (variant == 12) mbarrier_init(&local, 1);  // line 19
  if (variant == 13) mbarrier_arrive(reinterpret_cast<uint64_t*>(smem + sizeof(Small)));  // line 20
}

LINES_OF(bad_box);
__global__ void bad_box(const TensorMap map, int offset) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem);
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  mbarrier_arrive_expect_tx(barrier, TILE_BYTES);
  tma_load_5d(smem + offset, map, barrier, 0, 0, 0, 0, 0);  // line 6
  mbarrier_wait(barrier, 0);
}

LINES_OF(bad_store);
__global__ void bad_store(const TensorMap map, int offset) {
  tma_store_5d(map, smem + offset, 0, 0, 0, 0, 0);  // line 2
  tma_store_commit();
  tma_store_wait_read<0>();
}

LINES_OF(load_to_global);
__global__ void load_to_global(const TensorMap map, float* target) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem);
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  tma_load_5d(target, map, barrier, 0, 0, 0, 0, 0);  // line 5
}

LINES_OF(ctas_store_the_same);
__global__ void ctas_store_the_same(const TensorMap map, int variant) {
  tma_store_5d(map, smem, 0, variant == 1 ? 16 * int(blockIdx.x) : 0, 0, 0, 0);  // line 2
  tma_store_commit();
  tma_store_wait_read<0>();
}

LINES_OF(lane_skips_elect);
__global__ void lane_skips_elect(int lane) {
  if (int(threadIdx.x) != lane) elect_one();  // line 2
}

// A mbarrier orders one lane of a warp with another one of it.
__global__ void lanes_of_one_warp(bool) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (threadIdx.x == 0) mbarrier_init(&shared.barrier, 1);
  __syncwarp();
  if (threadIdx.x == 5) {
    shared.other = 1;
    mbarrier_arrive(&shared.barrier);
  }
  if (threadIdx.x == 7) {
    mbarrier_wait(&shared.barrier, 0);
    shared.other += 1;
  }
}

// An arrival tells of the lane that arrives, and of what its warp did before it last met.
LINES_OF(arrival_of_another_lane);
__global__ void arrival_of_another_lane(bool sync) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (threadIdx.x == 0) mbarrier_init(&shared.barrier, 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    if (threadIdx.x == 9) shared.other = 1;  // line 6
    if (sync) __syncwarp();
    if (threadIdx.x == 4) mbarrier_arrive(&shared.barrier);
  } else if (threadIdx.x == 40) {
    mbarrier_wait(&shared.barrier, 0);
    shared.other += 1;  // line 11
  }
}

// What is done after an arrival is not part of it.
LINES_OF(write_after_arrival);
__global__ void write_after_arrival(bool sync) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (threadIdx.x == 0) mbarrier_init(&shared.barrier, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    if (sync) shared.other = 1;
    mbarrier_arrive(&shared.barrier);
    if (!sync) shared.other = 1;  // line 8
  } else if (threadIdx.x == 40) {
    mbarrier_wait(&shared.barrier, 0);
    shared.other += 1;  // line 11
  }
}

// Who waits learns for itself. A shuffle does not order memory.
LINES_OF(one_lane_waits);
__global__ void one_lane_waits(bool sync) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (threadIdx.x == 0) mbarrier_init(&shared.barrier, 1);
  __syncthreads();
  if (threadIdx.x == 64) {
    shared.other = 1;  // line 6
    mbarrier_arrive(&shared.barrier);
  } else if (threadIdx.x < 32) {
    if (threadIdx.x == 9) mbarrier_wait(&shared.barrier, 0);
    __shfl_sync(0xffffffff, 1, 0);
    if (sync) __syncwarp();
    if (threadIdx.x == 5) shared.other += 1;  // line 12
  }
}

// The next phase's arrivals are not learned from this one.
LINES_OF(learned_too_early);
__global__ void learned_too_early(bool sync) {
  auto& shared = *reinterpret_cast<Small*>(smem);
  if (threadIdx.x == 0) mbarrier_init(&shared.barrier, 2);
  __syncthreads();
  if (threadIdx.x == 0) mbarrier_arrive(&shared.barrier);
  if (threadIdx.x == 64) mbarrier_arrive(&shared.barrier);
  if (threadIdx.x == 0) {
    mbarrier_wait(&shared.barrier, 0);
    shared.other = 1;  // line 9
    mbarrier_arrive(&shared.barrier);
  } else if (threadIdx.x == 32) {
    mbarrier_wait(&shared.barrier, 0);
    if (sync) mbarrier_arrive(&shared.barrier);
    if (sync) mbarrier_wait(&shared.barrier, 1);
    shared.other += 1;  // line 15
  }
}

// clang-format on

// ---- How they are run

constexpr int NUM_TILES = 5;
constexpr int LAST_ROWS = 9;  // of the last tile: it is ragged

struct Problem {
  Buffer<__half> in{size_t(16 * NUM_TILES * 64)}, out{16 * 64};
  TensorMap in_map = make_tensor_map<Tile>(View{in.get(), 1, 1, 16 * (NUM_TILES - 1) + LAST_ROWS, 0, 0, 64});
  TensorMap out_map = make_tensor_map<Tile>(View{out.get(), 1, 1, 16, 0, 0, 64});

  Problem() {
    for (int i = 0; i < 16 * NUM_TILES * 64; ++i) in[size_t(i)] = __half(float(i % 61));
  }
  bool is_solved() {
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 64; ++col) {
        float sum = 0;
        for (int tile = 0; tile < NUM_TILES; ++tile) {
          const bool inside = tile < NUM_TILES - 1 || row < LAST_ROWS;
          if (inside) sum += float(in[size_t(((tile * 16) + row) * 64 + col)]);
        }
        if (float(out[size_t(row * 64 + col)]) != sum) return false;
      }
    }
    return true;
  }
};

template <Mistake MISTAKE>
void run_pipeline(Problem& problem) {
  launch(pipeline<MISTAKE>, 1, 96, sizeof(Shared), nullptr, problem.in_map, problem.out_map, NUM_TILES);
}

// In each mode one of these kinds, with one of these pairs of lines. A line of 0 stands for any.
struct Finding {
  Bug bug;
  int line;
  int other_line = 0;
};

void check_finding(const Report& report, int first_line, const std::vector<Finding>& allowed) {
  INFO(report.what());
  const auto names = [&](int line) { return line == 0 || names_line(report, __FILE__, first_line + line); };
  bool found = false;
  for (const Finding& finding : allowed) {
    found = found || (report.bug == finding.bug && names(finding.line) && names(finding.other_line));
  }
  CHECK(found);
}

template <Mistake MISTAKE>
void check_pipeline(const std::vector<Finding>& allowed) {
  Problem problem;
  in_all_modes(8, [&] {
    CAPTURE(int(MISTAKE));
    check_finding(report_of([&] { run_pipeline<MISTAKE>(problem); }), pipeline_line, allowed);
    CHECK_NOTHROW(run_pipeline<kNone>(problem));  // nothing is left of the mistake
  });
}

using Kernel = void (*)(TensorMap, int);

// What a small kernel reports in each mode with variant 0, and nothing with those from 1 on that are correct.
void check_small(Kernel kernel, int first_line, int threads, int wrong_variants,
                 const std::vector<Finding>& allowed) {
  Problem problem;
  in_all_modes(6, [&] {
    CAPTURE(first_line);
    const auto run = [&](int variant) {
      launch(kernel, 1, unsigned(threads), 2 * sizeof(Small), nullptr, problem.out_map, variant);
    };
    for (int variant = 0; variant < wrong_variants; ++variant) {
      check_finding(report_of([&] { run(variant); }), first_line, allowed);
    }
    CHECK_NOTHROW(run(wrong_variants));
  });
}

void check_order(void (*kernel)(bool), int first_line, const Finding& finding) {
  in_all_modes(6, [&] {
    CAPTURE(first_line);
    check_finding(report_of([&] { launch(kernel, 1, 96, sizeof(Small), nullptr, false); }), first_line,
                  {finding});
    CHECK_NOTHROW(launch(kernel, 1, 96, sizeof(Small), nullptr, true));
  });
}

}  // namespace

TEST_CASE("a correct pipeline is right in every order", "[copy][bugs]") {
  Problem problem;
  in_all_modes(60, [&] {
    std::memset(problem.out.get(), 0xff, 16 * 64 * sizeof(__half));
    CHECK_NOTHROW(run_pipeline<kNone>(problem));
    CHECK(problem.is_solved());
    CHECK_NOTHROW(run_pipeline<kFenceAfterBarrier>(problem));
    CHECK_NOTHROW(run_pipeline<kInitFencedForBoth>(problem));
    CHECK_NOTHROW(run_pipeline<kRefillFencedByReaders>(problem));
  });
}

TEST_CASE("waits for the wrong phase, or none, are found", "[copy][bugs]") {
  check_pipeline<kProducerWaitsForOther>({{Bug::kDeadlock, 18}});
  check_pipeline<kProducerNeverFlips>({{Bug::kRace, 25}, {Bug::kBadMbarrier, 24, 6}});
  check_pipeline<kConsumerWaitsForOther>({{Bug::kRace, 25, 44}});
  check_pipeline<kConsumerNeverFlips>({{Bug::kRace, 25, 44}, {Bug::kDeadlock, 36}});
  // Or the consumers are through, and have read nothing, before the producer begins.
  check_pipeline<kNobodyWaits>({{Bug::kRace, 25, 44}, {Bug::kDeadlock, 18}});
  check_pipeline<kOnlyOneLaneWaits>({{Bug::kRace, 25, 44}});
}

TEST_CASE("a stage that is released too early is found", "[copy][bugs]") {
  check_pipeline<kReleasedEarly>({{Bug::kRace, 25, 44}});
  check_pipeline<kReleasedWithoutSyncwarp>({{Bug::kRace, 25, 44}});
}

TEST_CASE("announcements of the wrong size are found", "[copy][bugs]") {
  check_pipeline<kExpectTooLittle>({{Bug::kBadExpectTx, 24, 25}});
  check_pipeline<kExpectTooMuch>({{Bug::kDeadlock, 36, 24}});
  check_pipeline<kExpectNothing>({{Bug::kRace, 25, 44}});
}

TEST_CASE("a swizzled tile that is read in another way is found", "[copy][bugs]") {
  check_pipeline<kOtherSwizzle>({{Bug::kSwizzle, 44, 25}});
  check_pipeline<kNoSwizzle>({{Bug::kSwizzle, 44, 25}});
  Problem problem;
  fresh_options().race_detector = true;
  check_report(report_of([&] { run_pipeline<kNoSwizzle>(problem); }), Bug::kSwizzle, 0, {},
               {"with a swizzle of 128 bytes: row 0 of the matrix is in column 0",
                "of the tile's 16-byte chunks, but row 1 is in column 1. "});
}

TEST_CASE("a matrix of two copies' rows is found", "[copy][bugs]") {
  check_small(rows_of_two_copies, rows_of_two_copies_line, 32, 1, {{Bug::kSwizzle, 16, 9}});
}

TEST_CASE("what threads have written is not swizzled", "[copy][bugs]") {
  Problem problem;
  in_all_modes(2, [&] {
    CHECK_NOTHROW(launch(written_without_swizzle, 1, 32, sizeof(Small), nullptr, problem.out_map, 0));
  });
}

TEST_CASE("missing fences are found", "[copy][bugs]") {
  check_pipeline<kNoFence>({{Bug::kProxyFence, 62, 55}});
  check_pipeline<kFenceByOneThread>({{Bug::kProxyFence, 62, 55}});
  check_pipeline<kNoRefillFence>({{Bug::kProxyFence, 25, 44}});
  check_pipeline<kNoInitFence>({{Bug::kProxyFence, 25, 6}});
  check_pipeline<kNoBarrierAfterInit>(
      {{Bug::kRace, 36, 6}, {Bug::kRace, 18, 7}, {Bug::kBadMbarrier, 36}, {Bug::kBadMbarrier, 18}});
}

TEST_CASE("a thread that exits before its store has read its memory is found", "[copy][bugs]") {
  check_pipeline<kNoCommit>({{Bug::kUnfinishedCopy, 62}});
  check_pipeline<kNoWaitBeforeExit>({{Bug::kUnfinishedCopy, 62}});
}

TEST_CASE("a fence for the mbarriers is demanded without the race detector too", "[copy][bugs]") {
  Problem problem;
  fresh_options();
  check_finding(report_of([&] { run_pipeline<kNoInitFence>(problem); }), pipeline_line,
                {{Bug::kProxyFence, 25, 6}});
  CHECK_NOTHROW(run_pipeline<kNone>(problem));
}

TEST_CASE("a deadlock report says what the mbarrier waits for", "[copy][bugs]") {
  Problem problem;
  fresh_options();
  Report report = report_of([&] { run_pipeline<kProducerWaitsForOther>(problem); });
  INFO(report.what());
  CHECK(contains(report.what(), "for parity 0 of the mbarrier at smem + 6160, initialised at"));
  CHECK(contains(report.what(), "with 2 arrivals; phase 0 is under way and lacks 2 of 2 arrivals"));
  CHECK(
      contains(report.what(), "nobody has ever arrived: on a new mbarrier only a wait for parity 1 passes"));
  report = report_of([&] { run_pipeline<kExpectTooMuch>(problem); });
  INFO(report.what());
  CHECK(contains(report.what(), "phase 0 is under way and lacks 0 of 1 arrivals and 2048 bytes"));
  CHECK(contains(report.what(),
                 "the last announcement was of 4096 bytes, at common/emulator/tests/copy_bugs_test.cpp:"));
}

TEST_CASE("a store's source stays as it is until somebody has waited", "[copy][bugs]") {
  check_small(overwritten_source, overwritten_source_line, 32, 2, {{Bug::kRace, 13, 7}});
  check_small(overwritten_by_its_thread, overwritten_by_its_thread_line, 1, 1, {{Bug::kRace, 6, 3}});
  check_small(loaded_over_source, loaded_over_source_line, 1, 1, {{Bug::kRace, 9, 5}});
}

TEST_CASE("copies that nobody has waited for at the end are found", "[copy][bugs]") {
  check_small(group_left_pending, group_left_pending_line, 1, 1, {{Bug::kUnfinishedCopy, 3}});
  check_small(nobody_waits_for_load, nobody_waits_for_load_line, 1, 1, {{Bug::kUnfinishedCopy, 7, 3}});
}

TEST_CASE("two copies, one announced, are found", "[copy][bugs]") {
  check_small(one_copy_announced, one_copy_announced_line, 1, 1,
              {{Bug::kRace, 10, 8}, {Bug::kBadExpectTx, 6}});
}

TEST_CASE("two copies, one announced, are found without the race detector too", "[copy][bugs]") {
  Problem problem;
  in_all_modes(6, [&] {
    emulator::options().race_detector = false;
    const Report report =
        report_of([&] { launch(one_copy_announced, 1, 1, 2 * sizeof(Small), nullptr, problem.out_map, 0); });
    // Early, the second copy is issued when the first one has completed the phase.
    const Finding early{Bug::kUnfinishedCopy, 8}, later{Bug::kBadExpectTx, 6};
    check_finding(report, one_copy_announced_line,
                  {emulator::options().async == AsyncMode::kEarly ? early : later});
  });
}

TEST_CASE("what a thread has written before a load lands there needs a fence", "[copy][bugs]") {
  check_small(written_before_load, written_before_load_line, 1, 2,
              {{Bug::kProxyFence, 9, 5}, {Bug::kProxyFence, 9, 7}});
}

TEST_CASE("mbarriers that are none are found", "[copy][bugs]") {
  check_small(overwritten_mbarrier, overwritten_mbarrier_line, 1, 1, {{Bug::kBadMbarrier, 5, 3}});
  Problem problem;
  const auto run = [&](int variant) {
    launch(mbarrier_misuse, 1, 1, sizeof(Small), nullptr, problem.out_map, variant);
  };
  const std::vector<Finding> findings = {
      {Bug::kBadMbarrier, 3},        {Bug::kBadMbarrier, 4},       {Bug::kBadMbarrier, 5},
      {Bug::kBadMbarrier, 7, 6},     {Bug::kBadMbarrier, 8},       {Bug::kBadMbarrier, 9},
      {Bug::kBadExpectTx, 10},       {Bug::kBadExpectTx, 11},      {Bug::kBadMbarrier, 12},
      {Bug::kBadMbarrier, 13},       {Bug::kBadMbarrier, 16, 6},   {Bug::kMisaligned, 17},
      {Bug::kSharedOutOfBounds, 19}, {Bug::kSharedOutOfBounds, 20}};
  for (const bool race_detector : {false, true}) {
    fresh_options().race_detector = race_detector;
    for (size_t variant = 0; variant < findings.size(); ++variant) {
      CAPTURE(variant);
      check_finding(report_of([&] { run(int(variant)); }), mbarrier_misuse_line, {findings[variant]});
    }
    CHECK_NOTHROW(run(-1));
  }
}

TEST_CASE("the race detector knows 1760 mbarriers", "[copy][bugs]") {
  Problem problem;
  const auto run = [&](int count) {
    launch(many_mbarriers, 1, 1, 2049 * 8, nullptr, problem.out_map, count);
  };
  fresh_options();
  CHECK_NOTHROW(run(2049));
  emulator::options().race_detector = true;
  CHECK_NOTHROW(run(1760));
  check_report(report_of([&] { run(2049); }), Bug::kBadMbarrier, 0, {},
               {"the race detector can track 1760 mbarriers per CTA, and this is one more than that"});
}

TEST_CASE("of many mbarriers each knows its own copies", "[copy][bugs]") {
  Buffer<float> in(256), out(32);
  for (size_t i = 0; i < 256; ++i) in[i] = float(i);
  const TensorMap map = make_tensor_map<SwizzledTile<float, 8, 4, 0>>(View{in.get(), 1, 1, 64, 0, 0, 4});
  const auto run = [&](int not_waited_for) {
    launch(ring_of_mbarriers, 1, 64, sizeof(Ring), nullptr, map, out.get(), not_waited_for);
  };
  float row_sum = 0;  // of the first column
  for (int stage = 0; stage < RING_STAGES; ++stage) row_sum += float(stage % 8 * 32);
  in_all_modes(1, [&] {
    CHECK_NOTHROW(run(-1));
    for (size_t i = 0; i < 32; ++i) CHECK(out[i] == row_sum + float(RING_STAGES * i));
    for (const int stage : {0, 31, 32, 63, 64, 1023, 1024, RING_STAGES - 1}) {
      CAPTURE(stage);
      check_finding(report_of([&] { run(stage); }), ring_of_mbarriers_line, {{Bug::kRace, 16, 8}});
    }
  });
}

TEST_CASE("boxes lie in shared memory, on a multiple of what their swizzle repeats after", "[copy][bugs]") {
  Buffer<__half> tensor(16 * 64);
  const auto map = [&](auto swizzle) {
    return make_tensor_map<SwizzledTile<__half, 16, 64, decltype(swizzle)::value>>(
        View{tensor.get(), 1, 1, 16, 0, 0, 64});
  };
  const std::integral_constant<int, 128> wide;
  const std::integral_constant<int, 64> middle;
  const std::integral_constant<int, 32> narrow;
  const std::integral_constant<int, 0> none;
  fresh_options();
  const auto load = [&](const TensorMap& its, int offset) {
    launch(bad_box, 1, 1, 8192, nullptr, its, offset);
  };
  const auto store = [&](const TensorMap& its, int offset) {
    launch(bad_store, 1, 1, 8192, nullptr, its, offset);
  };
  const auto check = [&](const TensorMap& its, int offset, Bug bug) {
    CAPTURE(offset);
    Report report = report_of([&] { load(its, offset); });
    check_report(report, bug, bad_box_line, {6});
    report = report_of([&] { store(its, offset); });
    check_report(report, bug, bad_store_line, {2});
  };
  check(map(wide), 1024 + 512, Bug::kMisaligned);
  check(map(middle), 1024 + 256, Bug::kMisaligned);
  check(map(narrow), 1024 + 128, Bug::kMisaligned);
  check(map(none), 1024 + 64, Bug::kMisaligned);
  check(map(wide), 7168, Bug::kSharedOutOfBounds);
  check(map(wide), 8192, Bug::kSharedOutOfBounds);
  check(map(wide), -1024, Bug::kSharedOutOfBounds);
  CHECK_NOTHROW(load(map(middle), 512));
  CHECK_NOTHROW(load(map(narrow), 256));
  CHECK_NOTHROW(load(map(none), 128));
  CHECK_NOTHROW(store(map(wide), 6144));

  Buffer<float> target(4096);
  const Report report =
      report_of([&] { launch(load_to_global, 1, 1, 4096, nullptr, map(none), target.get()); });
  check_report(report, Bug::kSharedOutOfBounds, load_to_global_line, {5}, {"not in shared memory"});
}

TEST_CASE("a tensor map that reaches beyond its memory is found where it is used", "[copy][bugs]") {
  fresh_options();
  Buffer<__half> tensor(16 * 64);
  const TensorMap map = make_tensor_map<Tile>(View{tensor.get(), 1, 1, 17, 0, 0, 72});
  Report report = report_of([&] { launch(bad_box, 1, 1, 4096, nullptr, map, 1024); });
  check_report(report, Bug::kGlobalOutOfBounds, bad_box_line, {6},
               {"the row of 128 bytes at (0, 14, 0, 0, 0) lies inside the tensor map's sizes",
                "runs over the end of an allocation of 2048 bytes"});
  report = report_of([&] { launch(bad_store, 1, 1, 4096, nullptr, map, 1024); });
  check_report(report, Bug::kGlobalOutOfBounds, bad_store_line, {2});
}

TEST_CASE("stores of several CTAs to the same place are a race", "[copy][bugs]") {
  Buffer<__half> tensor(32 * 64);
  const TensorMap map = make_tensor_map<Tile>(View{tensor.get(), 1, 1, 32, 0, 0, 64});
  in_all_modes(2, [&] {
    const Report report = report_of([&] { launch(ctas_store_the_same, 2, 1, 2048, nullptr, map, 0); });
    check_report(report, Bug::kRace, ctas_store_the_same_line, {2}, {"race between CTAs on global memory"});
    CHECK_NOTHROW(launch(ctas_store_the_same, 2, 1, 2048, nullptr, map, 1));
  });
}

TEST_CASE("all lanes take part in elect.sync", "[copy][bugs]") {
  fresh_options();
  for (const int lane : {0, 7, 31}) {
    const Report report = report_of([&] { launch(lane_skips_elect, 1, 32, 0, nullptr, lane); });
    check_report(report, Bug::kDivergence, lane_skips_elect_line, {2});
  }
}

TEST_CASE("an mbarrier orders what came before an arrival with what comes after the wait", "[copy][bugs]") {
  check_order(arrival_of_another_lane, arrival_of_another_lane_line, {Bug::kRace, 11, 6});
  check_order(write_after_arrival, write_after_arrival_line, {Bug::kRace, 11, 8});
  check_order(one_lane_waits, one_lane_waits_line, {Bug::kRace, 12, 6});
  check_order(learned_too_early, learned_too_early_line, {Bug::kRace, 9, 15});
  in_all_modes(6, [&] { CHECK_NOTHROW(launch(lanes_of_one_warp, 1, 32, sizeof(Small), nullptr, true)); });
}
