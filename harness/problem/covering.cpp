#include "harness/problem/covering.h"

#include <algorithm>

#include "harness/base/random.h"

namespace flashsteps {
namespace {

constexpr size_t kMinProblems = 64;
// Tried for each place in the sample, each with a pair that is still missing; the one that brings most for
// its cost is kept.
constexpr int kCandidates = 400;

// A problem as one choice per axis, an index into what follows.
enum Axis {
  kSeqlen,
  kRelation,
  kMask,
  kLengths,
  kType,
  kHeadDim,
  kBatch,
  kHeads,
  kLayout,
  kInputs,
  kScale,
  kLse,
  kNumAxes
};
using Choice = std::vector<int>;

// One tile of 64 rows and less, two, several; six, the last of them ragged.
const std::vector<int> kSeqlens{1, 2, 63, 64, 65, 128, 200, 257, 330};
// A round number of keys fills tiles of 64, 128 and 256 alike. A long one keeps a pipeline going for 18
// tiles.
enum Relation { kEqual, kLongerKv, kShorterKv, kRoundKv, kLongKv, kNumRelations };
constexpr int kRound = 256, kLong = 1100;
constexpr int kMostRowsOfLong = 65;  // what makes it cheap

struct Heads {
  int q, kv;
};
const std::vector<Heads> kHeadChoices{{2, 2}, {4, 2}, {4, 1}, {8, 1}, {10, 2}};
const std::vector<double> kScales{0, 1, 0.05};

int keys(int seqlen_q, Relation relation) {
  switch (relation) {
    case kLongerKv:
      return 3 * seqlen_q + 5;
    case kShorterKv:
      return std::max(1, seqlen_q / 2);
    case kRoundKv:
      return (seqlen_q + kRound - 1) / kRound * kRound;
    case kLongKv:
      return kLong;
    default:
      return seqlen_q;
  }
}

struct Axes {
  std::vector<DType> dtypes{DType::kFp16, DType::kBf16};
  std::vector<Layout> layouts{Layout::kBhsd, Layout::kBshd, Layout::kQkv, Layout::kGapped, Layout::kFar};
  std::vector<int> sizes;  // of each axis: how many values

  Axes(bool with_fp32, bool with_unaligned_rows) {
    if (with_fp32) dtypes.push_back(DType::kFp32);
    if (with_unaligned_rows) layouts.push_back(Layout::kOdd);
    sizes = {int(kSeqlens.size()),
             kNumRelations,
             2,
             3,
             int(dtypes.size()),
             2,
             3,
             int(kHeadChoices.size()),
             int(layouts.size()),
             int(inputs_names().size()),
             int(kScales.size()),
             2};
  }

  Problem build(const Choice& c, uint64_t seed) const {
    Problem p;
    p.seqlen_q = kSeqlens[c[kSeqlen]];
    p.seqlen_kv = keys(p.seqlen_q, Relation(c[kRelation]));
    p.causal = c[kMask] == 1;
    p.kv_lengths = KvLengths(c[kLengths]);
    p.dtype = dtypes[c[kType]];
    p.head_dim = c[kHeadDim] == 0 ? 64 : 128;
    p.batch = c[kBatch] + 1;
    p.num_heads_q = kHeadChoices[c[kHeads]].q;
    p.num_heads_kv = kHeadChoices[c[kHeads]].kv;
    p.layout = layouts[c[kLayout]];
    p.inputs = Inputs(c[kInputs]);
    p.given_scale = kScales[c[kScale]];
    p.lse = c[kLse] == 0;
    p.seed = seed;
    return p;
  }

  bool feasible(const Choice& c) const {
    const Problem p = build(c, 1);
    if (!shape_error(p).empty()) return false;
    if (p.seqlen_q == 1 && c[kRelation] == kShorterKv) return false;      // there is no shorter length
    if (p.batch == 1 && p.kv_lengths == KvLengths::kZeros) return false;  // nothing would be computed
    return !(c[kRelation] == kLongKv && p.seqlen_q > kMostRowsOfLong);
  }
};

// In products of two tiles of 64 x 64, and what a problem costs whatever its size.
double cost(const Problem& p) {
  const auto tiles = [](int rows) { return (rows + 63) / 64; };
  return 20 + double(p.batch) * p.num_heads_q * tiles(p.seqlen_q) * tiles(p.seqlen_kv) * p.head_dim / 64;
}

}  // namespace

std::vector<Problem> covering_sample(bool with_fp32, bool with_unaligned_rows) {
  const Axes axes(with_fp32, with_unaligned_rows);
  uint64_t draws = 0;
  const auto draw = [&](int below) { return int(random_bits(7, 0, draws++) % uint64_t(below)); };

  // Everything that must meet: pairs of values of two axes that some problem can have.
  struct Pair {
    int a, i, b, j;
    bool is_in(const Choice& c) const { return c[a] == i && c[b] == j; }
  };
  std::vector<Pair> open;
  for (int a = 0; a < kNumAxes; ++a) {
    for (int b = a + 1; b < kNumAxes; ++b) {
      for (int i = 0; i < axes.sizes[a]; ++i) {
        for (int j = 0; j < axes.sizes[b]; ++j) {
          Choice c(kNumAxes, 0);
          c[kBatch] = 1;  // zeros needs two
          c[a] = i;
          c[b] = j;
          if (axes.feasible(c)) open.push_back({a, i, b, j});
        }
      }
    }
  }

  std::vector<Problem> sample;
  while (!open.empty() || sample.size() < kMinProblems) {
    Choice best;
    double best_worth = -1;
    for (int candidate = 0; candidate < kCandidates || best_worth < 0; ++candidate) {
      Choice c;
      for (const int size : axes.sizes) c.push_back(draw(size));
      if (!open.empty()) {
        const Pair& wanted = open[draw(int(open.size()))];
        c[wanted.a] = wanted.i;
        c[wanted.b] = wanted.j;
      }
      if (!axes.feasible(c)) continue;
      const auto fresh = std::ranges::count_if(open, [&](const Pair& p) { return p.is_in(c); });
      const double worth = (fresh + 0.01) / cost(axes.build(c, 1));
      if (worth <= best_worth) continue;
      best = c;
      best_worth = worth;
    }
    std::erase_if(open, [&](const Pair& p) { return p.is_in(best); });
    sample.push_back(axes.build(best, sample.size() + 1));
  }
  return sample;
}

}  // namespace flashsteps
