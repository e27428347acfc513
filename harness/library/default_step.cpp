#include "harness/library/default_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace flashsteps {
namespace {

// A kernel's tiles, and its costs on Hopper. They were chosen such that the kernel with the least estimate is
// about as fast as any on some 700 problems: by trials on an H200 and an H100, which are not recorded.
enum class Kind { kWholeTiles, kShares, kSharesPacked, kSharesOfFewRows };  // v27, v37, v38, v36
struct Kernel {
  DefaultStep step;
  Kind kind;
  int rows, keys;     // of a tile
  int tiles_at_once;  // that an SM computes
  Costs costs;
};
using enum Kind;
constexpr Kernel kHeadDim64[] = {
    {{"v36_stream_k", ""}, kSharesOfFewRows, 16, 64, 2, {2.18, 0.90, 0.91, 1.00}},
    {{"v27_tile_shapes", "many_keys"}, kWholeTiles, 192, 128, 1, {5.30, 1.36, 0.94, 0}},
    {{"v27_tile_shapes", "some_keys"}, kWholeTiles, 128, 64, 2, {4.80, 0.94, 1.60, 0}},
    {{"v27_tile_shapes", "few_keys"}, kWholeTiles, 256, 64, 1, {1.87, 0.88, 2.30, 0}},
    {{"v38_packed_rows", "rows64"}, kSharesPacked, 64, 128, 1, {4.07, 0.92, 0.96, 1.65}},
    {{"v38_packed_rows", "rows128"}, kSharesPacked, 128, 128, 1, {5.16, 1.06, 1.46, 2.09}},
    {{"v38_packed_rows", "rows192"}, kSharesPacked, 192, 128, 1, {3.98, 1.29, 2.73, 3.98}},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, {2.92, 0.63, 1.93, 1.87}},
    {{"v37_even_shares", "rows128"}, kShares, 128, 128, 1, {4.27, 0.98, 1.76, 2.27}},
    {{"v37_even_shares", "rows192"}, kShares, 192, 128, 1, {4.58, 1.29, 1.93, 2.42}},
};
constexpr Kernel kHeadDim128[] = {
    {{"v36_stream_k", ""}, kSharesOfFewRows, 16, 64, 2, {2.14, 1.20, 0.90, 1.33}},
    {{"v27_tile_shapes", "many_keys"}, kWholeTiles, 192, 64, 1, {3.59, 0.97, 2.33, 0}},
    {{"v27_tile_shapes", "few_keys"}, kWholeTiles, 128, 128, 1, {3.73, 1.38, 1.36, 0}},
    {{"v38_packed_rows", "rows64"}, kSharesPacked, 64, 128, 1, {4.75, 1.05, 0.95, 2.08}},
    {{"v38_packed_rows", "rows128"}, kSharesPacked, 128, 128, 1, {5.60, 1.43, 1.76, 3.61}},
    {{"v38_packed_rows", "rows192"}, kSharesPacked, 192, 64, 1, {5.37, 1.00, 1.71, 5.71}},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, {2.43, 0.95, 2.76, 2.38}},
    {{"v37_even_shares", "rows128"}, kShares, 128, 128, 1, {5.39, 1.39, 1.61, 3.40}},
    {{"v37_even_shares", "rows192"}, kShares, 192, 64, 1, {4.91, 1.06, 1.71, 5.20}},
};

constexpr int kNeverShared = 4;          // tiles of keys, as in even_shares.h
constexpr double kFullBandwidth = 0.95;  // of the memory's peak, which a kernel that only reads reaches
constexpr int64_t kSmall = 16 << 20;     // bytes of K and V that stay in the L2 cache

int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
int group_of(const AttentionCall& c) { return c.num_heads_q / c.num_heads_kv; }
int64_t kv_bytes(const AttentionCall& c) {
  return int64_t(4) * c.batch * c.num_heads_kv * c.seqlen_kv * c.head_dim;
}

// Tiles of rows, of all heads and sequences.
int64_t num_tiles(const Kernel& kernel, const AttentionCall& c) {
  constexpr int kWarpgroupRows = 64;
  const int64_t heads = int64_t(c.batch) * c.num_heads_kv;
  switch (kernel.kind) {
    case kSharesOfFewRows:
      return heads * ceil_div(int64_t(c.seqlen_q) * group_of(c), kernel.rows);
    case kSharesPacked: {  // a warpgroup has the same queries of all heads that share a head of K and V
      const int queries = kernel.rows / kWarpgroupRows * (kWarpgroupRows / group_of(c));
      return heads * ceil_div(c.seqlen_q, std::max(queries, 1));
    }
    default:
      return heads * group_of(c) * ceil_div(c.seqlen_q, kernel.rows);
  }
}

// Shared tiles pay where tiles are few. v37 computes one query head after the other, also where they share K
// and V: then these should stay in the L2 cache.
bool is_candidate(const Kernel& kernel, const AttentionCall& c, const Card& card) {
  if (kernel.kind == kWholeTiles || kernel.kind == kSharesOfFewRows) return true;
  if (num_tiles(kernel, c) > 8 * card.num_sms) return false;
  return kernel.kind == kSharesPacked || group_of(c) == 1 || kv_bytes(c) <= kSmall;
}

Work work_of(const Kernel& kernel, const AttentionCall& c, const Card& card) {
  const double tiles = double(num_tiles(kernel, c));
  // Tiles of keys that a tile of rows needs: with a causal mask, the first rows need fewer.
  const double most = double(std::max<int64_t>(1, ceil_div(c.seqlen_kv, kernel.keys)));
  const double fewer = c.causal ? double(std::min(c.seqlen_q, c.seqlen_kv)) / kernel.keys : 0;
  const double least = std::max(1.0, most - fewer), mean = (most + least) / 2;

  if (kernel.kind == kWholeTiles) {  // the longest first
    const double at_once =
        std::min<double>(card.num_sms, std::ceil(tiles / kernel.tiles_at_once)) * kernel.tiles_at_once;
    const double rounds = std::ceil(tiles / at_once);
    // An SM that has a tile in each round has none that is shorter than the first one of the last round.
    const double last = most - (most - least) * (rounds - 1) * at_once / tiles;
    return {std::max({most, tiles * mean / at_once, rounds * last}),
            c.causal ? std::max(1.0, tiles / at_once) : rounds, 0};
  }

  const double slots = double(card.num_sms) * kernel.tiles_at_once, of_slot = tiles / slots;
  const bool is_wgmma = kernel.kind != kSharesOfFewRows;
  if (is_wgmma && most <= kNeverShared) return {std::ceil(of_slot) * most, std::ceil(of_slot), 0};
  // Does each tile have as many slots, or each slot as many tiles?
  const double slots_of_tile = std::floor(slots / tiles);
  const bool whole = of_slot == std::floor(of_slot);
  const bool even = whole || slots_of_tile * tiles >= slots * 15 / 16;
  const double share = slots_of_tile >= 1 && even ? mean / std::min(slots_of_tile, most) : of_slot * mean;
  double sharing = whole || most == 1 ? 0 : 1;
  // v36 merges row by row, and a part after the other.
  if (!is_wgmma)
    sharing *= std::min(1.0, double(c.seqlen_q) * group_of(c) / kernel.rows) *
               std::log2(std::max(1.0, std::min(slots / tiles, most)));
  constexpr double kFewTiles = 8;  // then it matters that a share is of whole tiles of keys
  return {share < kFewTiles ? std::ceil(std::max(1.0, share)) : share + (even ? 0 : 0.5),
          std::max(1.0, of_slot) + (even ? 0 : 1), sharing};
}

}  // namespace

double Estimate::time() const {
  return costs.launch + std::max(work.tiles_and_keys * costs.tile_and_keys, reading) +
         work.tiles * costs.tile + work.sharing * costs.sharing;
}

std::vector<Estimate> estimates(const AttentionCall& c, const Card& card) {
  const double rate = kFullBandwidth * card.memory_bytes_per_us;
  const double reading = rate > 0 ? double(kv_bytes(c)) / rate : 0;
  std::vector<Estimate> all;
  for (const Kernel& kernel : c.head_dim == 64 ? std::span<const Kernel>(kHeadDim64) : kHeadDim128) {
    if (is_candidate(kernel, c, card))
      all.push_back({kernel.step, kernel.costs, work_of(kernel, c, card), reading});
  }
  return all;
}

DefaultStep default_step(const AttentionCall& c, const Card& card) {
  if (c.page_table.pages != nullptr) return {"v36_stream_k", ""};
  return std::ranges::min(estimates(c, card), {}, &Estimate::time).step;
}

}  // namespace flashsteps
