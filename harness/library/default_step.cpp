#include "harness/library/default_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace flashsteps {
namespace {

// A kernel's tiles, and its costs on Hopper. They were fitted such that the kernel with the least estimate is
// about as fast as any on some 900 problems, by trials on an H200 and an H100. Most of these are not
// recorded, and of an earlier form of the kernels. Of many_keys at D = 64, the costs were then set by hand to
// what h200_ablation_v27.json says of many tiles.
enum class Kind { kWholeTiles, kShares, kSharesPacked, kSharesOfFewRows };  // v27, v37, v39, v36
struct Kernel {
  DefaultStep step;
  Kind kind;
  int rows, keys;     // of a tile
  int tiles_at_once;  // that an SM computes
  Costs costs;
};
using enum Kind;
constexpr const char* kWhole = "v27_tile_shapes_overlapping_launches";
constexpr const char* kPacked = "v39_dependent_launch";
constexpr Kernel kHeadDim64[] = {
    {{"v36_stream_k", ""}, kSharesOfFewRows, 16, 64, 2, {2.54, 0.68, 0.63, 1.22}},
    {{kWhole, "many_keys"}, kWholeTiles, 192, 128, 1, {4.50, 1.28, 1.20, 0}},
    {{kWhole, "some_keys"}, kWholeTiles, 128, 64, 2, {3.80, 0.92, 1.71, 0}},
    {{kWhole, "few_keys"}, kWholeTiles, 256, 64, 1, {0.62, 0.87, 2.53, 0}},
    {{kPacked, "rows64"}, kSharesPacked, 64, 128, 1, {1.40, 0.93, 1.36, 2.59}},
    {{kPacked, "rows128"}, kSharesPacked, 128, 128, 1, {2.66, 1.11, 1.46, 3.22}},
    {{kPacked, "rows192"}, kSharesPacked, 192, 128, 1, {3.13, 1.27, 2.33, 3.10}},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, {3.88, 0.77, 0.97, 2.60}},
};
constexpr Kernel kHeadDim128[] = {
    {{"v36_stream_k", ""}, kSharesOfFewRows, 16, 64, 2, {1.97, 1.74, 0.88, 0.97}},
    {{kWhole, "many_keys"}, kWholeTiles, 192, 64, 1, {1.63, 0.99, 2.60, 0}},
    {{kWhole, "some_keys"}, kWholeTiles, 128, 128, 1, {2.98, 1.39, 1.80, 0}},
    {{kWhole, "few_keys"}, kWholeTiles, 128, 128, 1, {1.83, 1.45, 1.35, 0}},
    {{kPacked, "rows64"}, kSharesPacked, 64, 128, 1, {1.59, 1.26, 1.32, 3.21}},
    {{kPacked, "rows128"}, kSharesPacked, 128, 128, 1, {3.33, 1.46, 1.97, 3.41}},
    {{kPacked, "rows192"}, kSharesPacked, 192, 64, 1, {3.35, 1.00, 1.94, 6.07}},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, {4.33, 1.01, 1.30, 3.57}},
};

constexpr int kNeverShared = 4;          // tiles of keys, as in even_shares.h
constexpr int kLargestMargin = 2;        // the same
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
  const bool is_wgmma = kernel.kind != kSharesOfFewRows, packed = kernel.kind == kSharesPacked;
  if (is_wgmma && most <= kNeverShared) return {std::ceil(of_slot) * most, std::ceil(of_slot), 0};
  // Does each tile have as many slots, or each slot as many tiles?
  const double slots_of_tile = std::floor(slots / tiles);
  bool whole = of_slot == std::floor(of_slot);
  const bool even = whole || slots_of_tile * tiles >= slots * 15 / 16;
  double share = slots_of_tile >= 1 && even ? mean / std::min(slots_of_tile, most) : of_slot * mean;
  // With a slot for each tile, pieces of the line end about where tiles end, if the tiles of a head are about
  // equally long.
  const double tiles_of_head = tiles / (double(c.batch) * c.num_heads_kv * (packed ? 1 : group_of(c)));
  if (is_wgmma && slots_of_tile == 1 && even && (most - least) * tiles_of_head / 8 <= kLargestMargin) {
    whole = true;
    share = most;
  }
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
