// Global memory that TMA reads and nobody looks at: see make_read_loops() in ceilings.h. The build looks for
// the words needs_sm = "90".
#include "common/cuda/check.h"
#include "common/launch.h"
#include "common/mbarrier.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "harness/device/ceilings.h"

namespace flashsteps {
namespace {

using Tile = SwizzledTile<__nv_bfloat16, 128, 64, 128>;  // 16 KB
constexpr int kMaxStages = 12;
struct Barriers {
  uint64_t full[kMaxStages];
};

// A launch: CTAs of one thread take tiles in turn, each with `stages` of them on their way. As soon as a tile
// is there, the next one overwrites it.
__global__ void read_ring(const __grid_constant__ TensorMap map, int num_tiles, int stages) {
  __shared__ Barriers bar;
  Tile* const tiles = reinterpret_cast<Tile*>(smem);
  for (int stage = 0; stage < stages; ++stage) mbarrier_init(&bar.full[stage], 1);
  fence_mbarrier_init();
  const auto load = [&](int tile, int stage) {
    mbarrier_arrive_expect_tx(&bar.full[stage], sizeof(Tile));
    tma_load_5d(&tiles[stage], map, &bar.full[stage], 0, tile * Tile::ROWS, 0, 0, 0);
  };
  const int step = gridDim.x, ahead = stages * step;
  for (int stage = 0; stage < stages; ++stage) {
    if (const int tile = blockIdx.x + stage * step; tile < num_tiles) load(tile, stage);
  }
  int stage = 0, phase = 0;
  for (int tile = blockIdx.x; tile < num_tiles; tile += step) {
    mbarrier_wait(&bar.full[stage], phase);
    if (tile + ahead < num_tiles) load(tile + ahead, stage);
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
}

}  // namespace

std::vector<CeilingLaunch> make_read_rings(const std::shared_ptr<void>& buffer, size_t bytes,
                                           cudaStream_t stream) {
  const cudaDeviceProp device = device_properties();
  if (device.major < 9) return {};
  const int rows = int(bytes / (Tile::COLS * sizeof(Tile::Element)));
  const TensorMap map =
      make_tensor_map<Tile>(View<const Tile::Element>{.data = static_cast<const Tile::Element*>(buffer.get()),
                                                      .batch = 1,
                                                      .num_heads = 1,
                                                      .num_rows = rows,
                                                      .batch_stride = Tile::COLS,
                                                      .head_stride = Tile::COLS,
                                                      .row_stride = Tile::COLS});
  std::vector<CeilingLaunch> ways;
  constexpr struct { int ctas_per_sm, stages; } kRings[] = {{1, 4}, {1, 8}, {1, 12}, {2, 6}, {4, 3}};
  for (const auto [ctas_per_sm, stages] : kRings) {
    const size_t smem_bytes = stages * sizeof(Tile), in_flight = ctas_per_sm * smem_bytes;
    if (in_flight + ctas_per_sm * size_t(4096) > device.sharedMemPerMultiprocessor) continue;
    const int ctas = device.multiProcessorCount * ctas_per_sm,
              num_tiles = (rows + Tile::ROWS - 1) / Tile::ROWS;
    ways.push_back({"by TMA, " + std::to_string(ctas_per_sm) + " x " + std::to_string(stages) +
                        " tiles of 16 KB ahead an SM",
                    "bytes", double(bytes), [=, keep = buffer] {
                      launch(read_ring, dim3(ctas), dim3(1), smem_bytes, stream, map, num_tiles, stages);
                    }});
  }
  return ways;
}

}  // namespace flashsteps
