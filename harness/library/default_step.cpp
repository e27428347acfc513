#include "harness/library/default_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace flashsteps {
namespace {

// A kernel's tiles, and its costs on Hopper. They were fitted such that the kernel with the least estimate is
// about as fast as any on some 2,000 problems, by trials on an H200 and an H100. Most of these are not
// recorded, and of an earlier form of the kernels.
enum class Kind { kWholeTiles, kShares, kSharesPacked, kSharesOfFewRows };  // v27, v37, v39, v36
struct Kernel {
  DefaultStep step;
  Kind kind;
  int rows, keys;     // of a tile
  int tiles_at_once;  // that an SM computes
  Costs costs;
};
using enum Kind;
constexpr const char* kFewRows = "v36_stream_k_overlapping_full_sms";
constexpr const char* kFewRowsDeep = "v36_stream_k_overlapping_six_stages";
constexpr const char* kFp8Cache = "v42_fp8_cache_overlapping_full_sms";
constexpr const char* kQuantizes = "v43_quantize";
constexpr const char* kBackward = "v58_ordered_adds";  // v59 and v60 have run on the emulator only
constexpr const char* kFp8 = "v46_some_exponentials";
constexpr const char* kFp8InOneKernel = "v45_transposing_warps";
constexpr const char* kFp8Fast = "v41_bytes_of_p";
constexpr const char* kWhole = "v27_tile_shapes_overlapping_launches";
constexpr const char* kPacked = "v39_dependent_launch";
constexpr Kernel kHeadDim64[] = {
    {{kFewRowsDeep, "ctas1"}, kSharesOfFewRows, 16, 64, 1, {2.10, 0.34, 0.75, 0.81, 1.07}},
    {{kFewRows, "ctas2"}, kSharesOfFewRows, 16, 64, 2, {1.66, 0.58, 1.14, 1.45, 1.11}},
    {{kWhole, "many_keys"}, kWholeTiles, 192, 128, 1, {1.88, 1.34, 1.53, 0, 1.05}},
    {{kWhole, "some_keys"}, kWholeTiles, 128, 64, 2, {2.95, 0.91, 2.13, 0, 1.05}},
    {{kWhole, "few_keys"}, kWholeTiles, 256, 64, 1, {0.41, 0.89, 2.39, 0, 1.05}},
    {{kPacked, "rows64"}, kSharesPacked, 64, 128, 1, {1.70, 0.92, 1.35, 1.72, 1.10}},
    {{kPacked, "rows128"}, kSharesPacked, 128, 128, 1, {2.45, 1.12, 1.24, 3.05, 1.13}},
    {{kPacked, "rows192"}, kSharesPacked, 192, 128, 1, {2.80, 1.29, 1.82, 3.46, 1.14}},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, {4.41, 0.72, 0.68, 2.38, 1.05}},
};
constexpr Kernel kHeadDim128[] = {
    {{kFewRows, "ctas1"}, kSharesOfFewRows, 16, 64, 1, {1.51, 0.70, 1.08, 1.24, 1.07}},
    {{kFewRows, "ctas2"}, kSharesOfFewRows, 16, 64, 2, {1.79, 0.85, 1.25, 1.92, 1.10}},
    {{kWhole, "many_keys"}, kWholeTiles, 192, 64, 1, {1.35, 0.97, 2.44, 0, 1.05}},
    {{kWhole, "some_keys"}, kWholeTiles, 128, 128, 1, {3.04, 1.40, 1.74, 0, 1.05}},
    {{kWhole, "few_keys"}, kWholeTiles, 128, 128, 1, {1.77, 1.46, 1.50, 0, 1.05}},
    {{kPacked, "rows64"}, kSharesPacked, 64, 128, 1, {2.03, 1.25, 1.28, 2.60, 1.10}},
    {{kPacked, "rows128"}, kSharesPacked, 128, 128, 1, {3.18, 1.46, 1.89, 3.33, 1.10}},
    {{kPacked, "rows192"}, kSharesPacked, 192, 64, 1, {3.81, 1.01, 1.40, 5.54, 1.11}},
    {{"v37_even_shares", "rows64"}, kShares, 64, 128, 1, {4.46, 1.01, 1.21, 3.22, 1.05}},
};

constexpr int kNeverShared = 4;    // tiles of keys, as in even_shares.h
constexpr int kLargestMargin = 2;  // the same

int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
int group_of(const AttentionCall& c) { return c.num_heads_q / c.num_heads_kv; }
int64_t kv_bytes(const AttentionCall& c) {
  return int64_t(4) * c.batch * c.num_heads_kv * c.seqlen_kv * c.head_dim;
}

// From memory. Tiles of rows that share a head of K and V are computed at about the same time and find these
// in L2; v36's lie apart on the line, and find there about 60 % of what an earlier one has read.
double bytes_read(const Kernel& kernel, const AttentionCall& c) {
  const double bytes = double(kv_bytes(c));
  if (kernel.kind != Kind::kSharesOfFewRows) return bytes;
  return bytes * (1 + 0.4 * double(ceil_div(int64_t(c.seqlen_q) * group_of(c), kernel.rows) - 1));
}

// Of K and V, from one call to the next: what else lies in the L2 cache takes some of it.
bool stay_in_l2(const AttentionCall& c, const Card& card) {
  return double(kv_bytes(c)) <= 0.6 * card.l2_bytes;
}

// Of a tile of rows.
int num_queries(const Kernel& kernel, const AttentionCall& c) {
  constexpr int kWarpgroupRows = 64;
  switch (kernel.kind) {
    case kSharesOfFewRows:
      return std::max(kernel.rows / group_of(c), 1);
    case kSharesPacked:  // a warpgroup has the same queries of all heads that share a head of K and V
      return std::max(kernel.rows / kWarpgroupRows * (kWarpgroupRows / group_of(c)), 1);
    default:
      return kernel.rows;
  }
}

// Tiles of rows, of all heads and sequences.
int64_t num_tiles(const Kernel& kernel, const AttentionCall& c) {
  const int64_t heads = int64_t(c.batch) * c.num_heads_kv;
  switch (kernel.kind) {
    case kSharesOfFewRows:
      return heads * ceil_div(int64_t(c.seqlen_q) * group_of(c), kernel.rows);
    case kSharesPacked:
      return heads * ceil_div(c.seqlen_q, num_queries(kernel, c));
    default:
      return heads * group_of(c) * ceil_div(c.seqlen_q, kernel.rows);
  }
}

// Shared tiles pay where tiles are few. v37 computes one query head after the other, also where they share K
// and V: then these should stay in the L2 cache.
bool is_candidate(const Kernel& kernel, const AttentionCall& c, const Card& card) {
  if (kernel.kind == kWholeTiles || kernel.kind == kSharesOfFewRows) return true;
  if (num_tiles(kernel, c) > 5 * card.num_sms) return false;
  return kernel.kind == kSharesPacked || group_of(c) == 1 || stay_in_l2(c, card);
}

Work work_of(const Kernel& kernel, const AttentionCall& c, const Card& card) {
  const double tiles = double(num_tiles(kernel, c));
  // Tiles of keys that a tile of rows needs: with a causal mask, the first rows need fewer.
  const double most = double(std::max<int64_t>(1, ceil_div(c.seqlen_kv, kernel.keys)));
  const int first_rows = c.causal ? std::min(c.seqlen_q, c.seqlen_kv) - num_queries(kernel, c) : 0;
  const double fewer = double(std::max(first_rows, 0)) / kernel.keys;
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

// v46 has a kernel that transposes V first, and where keys are few its larger tiles at D = 128 have little to
// do (figures/results/h200_fp8_default.json). And it finds no log-sum-exp.
const char* step_of_fp8(const AttentionCall& c) {
  if (c.fast) return kFp8Fast;
  const bool has_few_keys = c.head_dim == 128 && c.seqlen_kv <= 512;
  return c.lse != nullptr || has_few_keys ? kFp8InOneKernel : kFp8;
}

}  // namespace

double Estimate::time() const {
  return costs.launch + std::max(work.tiles_and_keys * costs.tile_and_keys, work.reading * costs.reading) +
         work.tiles * costs.tile + work.sharing * costs.sharing;
}

std::vector<Estimate> estimates(const AttentionCall& c, const Card& card) {
  const bool reads_memory = card.memory_bytes_per_us > 0 && !stay_in_l2(c, card);
  std::vector<Estimate> all;
  for (const Kernel& kernel : c.head_dim == 64 ? std::span<const Kernel>(kHeadDim64) : kHeadDim128) {
    if (!is_candidate(kernel, c, card)) continue;
    all.push_back({kernel.step, kernel.costs, work_of(kernel, c, card)});
    if (reads_memory) all.back().work.reading = bytes_read(kernel, c) / card.memory_bytes_per_us;
  }
  return all;
}

DefaultStep default_step(const AttentionCall& c, const Card& card) {
  if (c.backward) return {kBackward, ""};
  if (c.fp8_cache) return {kFp8Cache, ""};
  if (c.quantize) return {kQuantizes, ""};
  if (c.dtype == DType::kE4m3) return {step_of_fp8(c), ""};
  if (c.page_table.pages != nullptr) return {kFewRows, ""};
  DefaultStep least = std::ranges::min(estimates(c, card), {}, &Estimate::time).step;
  // The host does not know how long the sequences are. The step takes more CTAs then.
  const bool few_rows = least.step == kFewRows || least.step == kFewRowsDeep;
  if (few_rows && c.kv_lengths != nullptr && c.batch > 1) least = {kFewRows, ""};
  return least;
}

}  // namespace flashsteps
