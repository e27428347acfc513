#include <algorithm>
#include <functional>
#include <utility>

#include "harness/base/random.h"
#include "harness/problem/problem.h"

namespace flashsteps {
namespace {

constexpr size_t kMinProblems = 64;
// Tried for each place in the sample, each with a pair that is still missing; the one that brings most for
// its cost is kept.
constexpr int kCandidates = 400;

// What a value of an axis makes of a problem.
using Value = std::function<void(Problem&)>;
using Choice = std::vector<size_t>;  // per axis, which of its values

constexpr int kRound = 256, kFew = 40, kLong = 1100;
constexpr int kMostHeadsOfLong = 4;  // what makes it cheap, with most_rows_of_long

// The memory part of the backward pass, with fp32: without tensor cores its five products take as long on the
// emulator as those of fifteen forward steps.
bool is_scalar_backward(const StepInfo& step) { return step.backward && step.dtypes.has(DType::kFp32); }

// The values are put into a problem in the order of the axes: how many keys depends on how many rows.
struct Axes {
  std::vector<std::vector<Value>> values;
  std::vector<DType> dtypes;
  size_t batch_axis;
  bool fp8_cache, quantize, backward;
  int most_rows_of_long;

  explicit Axes(const StepInfo& step)
      : fp8_cache(step.fp8_cache),
        quantize(step.quantizes),
        backward(step.backward),
        most_rows_of_long(is_scalar_backward(step) ? 2 : 65) {
    // One tile of 64 rows and less, two, several; six, the last of them ragged. Of longer tiles: see
    // more_rows().
    std::vector<int> rows{1, 2, 63, 64, 65, 128};
    if (!is_scalar_backward(step)) rows.insert(rows.end(), {200, 257, 330});
    add(&Problem::seqlen_q, rows);
    // As many keys, more, fewer, few. A round number of them fills tiles of 64, 128 and 256 alike. A long one
    // keeps a pipeline going for 18 tiles, or 9.
    values.push_back({[](Problem& p) { p.seqlen_kv = p.seqlen_q; },
                      [](Problem& p) { p.seqlen_kv = p.seqlen_q + p.seqlen_q / 2 + 5; },
                      [](Problem& p) { p.seqlen_kv = p.seqlen_q / 2; },
                      [](Problem& p) { p.seqlen_kv = (p.seqlen_q + kRound - 1) / kRound * kRound; },
                      [](Problem& p) { p.seqlen_kv = kFew; }, [](Problem& p) { p.seqlen_kv = kLong; }});
    add(&Problem::causal, {false, true});
    std::vector<KvLengths> lengths{KvLengths::kFull, KvLengths::kRandom, KvLengths::kZeros};
    if (step.pages) lengths.push_back(KvLengths::kSkewed);
    add(&Problem::kv_lengths, lengths);
    for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32, DType::kE4m3})
      if (step.dtypes.has(dtype)) dtypes.push_back(dtype);
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
    values.push_back({heads(2, 2), heads(4, 2), heads(4, 1), heads(8, 1), heads(6, 2)});
    std::vector<Layout> layouts{Layout::kBhsd, Layout::kBshd, Layout::kGapped, Layout::kFar};
    if (!fp8_cache) layouts.insert(layouts.begin() + 2, Layout::kQkv);
    if (step.alignment_bytes == 0) layouts.push_back(Layout::kOdd);
    add(&Problem::layout, layouts);
    std::vector<Inputs> inputs;
    // These need more keys than most problems have: see large_growth().
    for (const auto& [text, value] : kInputsNames) {
      const bool of_fp8 = value == Inputs::kMean || value == Inputs::kOutliers ||
                          value == Inputs::kChannels || value == Inputs::kNeedle;
      // Of a backward pass, too: in dP - D the mean of V cancels, and where one key has all the weight, all
      // does.
      const bool cancels = value == Inputs::kMean || value == Inputs::kOutliers || value == Inputs::kNeedle;
      if (of_fp8 && !(step.backward && cancels) && !step.dtypes.has(DType::kE4m3) && !fp8_cache && !quantize)
        continue;
      const bool of_scales = value == Inputs::kZeroKeys || value == Inputs::kSpike;
      if (of_scales && !quantize) continue;
      if (!is_steep(value) && value != Inputs::kLeaps) inputs.push_back(value);
    }
    add(&Problem::inputs, inputs);
    add(&Problem::given_scale, {0, 1, 0.05});
    add(&Problem::lse, step.no_lse     ? std::vector{false}
                       : step.backward ? std::vector{true}
                                       : std::vector{true, false});
    if (step.merges) values.back().push_back([](Problem& p) { p.earlier = true; });
    if (step.pages) add(&Problem::page_size, {0, 1, 16, 64, 128, 256});
  }

  template <typename T>
  void add(T Problem::*member, const std::vector<T>& choices) {
    std::vector<Value>& axis = values.emplace_back();
    for (const T value : choices) axis.push_back([=](Problem& p) { p.*member = value; });
  }

  Problem build(const Choice& c) const {
    Problem p{.fp8_cache = fp8_cache, .quantize = quantize, .backward = backward};
    for (size_t a = 0; a < c.size(); ++a) values[a][c[a]](p);
    return p;
  }

  bool feasible(const Choice& c) const {
    const Problem p = build(c);
    if (!shape_error(p).empty()) return false;  // also where half of one row is no key
    if (p.batch == 1 && p.kv_lengths == KvLengths::kZeros) return false;  // nothing would be computed
    return !(p.seqlen_kv == kLong && (p.seqlen_q > most_rows_of_long || p.num_heads_q > kMostHeadsOfLong));
  }
};

// In products of two tiles of 64 x 64, and what a problem costs whatever its size.
double cost(const Problem& p) {
  const auto tiles = [](int rows) { return (rows + 63) / 64; };
  return 20 + double(p.batch) * p.num_heads_q * tiles(p.seqlen_q) * tiles(p.seqlen_kv) * p.head_dim / 64;
}

// ---- What no pair of these values brings: each problem is there for what it alone has, and as small as it
// can be.

constexpr int kManySms = 132;  // as an H100's: among so many, few heads share out their keys

void few_queries(const StepInfo& step, std::vector<Problem>& sample) {
  const KvLengths kRandom = KvLengths::kRandom;
  // The other steps compute a whole tile for each query: one tile of keys is enough for them.
  const int few_keys = step.purpose == Purpose::kDecode ? 90 : 40;
  // More sequences than a warp has lanes, of different lengths.
  sample.push_back({.batch = 33, .seqlen_kv = few_keys, .kv_lengths = kRandom, .num_sms = kManySms});
  // One head of K and V for more query heads than a tile has rows; and other ratios that are no power of two.
  sample.push_back({.num_heads_q = 32, .seqlen_kv = few_keys, .dtype = DType::kBf16, .num_sms = kManySms});
  sample.push_back(
      {.batch = 2, .num_heads_q = 6, .num_heads_kv = 2, .seqlen_q = 3, .seqlen_kv = 70, .causal = true});
  sample.push_back({.num_heads_q = 5, .seqlen_q = 7, .seqlen_kv = 90, .head_dim = 128, .causal = true});
  sample.push_back(
      {.num_heads_q = 14, .num_heads_kv = 2, .seqlen_q = 2, .seqlen_kv = 66, .dtype = DType::kBf16});
  sample.push_back(
      {.num_heads_q = 12, .seqlen_q = 5, .seqlen_kv = few_keys, .causal = true, .num_sms = kManySms});
  if (step.purpose != Purpose::kDecode) return;
  // Several tiles of rows of each head, whose keys CTAs share.
  sample.push_back({.batch = 2,
                    .num_heads_q = 8,
                    .num_heads_kv = 2,
                    .seqlen_q = 9,
                    .seqlen_kv = 260,
                    .causal = true,
                    .kv_lengths = kRandom,
                    .num_sms = kManySms});
  // 130 parts of a row, or four times as many, where each warp leaves one.
  sample.push_back({.seqlen_kv = 8300, .num_sms = kManySms});
  // A tile of rows more than there are counters.
  if (step.uses_counters) sample.push_back({.batch = kNumCounters + 1, .seqlen_kv = 3});
}

void more_pages(std::vector<Problem>& sample) {
  for (const int page_size : {2, 4, 8, 32, 512})
    sample.push_back({.batch = 3,
                      .num_heads_q = 2,
                      .seqlen_q = page_size < 8 ? 1 : 5,
                      .seqlen_kv = 600,
                      .head_dim = page_size == 32 ? 128 : 64,
                      .causal = true,
                      .kv_lengths = KvLengths::kSkewed,
                      .page_size = page_size,
                      .num_sms = page_size == 4 ? 0 : kManySms});
}

// One full tile of 192 or 256 rows, six ragged ones of 128, 192 or 256, and many. Two have exactly 128 keys.
void more_rows(const StepInfo& step, std::vector<Problem>& sample) {
  if (is_scalar_backward(step)) return;  // its tiles are small
  sample.push_back({.seqlen_q = 2500, .seqlen_kv = 5});
  if (step.purpose == Purpose::kDecode) return;  // its tiles have 16 rows
  for (const auto& [rows, keys] : {std::pair{192, 128}, {256, 70}, {700, 128}, {1000, 70}, {1300, 70}})
    sample.push_back({.seqlen_q = rows, .seqlen_kv = keys, .causal = rows == 700});
}

// Tiles of 64 to 192 rows that several CTAs share, which takes more keys than most problems have: heads of K
// and V that 3, 5 or 7 query heads share, sequences of different lengths in the piece of a CTA, some without
// any key, and queries that see none.
void shared_tiles(std::vector<Problem>& sample) {
  sample.push_back({.batch = 3,
                    .num_heads_q = 6,
                    .num_heads_kv = 2,
                    .seqlen_q = 70,
                    .seqlen_kv = 1100,
                    .dtype = DType::kBf16,
                    .causal = true,
                    .kv_lengths = KvLengths::kRandom,
                    .num_sms = 20});
  sample.push_back({.batch = 5,
                    .num_heads_q = 5,
                    .seqlen_q = 14,
                    .seqlen_kv = 1500,
                    .head_dim = 128,
                    .kv_lengths = KvLengths::kZeros,
                    .num_sms = 12});
  sample.push_back({.num_heads_q = 7, .seqlen_q = 40, .seqlen_kv = 900, .causal = true, .num_sms = kManySms});
  sample.push_back({.batch = 2,
                    .num_heads_q = 3,
                    .seqlen_q = 800,
                    .seqlen_kv = 650,
                    .head_dim = 128,
                    .dtype = DType::kBf16,
                    .causal = true,
                    .num_sms = 20});
}

// A pipeline that fills its stages again and again: 133 tiles of 128 keys, for one tile of rows. The memory
// part has no pipeline, and v01 would need half a minute for 64 rows. In FP8 alone V has a mean, for both
// head_dims: only long sums of one sign show that FP8 products were summed with too few bits. And with some
// outliers, most of a row's weight lies in weights that are too small for the normal numbers of e4m3.
void many_keys(const StepInfo& step, std::vector<Problem>& sample) {
  const bool is_scalar = step.part == Part::kMemory || is_scalar_backward(step);
  const int rows = is_scalar ? 1 : step.purpose == Purpose::kDecode ? 16 : 64;
  if (step.backward) {
    // The loop goes through the queries. Of many keys there are many CTAs.
    sample.push_back({.seqlen_q = 8500, .seqlen_kv = rows});
    sample.push_back({.seqlen_q = rows, .seqlen_kv = 4200, .causal = true});
    return;
  }
  const bool of_fp8 = step.quantizes || (step.dtypes.has(DType::kE4m3) && !step.dtypes.has(DType::kFp16));
  sample.push_back({.seqlen_q = rows,
                    .seqlen_kv = 17000,
                    .causal = true,
                    .inputs = of_fp8 ? Inputs::kMean : Inputs::kNormal});
  if (!of_fp8) return;
  sample.push_back({.seqlen_q = rows, .seqlen_kv = 4096, .head_dim = 128, .inputs = Inputs::kMean});
  sample.push_back({.seqlen_q = rows, .seqlen_kv = 17000, .inputs = Inputs::kOutliers});
}

// Q in bf16 with elements beyond FP16, for steps whose products may be in FP16.
void beyond_fp16(std::vector<Problem>& sample) {
  sample.push_back({.num_heads_q = 4,
                    .seqlen_q = 3,
                    .seqlen_kv = 330,
                    .head_dim = 128,
                    .dtype = DType::kBf16,
                    .inputs = Inputs::kHuge,
                    .given_scale = 1e-5});
}

// Scores that outgrow what came before, from the first key on or from the last. Of each type, `leaps` has
// three patterns of rows at D = 64 and the fourth at D = 128: that is the seed's doing, so these four stay
// together.
void large_growth(std::vector<Problem>& sample) {
  for (const int head_dim : {64, 128}) {
    for (const DType dtype : {DType::kFp16, DType::kBf16})
      sample.push_back({.batch = head_dim == 64 ? 3 : 1,
                        .num_heads_q = 4,
                        .num_heads_kv = 4,
                        .seqlen_q = 64,
                        .seqlen_kv = 260,
                        .head_dim = head_dim,
                        .dtype = dtype,
                        .inputs = Inputs::kLeaps});
  }
  for (const Inputs inputs : {Inputs::kRising, Inputs::kFalling}) {
    for (const DType dtype : {DType::kFp16, DType::kBf16})
      sample.push_back({.num_heads_q = 2,
                        .seqlen_q = 65,
                        .seqlen_kv = 330,
                        .head_dim = inputs == Inputs::kFalling ? 128 : 64,
                        .dtype = dtype,
                        .causal = dtype == DType::kFp16,
                        .inputs = inputs});
  }
}

}  // namespace

std::vector<Problem> covering_sample(const StepInfo& step) {
  const Axes axes(step);
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
          c[0] = 1;                // half of one row is no key
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
    sample.push_back(axes.build(best));
  }
  few_queries(step, sample);
  if (step.pages) more_pages(sample);
  more_rows(step, sample);
  many_keys(step, sample);
  large_growth(sample);
  if (step.fp8_cache) beyond_fp16(sample);
  if (step.workspace_bytes != nullptr && step.purpose != Purpose::kDecode && !step.backward)
    shared_tiles(sample);
  // Nearly all P of a row are small numbers of e4m3, below 2^-6, and together they count.
  if (axes.dtypes.front() == DType::kE4m3 && !step.fast)
    sample.push_back({.seqlen_q = 64, .seqlen_kv = 17000, .inputs = Inputs::kSpike, .given_scale = 0.0104});
  // Those after the pairs name 16-bit types. A step that has not these gets them in its own, but for inputs
  // that are not for it.
  for (Problem& p : sample) {
    if (!step.dtypes.has(p.dtype)) p.dtype = axes.dtypes.front();
    p.fast = step.fast;
    p.lse &= !step.no_lse;
    p.fp8_cache = step.fp8_cache;
    p.quantize = step.quantizes;
    p.backward = step.backward;
  }
  std::erase_if(sample, [](const Problem& p) { return !shape_error(p).empty(); });
  for (size_t i = 0; i < sample.size(); ++i) sample[i].seed = i + 1;
  return sample;
}

}  // namespace flashsteps
