// The covering sample covers: counted here from the axes themselves, not by the code that built it.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "harness/device/device_tensors.h"
#include "harness/problem/problem.h"
#include "harness/problem/tensors.h"
#include "harness/run/step_result.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

// The values of a problem on the axes, "axis=value".
std::vector<std::string> axes_of(const Problem& p) {
  const char* relation = p.seqlen_kv == p.seqlen_q  ? "equal"
                         : p.seqlen_kv == 40        ? "few"
                         : p.seqlen_kv == 1100      ? "long"
                         : p.seqlen_kv % 256 == 0   ? "round"
                         : p.seqlen_kv > p.seqlen_q ? "longer"
                                                    : "shorter";
  return {"seqlen_q=" + std::to_string(p.seqlen_q),
          std::string("kv=") + relation,
          std::string("mask=") + (p.causal ? "causal" : "full"),
          "kv_lengths=" + name(p.kv_lengths),
          "dtype=" + name(p.dtype),
          "head_dim=" + std::to_string(p.head_dim),
          "batch=" + std::to_string(p.batch),
          "heads=" + std::to_string(p.num_heads_q) + "/" + std::to_string(p.num_heads_kv),
          "layout=" + name(p.layout),
          "inputs=" + name(p.inputs),
          "softmax_scale=" + (p.given_scale == 0 ? "default" : nlohmann::json(p.given_scale).dump()),
          std::string("lse=") + (p.earlier ? "merged"
                                 : p.lse   ? "wanted"
                                           : "none"),
          "page_size=" + std::to_string(p.page_size)};
}

StepInfo with(bool fp32, bool unaligned_rows, bool pages = false) {
  StepInfo step{.title = "",
                .removes = "",
                .alignment_bytes = unaligned_rows ? 0 : 16,
                .merges = pages,
                .pages = pages};
  if (fp32) step.dtypes = {DType::kFp32, DType::kFp16, DType::kBf16};
  return step;
}

StepInfo with_e4m3_alone() {
  StepInfo step = with(false, false);
  step.dtypes = {DType::kE4m3};
  return step;
}

StepInfo with_fp8_cache() {
  StepInfo step = with(false, false, true);
  step.fp8_cache = true;
  return step;
}

StepInfo that_quantizes() {
  StepInfo step = with(false, false);
  step.quantizes = true;
  return step;
}

StepInfo that_goes_backward() {
  StepInfo step = with(true, true);
  step.backward = true;
  return step;
}

}  // namespace

TEST_CASE("every value of every axis appears, and every feasible pair of values") {
  for (const StepInfo& step :
       {with(false, false, true), with(false, true), with(true, false), with(true, true, true),
        with_e4m3_alone(), with_fp8_cache(), that_quantizes(), that_goes_backward()}) {
    const std::vector<Problem> sample = covering_sample(step);
    CHECK(sample.size() >= 60);
    CHECK(sample.size() <= (step.fp8_cache ? 160 : 150));  // it has more inputs
    std::vector<std::vector<std::string>> axes{
        {"seqlen_q=1", "seqlen_q=2", "seqlen_q=63", "seqlen_q=64", "seqlen_q=65", "seqlen_q=128",
         "seqlen_q=200", "seqlen_q=257", "seqlen_q=330"},
        {"kv=equal", "kv=longer", "kv=shorter", "kv=round", "kv=few", "kv=long"},
        {"mask=full", "mask=causal"},
        {"kv_lengths=full", "kv_lengths=random", "kv_lengths=zeros"},
        {},
        {"head_dim=64", "head_dim=128"},
        {"batch=1", "batch=2", "batch=3"},
        {"heads=2/2", "heads=4/2", "heads=4/1", "heads=8/1", "heads=6/2"},
        {"layout=bhsd", "layout=bshd", "layout=qkv", "layout=gapped", "layout=far"},
        {"inputs=normal", "inputs=sharp", "inputs=shifted", "inputs=structured", "inputs=offset",
         "inputs=ramps", "inputs=huge"},
        {"softmax_scale=default", "softmax_scale=1.0", "softmax_scale=0.05"},
        {"lse=wanted", "lse=none"}};
    for (const auto& [text, dtype] : kDTypeNames)
      if (step.dtypes.has(dtype)) axes[4].push_back("dtype=" + text);
    if (step.alignment_bytes == 0) axes[8].push_back("layout=odd");
    if (step.dtypes.has(DType::kE4m3))
      axes[9] = {"inputs=normal", "inputs=sharp",    "inputs=structured", "inputs=ramps",
                 "inputs=mean",   "inputs=outliers", "inputs=channels",   "inputs=needle"};
    if (step.fp8_cache) {
      std::erase(axes[8], "layout=qkv");
      for (const char* const inputs : {"mean", "outliers", "channels", "needle"})
        axes[9].push_back("inputs=" + std::string(inputs));
    }
    if (step.quantizes)
      axes[9] = {"inputs=normal",    "inputs=sharp", "inputs=structured", "inputs=ramps",
                 "inputs=mean",      "inputs=spike", "inputs=outliers",   "inputs=channels",
                 "inputs=zero_keys", "inputs=needle"};
    if (step.backward) {
      axes[0].resize(6);  // it has fp32: without tensor cores more would take too long
      axes[9].insert(axes[9].end(), {"inputs=mean", "inputs=outliers", "inputs=needle"});
      axes[11] = {"lse=wanted"};
    }
    if (step.pages) {
      axes[11].push_back("lse=merged");
      axes[3].push_back("kv_lengths=skewed");
      axes.push_back(
          {"page_size=0", "page_size=1", "page_size=16", "page_size=64", "page_size=128", "page_size=256"});
    }
    std::set<std::pair<std::string, std::string>> seen;
    for (const Problem& p : sample) {
      CHECK(shape_error(p).empty());
      CHECK(step.dtypes.has(p.dtype));
      CHECK(p.fp8_cache == step.fp8_cache);
      CHECK(p.quantize == step.quantizes);
      CHECK(p.backward == step.backward);
      const auto values = axes_of(p);
      for (const std::string& a : values)
        for (const std::string& b : values) seen.insert({a, b});
    }
    for (size_t a = 0; a < axes.size(); ++a) {
      for (size_t b = a + 1; b < axes.size(); ++b) {
        for (const std::string& x : axes[a]) {
          for (const std::string& y : axes[b]) {
            if (x == "seqlen_q=1" && y == "kv=shorter") continue;  // there is no shorter length
            if (x == "dtype=fp32" && (y == "inputs=shifted" || y == "inputs=offset")) continue;  // refused
            if (step.backward && x == "dtype=fp32" && y == "inputs=huge") continue;              // as well
            if (x == "kv_lengths=zeros" && y == "batch=1") continue;  // nothing would be computed
            if (x == "layout=qkv" && y.find("page_size=") == 0 && y != "page_size=0") continue;
            std::set<std::string> many{"seqlen_q=128", "seqlen_q=200", "seqlen_q=257", "seqlen_q=330"};
            if (step.backward) many.insert({"seqlen_q=63", "seqlen_q=64", "seqlen_q=65"});
            if (many.count(x) > 0 && y == "kv=long") continue;                       // too expensive
            if (x == "kv=long" && (y == "heads=8/1" || y == "heads=6/2")) continue;  // too
            INFO(x << " with " << y);
            CHECK(seen.count({x, y}) == 1);
          }
        }
      }
    }
  }
}

TEST_CASE("the sample is what the problem contract asks for") {
  const std::vector<Problem> sample = covering_sample(with(true, true));
  const auto some = [&](auto&& is_such) { return std::any_of(sample.begin(), sample.end(), is_such); };
  CHECK(some([](const Problem& p) { return p.seqlen_kv == p.seqlen_q + p.seqlen_q / 2 + 5; }));
  CHECK(some([](const Problem& p) { return p.seqlen_q > p.seqlen_kv; }));
  CHECK(some([](const Problem& p) {
    const std::vector<int> lengths = p.draw_kv_lengths();
    return std::count(lengths.begin(), lengths.end(), 0) > 0;
  }));
  // A multiple of 256 in full, of 128 only; more tiles than any ring has stages, with and without a ragged
  // end.
  for (const bool causal : {false, true}) {
    const auto full = [&](int unit, int rest) {
      return some([&](const Problem& p) {
        return p.causal == causal && p.kv_lengths == KvLengths::kFull && p.seqlen_kv % unit == rest;
      });
    };
    CHECK((full(256, 0) && full(256, 128)));
    CHECK(some([&](const Problem& p) { return p.causal == causal && p.draw_kv_lengths()[0] > 1024; }));
  }
}

TEST_CASE("the sample has what the newer steps are for") {
  StepInfo decode = with(false, false, true);
  decode.part = Part::kDecode;
  decode.purpose = Purpose::kDecode;
  decode.uses_counters = true;
  const std::vector<Problem> sample = covering_sample(decode);
  const auto some = [&](auto&& is_such) { return std::any_of(sample.begin(), sample.end(), is_such); };
  const auto is_decode = [](const Problem& p) { return p.seqlen_q <= 16; };

  // Dozens of sequences, of many lengths.
  CHECK(some([&](const Problem& p) {
    const std::vector<int> lengths = p.draw_kv_lengths();
    return is_decode(p) && p.batch > 32 && std::set(lengths.begin(), lengths.end()).size() > 24;
  }));
  for (const int group : {3, 5, 7, 12, 32})
    CHECK(some([&](const Problem& p) { return is_decode(p) && p.num_heads_q == group * p.num_heads_kv; }));
  // Of v33's 128 parts, all have a key; and several tiles of 16 packed rows share a head's.
  CHECK(
      some([](const Problem& p) { return p.num_sms >= 128 && p.num_rows() == 1 && p.seqlen_kv > 128 * 64; }));
  CHECK(some([&](const Problem& p) {
    const int rows = p.seqlen_q * p.num_heads_q / p.num_heads_kv,
              tiles = (rows + 15) / 16 * p.batch * p.num_heads_kv;
    return is_decode(p) && rows > 2 * 16 && p.batch > 1 && p.num_heads_kv > 1 && p.num_sms >= 4 * tiles &&
           p.seqlen_kv >= 4 * 64;
  }));
  CHECK(some([](const Problem& p) { return p.batch * p.num_heads_kv > kNumCounters; }));
  for (const int page_size : {2, 4, 8, 32, 512})
    CHECK(some([&](const Problem& p) { return p.page_size == page_size && p.batch > 1; }));
  for (const int spare : {0, 1, 2})
    CHECK(some([&](const Problem& p) {
      return p.page_size != 0 && p.max_pages() == (p.seqlen_kv + p.page_size - 1) / p.page_size + spare;
    }));

  CHECK(some([](const Problem& p) { return p.seqlen_q == 16 && p.seqlen_kv >= 17000; }));
  CHECK(some([](const Problem& p) { return p.seqlen_q > 2048 && p.seqlen_kv < 16; }));
}

TEST_CASE("the sample of FP8 has what shows sums with 14 bits, and rows that are as aligned as others") {
  const Step step{"", BackendKind::kEmulator, with_e4m3_alone(), nullptr};
  const std::vector<Problem> sample = covering_sample(step.info);
  for (const int head_dim : {64, 128})
    CHECK(std::ranges::any_of(sample, [&](const Problem& p) {
      return p.inputs == Inputs::kMean && p.head_dim == head_dim && p.seqlen_kv >= 4096;
    }));
  for (const Problem& p : sample) {
    INFO(p.label());
    CHECK(refusal(step, shape_of_call(p)) == "");
  }
}

TEST_CASE("the sample of a step without an LSE is like that of others, and asks for none") {
  StepInfo step = with_e4m3_alone();
  step.no_lse = true;
  const std::vector<Problem> sample = covering_sample(step);
  CHECK(sample.size() >= 60);
  for (const Problem& p : sample) {
    INFO(p.label());
    CHECK_FALSE(p.lse);
    CHECK(refusal({"", BackendKind::kEmulator, step, nullptr}, shape_of_call(p)) == "");
  }
  AttentionCall call = shape_of_call(sample[0]);
  float lse;
  call.lse = &lse;
  CHECK(refusal({"", BackendKind::kEmulator, step, nullptr}, call) ==
        "computes no log-sum-exp, and the call asks for it");
}

TEST_CASE("the sample fills pipelines, and tiles of each size that steps have") {
  StepInfo step = with(false, false);
  step.part = Part::kMmaSync;
  const std::vector<Problem> sample = covering_sample(step);
  const auto some = [&](auto&& is_such) { return std::any_of(sample.begin(), sample.end(), is_such); };
  CHECK(some([](const Problem& p) { return p.seqlen_q == 64 && p.seqlen_kv >= 17000; }));
  CHECK(some([](const Problem& p) { return p.seqlen_q > 2048 && p.seqlen_kv < 16; }));
  // Of each size of tile that steps have: less than a tile, one that is full, two, several, and six of which
  // the last one is ragged.
  for (const int tile : {64, 128, 192, 256}) {
    INFO(tile);
    const auto tiles = [&](const Problem& p) { return (p.seqlen_q + tile - 1) / tile; };
    CHECK(some([&](const Problem& p) { return p.seqlen_q < tile; }));
    CHECK(some([&](const Problem& p) { return p.seqlen_q == tile; }));
    CHECK(some([&](const Problem& p) { return tiles(p) == 2; }));
    CHECK(some([&](const Problem& p) { return tiles(p) > 2 && tiles(p) < 6; }));
    CHECK(some([&](const Problem& p) { return tiles(p) == 6 && p.seqlen_q % tile != 0; }));
  }
}

TEST_CASE("the sample of a step whose CTAs share tiles has what they meet there, with enough keys") {
  StepInfo step = with(false, false);
  step.workspace_bytes = [](const AttentionCall&) { return size_t{1}; };
  const std::vector<Problem> sample = covering_sample(step);
  const auto some = [&](auto&& is_such) {
    return std::ranges::any_of(sample, [&](const Problem& p) { return p.seqlen_kv > 5 * 128 && is_such(p); });
  };
  for (const int group : {3, 5, 7}) {
    INFO(group);
    CHECK(some([&](const Problem& p) { return p.num_heads_q == group * p.num_heads_kv; }));
  }
  CHECK(some([](const Problem& p) { return p.batch > 1 && p.kv_lengths == KvLengths::kRandom; }));
  CHECK(some([](const Problem& p) { return p.batch > 1 && p.kv_lengths == KvLengths::kZeros; }));
  CHECK(some([](const Problem& p) { return p.causal && p.seqlen_q > p.seqlen_kv; }));
}

TEST_CASE(
    "the sample's leaps meet each type and head dimension, in all rows, in half of them and in single ones") {
  std::set<std::tuple<DType, int>> met;
  std::map<DType, std::set<uint64_t>> patterns;
  for (const Problem& p : covering_sample(with(false, false))) {
    if (p.inputs != Inputs::kLeaps) continue;
    met.insert({p.dtype, p.head_dim});
    CHECK(p.num_heads_kv == 4);  // each leap
    CHECK(p.seqlen_kv > 2 * 128);
    for (int b = 0; b < p.batch; ++b) patterns[p.dtype].insert((b + p.head_dim / 128 + p.seed) % 4);
  }
  CHECK(met.size() == 4);
  CHECK((patterns[DType::kFp16].size() == 4 && patterns[DType::kBf16].size() == 4));
}

TEST_CASE("in layout far each tensor goes beyond 2^31 elements, by rows, by heads and by batches") {
  std::set<std::string> by;
  for (const Problem& p : covering_sample(with(false, false))) {
    if (p.layout != Layout::kFar) continue;
    const TensorPlan plan = plan_on_device(p);
    const auto look = [&](const Placement& t, int heads, int rows) {
      INFO(p.label());
      const int64_t far =
          std::max({(p.batch - 1) * t.batch_stride, (heads - 1) * t.head_stride, (rows - 1) * t.row_stride});
      if (p.batch * heads * rows > 1) CHECK(far >= int64_t(1) << 31);
      if ((p.batch - 1) * t.batch_stride == far) by.insert("batches");
      if ((heads - 1) * t.head_stride == far) by.insert("heads");
      if ((rows - 1) * t.row_stride == far) by.insert("rows");
    };
    look(plan.q, p.num_heads_q, p.seqlen_q);
    look(plan.k, p.num_heads_kv, p.seqlen_kv);
    look(plan.v, p.num_heads_kv, p.seqlen_kv);
    look(plan.o, p.num_heads_q, p.seqlen_q);
  }
  CHECK(by.size() == 3);
}

TEST_CASE("layout far needs more than 1 GiB, no other one does: so sanitize.py leaves it out") {
  for (const Problem& p : covering_sample(with(true, true))) {
    INFO(p.label());
    CHECK((total_bytes(p, plan_on_device(p)) > double(1 << 30)) == (p.layout == Layout::kFar));
  }
}

TEST_CASE("the sample is the same every time") {
  const auto a = covering_sample(with(true, false)), b = covering_sample(with(true, false));
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i].label() == b[i].label());
}
