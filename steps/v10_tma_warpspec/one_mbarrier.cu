// v10's copies, made small: one mbarrier says when TMA has brought a tile. The lesson beside this file tells
// how to run it on the emulator, and how to break it.
#include <cstdio>
#include <exception>

#include "common/call.h"
#include "common/emulator/emulator.h"
#include "common/launch.h"
#include "common/mbarrier.h"
#include "common/tma.h"

using namespace flashsteps;

constexpr int TILES = 3, ROWS = 8, COLS = 32;
struct SharedStorage {
  SwizzledTile<float, ROWS, COLS, 0> tile;
  uint64_t bar_full;
};

// One warp adds up the columns of a matrix, tile by tile.
__global__ void sum_columns(const __grid_constant__ TensorMap map, float* sums) {
  auto& shared = *reinterpret_cast<SharedStorage*>(smem);
  float sum = 0.0f;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);  // one arrival completes a phase: that of the announcement
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarrier is initialised
  for (int tile = 0; tile < TILES; ++tile) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(&shared.bar_full, sizeof(shared.tile));  // arrives, and announces the bytes
      tma_load_5d(&shared.tile, map, &shared.bar_full, 0, tile * ROWS, 0, 0, 0);  // returns at once
    }
    mbarrier_wait(&shared.bar_full, tile % 2);  // phase `tile` is complete: the bytes have arrived
    for (int row = 0; row < ROWS; ++row) sum += shared.tile.data[0][row][threadIdx.x];
    fence_proxy_async();  // orders this thread's reads before TMA's next write
    __syncthreads();      // all threads have read the tile
  }
  sums[threadIdx.x] = sum;
}

int main() {
  emulator::options().race_detector = true;
  emulator::options().async = emulator::AsyncMode::kLate;  // a copy takes as long as it may
  auto* const matrix = static_cast<float*>(emulator::allocate(TILES * ROWS * COLS * sizeof(float)));
  auto* const sums = static_cast<float*>(emulator::allocate(COLS * sizeof(float)));
  for (int i = 0; i < TILES * ROWS * COLS; ++i) matrix[i] = float(i % COLS);
  const auto map = make_tensor_map<decltype(SharedStorage::tile)>(
      View<const float>{matrix, 1, 1, TILES * ROWS, TILES * ROWS * COLS, TILES * ROWS * COLS, COLS});
  try {
    launch(sum_columns, 1, 32, sizeof(SharedStorage), nullptr, map, sums);
  } catch (const std::exception& report) {
    std::printf("%s\n", report.what());
    return 1;
  }
  for (int col = 0; col < COLS; ++col) {
    if (sums[col] == float(TILES * ROWS * col)) continue;
    std::printf("FAIL  column %d adds up to %g, not to %d\n", col, sums[col], TILES * ROWS * col);
    return 1;
  }
  std::printf("PASS\n");
}
