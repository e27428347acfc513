#include "harness/src/covering.h"

#include <algorithm>
#include <set>

#include "harness/src/random.h"

namespace flashsteps {
namespace {

constexpr size_t kMinProblems = 64;
constexpr int kCandidates =
    60;  // random problems tried for each place in the sample; the most useful one is kept

// A problem as one choice per axis. Index into the lists below.
enum Axis { kSeqlen, kRelation, kMask, kLengths, kType, kHeadDim, kHeads, kLayout, kInputs, kNumAxes };
using Choice = std::vector<int>;

const std::vector<int> kSeqlens{1, 2, 63, 64, 65, 127, 200, 257};
enum Relation { kEqual, kLongerKv, kShorterKv };

struct Heads {
  int q, kv;
  const char* what;
};
const std::vector<Heads> kHeadChoices{{2, 2, "MHA"}, {8, 2, "GQA 4:1"}, {3, 1, "MQA"}};

Problem build(const Choice& c, const std::vector<DType>& dtypes, const std::vector<Layout>& layouts,
              uint64_t seed) {
  Problem p;
  p.seqlen_q = kSeqlens[c[kSeqlen]];
  p.seqlen_kv = c[kRelation] == kEqual      ? p.seqlen_q
                : c[kRelation] == kLongerKv ? 3 * p.seqlen_q + 5
                                            : std::max(1, p.seqlen_q / 2);
  p.causal = c[kMask] == 1;
  p.kv_lengths = KvLengths(c[kLengths]);
  p.dtype = dtypes[c[kType]];
  p.head_dim = c[kHeadDim] == 0 ? 64 : 128;
  p.num_heads_q = kHeadChoices[c[kHeads]].q;
  p.num_heads_kv = kHeadChoices[c[kHeads]].kv;
  p.layout = layouts[c[kLayout]];
  p.inputs = Inputs(c[kInputs]);
  p.seed = seed;
  // With lengths, a second batch: batch 0 of `zeros` has no key at all and would test nothing else.
  p.batch = p.kv_lengths == KvLengths::kFull ? 1 + int(hash64(seed) % 2) : 2;
  return p;
}

bool feasible(const Choice& c, const std::vector<DType>& dtypes) {
  if (kSeqlens[c[kSeqlen]] == 1 && c[kRelation] == kShorterKv) return false;  // there is no shorter length
  return !(dtypes[c[kType]] == DType::kFp32 && Inputs(c[kInputs]) == Inputs::kShifted);
}

using Pair = std::pair<std::string, std::string>;
std::vector<Pair> pairs_of(const Problem& p) {
  const std::vector<std::string> axes = covering_axes(p);
  std::vector<Pair> pairs;
  for (size_t i = 0; i < axes.size(); ++i)
    for (size_t j = i + 1; j < axes.size(); ++j) pairs.emplace_back(axes[i], axes[j]);
  return pairs;
}

}  // namespace

std::vector<std::string> covering_axes(const Problem& p) {
  const char* relation = p.seqlen_kv == p.seqlen_q  ? "equal"
                         : p.seqlen_kv > p.seqlen_q ? "longer"
                                                    : "shorter";
  const char* heads = p.num_heads_kv == p.num_heads_q ? "MHA" : p.num_heads_kv == 1 ? "MQA" : "GQA";
  return {"seqlen_q=" + std::to_string(p.seqlen_q),
          std::string("kv=") + relation,
          std::string("mask=") + (p.causal ? "causal" : "full"),
          "kv_lengths=" + name(p.kv_lengths),
          "dtype=" + name(p.dtype),
          "head_dim=" + std::to_string(p.head_dim),
          std::string("heads=") + heads,
          "layout=" + name(p.layout),
          "inputs=" + name(p.inputs)};
}

std::vector<Problem> covering_sample(bool with_fp32, bool with_unaligned_rows) {
  std::vector<DType> dtypes{DType::kFp16, DType::kBf16};
  if (with_fp32) dtypes.push_back(DType::kFp32);
  std::vector<Layout> layouts{Layout::kBhsd, Layout::kBshd, Layout::kQkv, Layout::kGapped};
  if (with_unaligned_rows) layouts.push_back(Layout::kOdd);
  const std::vector<size_t> sizes{
      kSeqlens.size(), 3, 2, 3, dtypes.size(), 2, kHeadChoices.size(), layouts.size(), inputs_names().size()};

  // Everything that must meet.
  std::set<Pair> open;
  for (int a = 0; a < kNumAxes; ++a) {
    for (int b = a + 1; b < kNumAxes; ++b) {
      for (size_t i = 0; i < sizes[a]; ++i) {
        for (size_t j = 0; j < sizes[b]; ++j) {
          Choice c(kNumAxes, 0);
          c[a] = int(i);
          c[b] = int(j);
          if (!feasible(c, dtypes)) continue;
          const std::vector<std::string> axes = covering_axes(build(c, dtypes, layouts, 1));
          open.insert({axes[a], axes[b]});
        }
      }
    }
  }

  std::vector<Problem> sample;
  uint64_t draw = 0;
  while (!open.empty() || sample.size() < kMinProblems) {
    Problem best;
    size_t best_new = 0;
    bool found = false;
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      Choice c;
      for (int axis = 0; axis < kNumAxes; ++axis) c.push_back(int(random_bits(7, axis, draw) % sizes[axis]));
      ++draw;
      if (!feasible(c, dtypes)) continue;
      const Problem problem = build(c, dtypes, layouts, sample.size() + 1);
      size_t fresh = 0;
      for (const Pair& pair : pairs_of(problem)) fresh += open.count(pair);
      if (!found || fresh > best_new) {
        best = problem;
        best_new = fresh;
        found = true;
      }
    }
    // A round that brings nothing new is only worth a place while the sample is still too small.
    if (!found || (best_new == 0 && sample.size() >= kMinProblems)) continue;
    for (const Pair& pair : pairs_of(best)) open.erase(pair);
    sample.push_back(best);
  }
  return sample;
}

}  // namespace flashsteps
