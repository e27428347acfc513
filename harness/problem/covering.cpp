#include "harness/problem/covering.h"

#include <algorithm>
#include <functional>

#include "harness/base/random.h"

namespace flashsteps {
namespace {

constexpr size_t kMinProblems = 64;
// Tried for each place in the sample, each with a pair that is still missing; the one that brings most for
// its cost is kept.
constexpr int kCandidates = 400;

// What a value of an axis makes of a problem.
using Value = std::function<void(Problem&)>;
using Choice = std::vector<size_t>;  // per axis, which of its values

constexpr int kRound = 256, kLong = 1100;
constexpr int kMostRowsOfLong = 65;  // what makes it cheap

// The values are put into a problem in the order of the axes: how many keys depends on how many rows.
struct Axes {
  std::vector<std::vector<Value>> values;
  size_t batch_axis;

  Axes(bool with_fp32, bool with_unaligned_rows, bool with_pages) {
    // One tile of 64 rows and less, two, several; six, the last of them ragged.
    add(&Problem::seqlen_q, {1, 2, 63, 64, 65, 128, 200, 257, 330});
    // As many keys, more, fewer. A round number of them fills tiles of 64, 128 and 256 alike. A long one
    // keeps a pipeline going for 18 tiles.
    values.push_back({[](Problem& p) { p.seqlen_kv = p.seqlen_q; },
                      [](Problem& p) { p.seqlen_kv = 3 * p.seqlen_q + 5; },
                      [](Problem& p) { p.seqlen_kv = p.seqlen_q / 2; },
                      [](Problem& p) { p.seqlen_kv = (p.seqlen_q + kRound - 1) / kRound * kRound; },
                      [](Problem& p) { p.seqlen_kv = kLong; }});
    add(&Problem::causal, {false, true});
    std::vector<KvLengths> lengths{KvLengths::kFull, KvLengths::kRandom, KvLengths::kZeros};
    if (with_pages) lengths.push_back(KvLengths::kSkewed);
    add(&Problem::kv_lengths, lengths);
    std::vector<DType> dtypes{DType::kFp16, DType::kBf16};
    if (with_fp32) dtypes.push_back(DType::kFp32);
    add(&Problem::dtype, dtypes);
    add(&Problem::head_dim, {64, 128});
    batch_axis = values.size();
    add(&Problem::batch, {1, 2, 3});
    const auto heads = [](int q, int kv) {
      return [=](Problem& p) {
        p.num_heads_q = q;
        p.num_heads_kv = kv;
      };
    };
    values.push_back({heads(2, 2), heads(4, 2), heads(4, 1), heads(8, 1), heads(10, 2)});
    std::vector<Layout> layouts{Layout::kBhsd, Layout::kBshd, Layout::kQkv, Layout::kGapped, Layout::kFar};
    if (with_unaligned_rows) layouts.push_back(Layout::kOdd);
    add(&Problem::layout, layouts);
    std::vector<Inputs> inputs;
    // The steep ones are for timing: what they make a step do, the heads of ramps make it do as well.
    for (const auto& [text, value] : kInputsNames) {
      if (!is_steep(value)) inputs.push_back(value);
    }
    add(&Problem::inputs, inputs);
    add(&Problem::given_scale, {0, 1, 0.05});
    add(&Problem::lse, {true, false});
    if (with_pages) add(&Problem::page_size, {0, 1, 16, 64, 128, 256});
  }

  template <typename T>
  void add(T Problem::*member, const std::vector<T>& choices) {
    std::vector<Value>& axis = values.emplace_back();
    for (const T value : choices) axis.push_back([=](Problem& p) { p.*member = value; });
  }

  Problem build(const Choice& c, uint64_t seed = 1) const {
    Problem p;
    p.seed = seed;
    for (size_t a = 0; a < c.size(); ++a) values[a][c[a]](p);
    return p;
  }

  bool feasible(const Choice& c) const {
    const Problem p = build(c);
    if (!shape_error(p).empty()) return false;  // also where half of one row is no key
    if (p.batch == 1 && p.kv_lengths == KvLengths::kZeros) return false;  // nothing would be computed
    return !(p.seqlen_kv == kLong && p.seqlen_q > kMostRowsOfLong);
  }
};

// In products of two tiles of 64 x 64, and what a problem costs whatever its size.
double cost(const Problem& p) {
  const auto tiles = [](int rows) { return (rows + 63) / 64; };
  return 20 + double(p.batch) * p.num_heads_q * tiles(p.seqlen_q) * tiles(p.seqlen_kv) * p.head_dim / 64;
}

}  // namespace

std::vector<Problem> covering_sample(bool with_fp32, bool with_unaligned_rows, bool with_pages) {
  const Axes axes(with_fp32, with_unaligned_rows, with_pages);
  uint64_t draws = 0;
  const auto draw = [&](size_t below) { return random_bits(7, 0, draws++) % below; };

  // Everything that must meet: pairs of values of two axes that some problem can have.
  struct Pair {
    size_t a, i, b, j;
    bool is_in(const Choice& c) const { return c[a] == i && c[b] == j; }
  };
  std::vector<Pair> open;
  for (size_t a = 0; a < axes.values.size(); ++a) {
    for (size_t b = a + 1; b < axes.values.size(); ++b) {
      for (size_t i = 0; i < axes.values[a].size(); ++i) {
        for (size_t j = 0; j < axes.values[b].size(); ++j) {
          Choice c(axes.values.size(), 0);
          c[axes.batch_axis] = 1;  // zeros needs two
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
      for (const auto& axis : axes.values) c.push_back(draw(axis.size()));
      if (!open.empty()) {
        const Pair& wanted = open[draw(open.size())];
        c[wanted.a] = wanted.i;
        c[wanted.b] = wanted.j;
      }
      if (!axes.feasible(c)) continue;
      const auto fresh = std::ranges::count_if(open, [&](const Pair& p) { return p.is_in(c); });
      const double worth = (fresh + 0.01) / cost(axes.build(c));
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
