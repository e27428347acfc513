// The covering sample covers: counted here from the axes themselves, not by the code that built it.
#include <set>

#include "harness/src/covering.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

TEST_CASE("every value of every axis appears, and every feasible pair of values") {
  for (const bool with_fp32 : {false, true}) {
    for (const bool with_unaligned : {false, true}) {
      const std::vector<Problem> sample = covering_sample(with_fp32, with_unaligned);
      CHECK(sample.size() >= 60);
      CHECK(sample.size() <= 100);
      std::vector<std::vector<std::string>> axes{
          {"seqlen_q=1", "seqlen_q=2", "seqlen_q=63", "seqlen_q=64", "seqlen_q=65", "seqlen_q=127",
           "seqlen_q=200", "seqlen_q=257"},
          {"kv=equal", "kv=longer", "kv=shorter"},
          {"mask=full", "mask=causal"},
          {"kv_lengths=full", "kv_lengths=random", "kv_lengths=zeros"},
          {"dtype=fp16", "dtype=bf16"},
          {"head_dim=64", "head_dim=128"},
          {"heads=MHA", "heads=GQA", "heads=MQA"},
          {"layout=bhsd", "layout=bshd", "layout=qkv", "layout=gapped"},
          {"inputs=normal", "inputs=sharp", "inputs=shifted", "inputs=structured"}};
      if (with_fp32) axes[4].push_back("dtype=fp32");
      if (with_unaligned) axes[7].push_back("layout=odd");
      std::set<std::pair<std::string, std::string>> seen;
      for (const Problem& p : sample) {
        CHECK(shape_error(p).empty());
        const auto values = covering_axes(p);
        for (const std::string& a : values)
          for (const std::string& b : values) seen.insert({a, b});
      }
      for (size_t a = 0; a < axes.size(); ++a) {
        for (size_t b = a + 1; b < axes.size(); ++b) {
          for (const std::string& x : axes[a]) {
            for (const std::string& y : axes[b]) {
              if (x == "seqlen_q=1" && y == "kv=shorter") continue;      // there is no shorter length
              if (x == "dtype=fp32" && y == "inputs=shifted") continue;  // refused, see problem.cpp
              INFO(x << " with " << y);
              CHECK(seen.count({x, y}) == 1);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the sample is what the problem contract asks for") {
  bool triple_plus_five = false, gqa4 = false, zero_length = false, shorter = false;
  for (const Problem& p : covering_sample(true, true)) {
    triple_plus_five = triple_plus_five || p.seqlen_kv == 3 * p.seqlen_q + 5;
    gqa4 = gqa4 || (p.num_heads_q == 4 * p.num_heads_kv && p.num_heads_kv > 1);
    shorter = shorter || p.seqlen_q > p.seqlen_kv;
    for (const int n : p.draw_kv_lengths()) zero_length = zero_length || n == 0;
  }
  CHECK(triple_plus_five);
  CHECK(gqa4);
  CHECK(zero_length);
  CHECK(shorter);
}

TEST_CASE("the sample is the same every time") {
  const auto a = covering_sample(true, false), b = covering_sample(true, false);
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i].label() == b[i].label());
}
