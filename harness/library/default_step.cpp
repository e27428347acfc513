#include "harness/library/default_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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

enum class Kind { kWholeTiles, kShares, kSharesPacked };  // v27, v37, v38

// A kernel's tiles, and times in microseconds on Hopper. They were chosen such that the kernel with the least
// estimate is as fast as can be on some 700 problems: by trials on an H200 and an H100, which are not
// recorded.
struct Kernel {
  DefaultStep step;
  Kind kind;
  int rows, keys;        // of a tile
  int tiles_at_once;     // that an SM computes
  double launch;         // and what else every call costs
  double tile_and_keys;  // a tile of rows with a tile of keys
  double tile;           // a tile of rows: its start and its end
  double sharing;        // if CTAs share tiles
};
using enum Kind;
constexpr Kernel kHeadDim64[] = {
    {{"v27_tile_shapes", "many_keys"}, kWholeTiles, 192, 128, 1, 3.67, 1.30, 1.80, 0},
    {{"v27_tile_shapes", "some_keys"}, kWholeTiles, 128, 64, 2, 5.14, 0.92, 1.81, 0},
    {{"v27_tile_shapes", "few_keys"}, kWholeTiles, 256, 64, 1, 2.05, 0.89, 2.54, 0},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, 2.83, 0.62, 1.63, 2.52},
    {{"v37_even_shares", "rows128"}, kShares, 128, 128, 1, 4.46, 0.96, 1.56, 2.45},
    {{"v38_packed_rows", "rows64"}, kSharesPacked, 64, 128, 1, 4.06, 0.77, 1.13, 1.83},
    {{"v38_packed_rows", "rows128"}, kSharesPacked, 128, 128, 1, 6.14, 1.07, 1.01, 2.18},
    {{"v38_packed_rows", "rows192"}, kSharesPacked, 192, 128, 1, 4.41, 1.26, 2.38, 4.62},
};
constexpr Kernel kHeadDim128[] = {
    {{"v27_tile_shapes", "many_keys"}, kWholeTiles, 192, 64, 1, 3.40, 0.98, 2.46, 0},
    {{"v27_tile_shapes", "few_keys"}, kWholeTiles, 128, 128, 1, 3.54, 1.38, 1.52, 0},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, 3.08, 0.93, 2.56, 2.80},
    {{"v37_even_shares", "rows128"}, kShares, 128, 128, 1, 5.37, 1.40, 1.51, 3.97},
    {{"v38_packed_rows", "rows64"}, kSharesPacked, 64, 128, 1, 5.25, 1.22, 0.70, 2.49},
    {{"v38_packed_rows", "rows128"}, kSharesPacked, 128, 128, 1, 5.36, 1.52, 1.37, 4.80},
};
constexpr int kNeverShared = 4;  // tiles of keys, as in even_shares.h

// Tiles of rows, of all heads and sequences.
int64_t num_tiles(const Kernel& kernel, const AttentionCall& c) {
  constexpr int kWarpgroupRows = 64;
  if (kernel.kind != kSharesPacked)
    return int64_t(c.batch) * c.num_heads_q * ceil_div(c.seqlen_q, kernel.rows);
  // A warpgroup has the same queries of all heads that share a head of K and V.
  const int queries = kernel.rows / kWarpgroupRows * (kWarpgroupRows / (c.num_heads_q / c.num_heads_kv));
  return int64_t(c.batch) * c.num_heads_kv * ceil_div(c.seqlen_q, std::max(queries, 1));
}

// Shared tiles pay where tiles are few. v37 computes one query head after the other, also where they share K
// and V: then these should stay in the L2 cache. Without such groups it does what v38 does.
bool is_candidate(const Kernel& kernel, const AttentionCall& c, int num_sms) {
  constexpr int64_t kSmall = 16 << 20;  // bytes
  if (kernel.kind == kWholeTiles) return true;
  if (num_tiles(kernel, c) > 8 * num_sms) return false;
  return kernel.kind == kSharesPacked ||
         (c.num_heads_q > c.num_heads_kv &&
          int64_t(4) * c.batch * c.num_heads_kv * c.seqlen_kv * c.head_dim <= kSmall);
}

double estimated_time(const Kernel& kernel, const AttentionCall& c, int num_sms) {
  const double tiles = double(num_tiles(kernel, c));
  // Tiles of keys that a tile of rows needs: with a causal mask, the first rows need fewer.
  const double most = double(std::max<int64_t>(1, ceil_div(c.seqlen_kv, kernel.keys)));
  const double fewer = c.causal ? double(std::min(c.seqlen_q, c.seqlen_kv)) / kernel.keys : 0;
  const double least = std::max(1.0, most - fewer), mean = (most + least) / 2;
  const auto time = [&](double tiles_and_keys, double tiles_of_sm, double sharing) {
    return kernel.launch + tiles_and_keys * kernel.tile_and_keys + tiles_of_sm * kernel.tile + sharing;
  };

  if (kernel.kind == kWholeTiles) {  // the longest first
    const double at_once =
        std::min<double>(num_sms, std::ceil(tiles / kernel.tiles_at_once)) * kernel.tiles_at_once;
    const double rounds = std::ceil(tiles / at_once);
    // An SM that has a tile in each round has none that is shorter than the first one of the last round.
    const double last = most - (most - least) * (rounds - 1) * at_once / tiles;
    return time(std::max({most, tiles * mean / at_once, rounds * last}),
                c.causal ? std::max(1.0, tiles / at_once) : rounds, 0);
  }
  const double of_sm = tiles / num_sms;
  if (most <= kNeverShared) return time(std::ceil(of_sm) * most, std::ceil(of_sm), 0);
  // Every SM has as many keys. Does each tile have as many SMs, or each SM as many tiles?
  const bool whole = of_sm == std::floor(of_sm);
  const bool even = whole || (of_sm < 1 && std::floor(1 / of_sm) * tiles >= num_sms * 15.0 / 16);
  return time(std::max(1.0, of_sm * mean) + (even ? 0 : 0.5), std::max(1.0, of_sm) + (even ? 0 : 1),
              whole ? 0 : kernel.sharing);
}

}  // namespace

DefaultStep default_step(const AttentionCall& c, int num_sms) {
  if (c.page_table.pages != nullptr || prefers_mma_sync(c, num_sms)) return {"v36_stream_k", ""};
  DefaultStep fastest{};
  double least = std::numeric_limits<double>::infinity();
  for (const Kernel& kernel : c.head_dim == 64 ? std::span<const Kernel>(kHeadDim64) : kHeadDim128) {
    if (!is_candidate(kernel, c, num_sms)) continue;
    const double time = estimated_time(kernel, c, num_sms);
    if (time < least) least = time, fastest = kernel.step;
  }
  return fastest;
}

}  // namespace flashsteps
