#include "harness/library/default_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace flashsteps {
namespace {

int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// ---- Few rows: mma.sync, whose tiles have 16 rows

constexpr int kSmallTile = 16, kSmallKeys = 64;  // of v36

// Does v36 need the least time? It does where memory limits the call, because a tile has all rows of a head
// of K and V; but with more than 8 rows not at D = 64 and few heads. And it has the shortest start, which is
// nearly all of a call that is small.
bool prefers_mma_sync(const AttentionCall& c, int num_sms) {
  const int64_t rows = int64_t(c.seqlen_q) * (c.num_heads_q / c.num_heads_kv);
  const int64_t heads = int64_t(c.batch) * c.num_heads_kv;
  if (rows <= kSmallTile) return rows <= 8 || c.head_dim == 128 || heads >= 32;
  return c.seqlen_kv <= kSmallKeys && heads * ceil_div(rows, kSmallTile) <= 2 * num_sms;
}

// ---- Otherwise wgmma: a time is estimated for each kernel

// A kernel's tiles, and times in microseconds on Hopper. They were fitted to its times for 700 problems,
// which the estimates miss by 3 to 10 % in the mean.
struct Kernel {
  DefaultStep step;
  int rows, keys;       // of a tile
  int tiles_at_once;    // that an SM computes
  bool shares;          // CTAs share tiles: even_shares.h
  double launch;        // of an empty kernel, and what every call costs
  double keys_of_tile;  // for a tile of rows: each tile of keys
  double tile;          // its start and its end
  double sharing;       // if CTAs share tiles
};
constexpr Kernel kHeadDim64[] = {
    {{"v27_tile_shapes", "many_keys"}, 192, 128, 1, false, 3.35, 1.29, 2.01, 0},
    {{"v27_tile_shapes", "some_keys"}, 128, 64, 2, false, 4.31, 0.90, 2.22, 0},
    {{"v27_tile_shapes", "few_keys"}, 256, 64, 1, false, 2.59, 0.88, 2.36, 0},
    {{"v38_packed_rows", "rows64"}, 64, 128, 1, true, 4.63, 0.73, 1.10, 2.18},
    {{"v38_packed_rows", "rows128"}, 128, 128, 1, true, 5.03, 1.10, 1.28, 2.64},
    {{"v38_packed_rows", "rows192"}, 192, 128, 1, true, 4.68, 1.31, 1.93, 3.00},
};
constexpr Kernel kHeadDim128[] = {
    {{"v27_tile_shapes", "many_keys"}, 192, 64, 1, false, 2.75, 0.98, 2.61, 0},
    {{"v27_tile_shapes", "few_keys"}, 128, 128, 1, false, 3.65, 1.40, 1.78, 0},
    {{"v38_packed_rows", "rows64"}, 64, 128, 1, true, 5.07, 1.00, 1.12, 3.71},
    {{"v38_packed_rows", "rows128"}, 128, 128, 1, true, 5.77, 1.47, 1.43, 4.48},
};
constexpr int kNeverShared = 4;  // tiles of keys, as in even_shares.h

// Of all heads and sequences.
int64_t num_tiles(const Kernel& kernel, const AttentionCall& c) {
  constexpr int kWarpgroupRows = 64;
  if (!kernel.shares) return int64_t(c.batch) * c.num_heads_q * ceil_div(c.seqlen_q, kernel.rows);
  // v38: a warpgroup has the same queries of all heads that share a head of K and V.
  const int queries = kernel.rows / kWarpgroupRows * (kWarpgroupRows / (c.num_heads_q / c.num_heads_kv));
  return int64_t(c.batch) * c.num_heads_kv * ceil_div(c.seqlen_q, std::max(queries, 1));
}

double estimated_time(const Kernel& kernel, const AttentionCall& c, int num_sms) {
  const double tiles = double(num_tiles(kernel, c));
  // Tiles of keys that a tile of rows needs: with a causal mask, the first rows need fewer.
  const double most = double(std::max<int64_t>(1, ceil_div(c.seqlen_kv, kernel.keys)));
  const double least =
      c.causal ? std::max(1.0, most - double(std::min(c.seqlen_q, c.seqlen_kv)) / kernel.keys) : most;
  const double mean = (most + least) / 2;

  if (kernel.shares && most > kNeverShared) {  // every SM has as many keys
    const double of_sm = tiles / num_sms;
    const bool divides = of_sm < 1 ? std::floor(1 / of_sm) * tiles >= num_sms * 15.0 / 16
                                   : std::floor(of_sm) * num_sms == tiles;
    const bool shared = of_sm < 1 || !divides;
    return kernel.launch + (std::max(1.0, of_sm * mean) + (divides ? 0 : 0.5)) * kernel.keys_of_tile +
           (std::max(1.0, of_sm) + (divides ? 0 : 1)) * kernel.tile + (shared ? kernel.sharing : 0);
  }
  // Whole tiles, the longest first. The SM that gets the last one has as many tiles as rounds, each at least
  // as long as the last.
  const double at_once =
      std::min<double>(num_sms, std::ceil(tiles / kernel.tiles_at_once)) * kernel.tiles_at_once;
  const double rounds = std::ceil(tiles / at_once);
  const double last = most - (most - least) * (rounds - 1) * at_once / tiles;
  const double keys = std::max({most, tiles * mean / at_once, rounds * last});
  return kernel.launch + keys * kernel.keys_of_tile +
         (c.causal ? std::max(1.0, tiles / at_once) : rounds) * kernel.tile;
}

}  // namespace

DefaultStep default_step(const AttentionCall& c, int num_sms) {
  if (c.page_table.pages != nullptr || prefers_mma_sync(c, num_sms)) return {"v36_stream_k", ""};
  const std::span<const Kernel> kernels =
      c.head_dim == 64 ? std::span<const Kernel>(kHeadDim64) : kHeadDim128;
  return std::ranges::min(kernels, {},
                          [&](const Kernel& kernel) { return estimated_time(kernel, c, num_sms); })
      .step;
}

}  // namespace flashsteps
