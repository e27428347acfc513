#include "harness/library/default_step.h"

#include <algorithm>
#include <cstdint>

namespace flashsteps {
namespace {

// Times are in units: what an SM takes for 128 rows and 128 keys.
constexpr int kTile = 128;

// v38's tiles are those of v27's some_keys: where many_keys is faster, v38 needs so many times as long.
constexpr double kLoop = 1.1;

// What it costs a CTA to share a tile: to write its part of O, to be counted, to wait and to merge. By trials
// on an H200.
constexpr double kSharing = 4;

int64_t tiles_of(int64_t n) { return (n + kTile - 1) / kTile; }

// Of a tile of rows, in the mean. With a causal mask the first queries see fewer keys.
double mean_key_tiles(const AttentionCall& c) {
  const double all = double(std::max<int64_t>(1, tiles_of(c.seqlen_kv)));
  const double fewer = c.causal ? double(std::min(c.seqlen_q, c.seqlen_kv)) / kTile / 2 : 0;
  return std::max(1.0, all - fewer);
}

// v27: each tile of queries has one CTA. With a causal mask a counter deals tiles out, the longest first.
double time_of_whole_tiles(const AttentionCall& c, int num_sms) {
  const int64_t tiles = c.batch * c.num_heads_q * tiles_of(c.seqlen_q);
  const double longest = double(std::max<int64_t>(1, tiles_of(c.seqlen_kv)));
  if (!c.causal) return double((tiles + num_sms - 1) / num_sms) * longest;
  return std::max(longest, double(tiles) * mean_key_tiles(c) / num_sms);
}

// v38: the rows of all heads that share K and V are packed, and each CTA has an equal share of all units.
double time_of_even_shares(const AttentionCall& c, int num_sms) {
  const int64_t rows = int64_t(c.seqlen_q) * (c.num_heads_q / c.num_heads_kv);
  const double units = double(c.batch * c.num_heads_kv * tiles_of(rows)) * mean_key_tiles(c);
  const bool shares = c.seqlen_kv > kTile;  // a tile of keys is not divided
  return std::max(1.0, units / num_sms) * kLoop + (shares ? kSharing : 0);
}

// Elements of S in v27's tiles of block_m x block_n, also where they have no query or no key. One tile of 192
// rows holds 130 queries, where two of 128 are half empty.
int64_t places(const AttentionCall& c, int64_t block_m, int64_t block_n) {
  return (c.seqlen_q + block_m - 1) / block_m * block_m * ((c.seqlen_kv + block_n - 1) / block_n * block_n);
}

}  // namespace

DefaultStep default_step(const AttentionCall& c, int num_sms) {
  // Up to 16 rows of a head of K and V are a tile of mma.sync, and memory is what limits them.
  const int64_t rows = int64_t(c.seqlen_q) * (c.num_heads_q / c.num_heads_kv);
  if (c.page_table.pages != nullptr || rows <= 16) return {"v36_stream_k", ""};
  if (time_of_even_shares(c, num_sms) < time_of_whole_tiles(c, num_sms)) return {"v38_packed_rows", ""};
  const bool prefers_192 =
      c.head_dim == 128 && c.seqlen_kv <= 1024 && 5 * places(c, 192, 64) <= 4 * places(c, 128, 128);
  return {"v27_tile_shapes", prefers_192 ? "many_keys" : ""};
}

}  // namespace flashsteps
