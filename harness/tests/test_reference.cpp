// The reference against attention written down naively, and the choice of rows.
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "harness/base/element.h"
#include "harness/judge/reference.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

namespace {

double element(const Problem& p, const void* row, int d) {
  return load_element(p.dtype, static_cast<const char*>(row) + d * element_bytes(p.dtype));
}

}  // namespace

TEST_CASE("the reference is attention") {
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    for (const bool causal : {false, true}) {
      for (const Inputs inputs : {Inputs::kNormal, Inputs::kSharp, Inputs::kStructured}) {
        Problem p;
        p.batch = 2;
        p.num_heads_q = 8;
        p.num_heads_kv = 4;
        p.seqlen_q = 21;
        p.seqlen_kv = 13;
        p.dtype = dtype;
        p.causal = causal;
        p.kv_lengths = KvLengths::kZeros;
        p.inputs = inputs;
        p.layout = Layout::kOdd;
        const Workload w(p);
        const auto rows = reference_rows(w, choose_rows(p));
        REQUIRE(rows.size() == size_t(p.num_rows()));
        double worst = 0, worst_lse = 0;
        for (const ReferenceRow& row : rows) {
          const auto [b, h, i] = std::tuple(row.id.b, row.id.h, row.id.i);
          const int kv_len = w.kv_lengths()[b];
          // softmax written with plain exp and no maximum: fine for scores of this size, and nothing like the
          // code.
          std::vector<double> o(p.head_dim, 0.0);
          double sum = 0;
          for (int j = 0; j < kv_len; ++j) {
            if (causal && j > i + kv_len - p.seqlen_q) continue;
            double score = 0;
            for (int d = 0; d < p.head_dim; ++d)
              score += element(p, w.q_row({b, h, i}), d) * element(p, w.k_row({b, h / 2, j}), d);
            const double weight = std::exp(score / std::sqrt(double(p.head_dim)));
            sum += weight;
            for (int d = 0; d < p.head_dim; ++d) o[d] += weight * element(p, w.v_row({b, h / 2, j}), d);
          }
          if (sum == 0) {
            CHECK(row.visible_keys == 0);
            CHECK((std::isinf(row.lse) && row.lse < 0));
            for (const double x : row.o) CHECK(x == 0);
            continue;
          }
          for (int d = 0; d < p.head_dim; ++d) worst = std::max(worst, std::abs(row.o[d] - o[d] / sum));
          worst_lse = std::max(worst_lse, std::abs(row.lse - std::log(sum)));
        }
        CHECK(worst < 3e-6);
        CHECK(worst_lse < 3e-6);
      }
    }
  }
}

TEST_CASE("large problems are sampled: edges of one head, a spread over all heads") {
  Problem p;
  p.batch = 2;
  p.num_heads_q = p.num_heads_kv = 16;
  p.seqlen_q = p.seqlen_kv = 16384;
  p.head_dim = 128;
  const std::vector<RowId> rows = choose_rows(p);
  CHECK(rows.size() == 1024);
  std::set<std::pair<int, int>> heads;
  std::set<std::tuple<int, int, int>> distinct;
  std::map<std::pair<int, int>, std::set<int>> by_head;
  for (const RowId& r : rows) {
    heads.insert({r.b, r.h});
    distinct.insert({r.b, r.h, r.i});
    by_head[{r.b, r.h}].insert(r.i);
  }
  CHECK(distinct.size() == rows.size());
  CHECK(heads.size() == 32);
  bool some_head_has_all_edges = false;
  for (const auto& [head, set] : by_head) {
    bool all = set.count(0) && set.count(p.seqlen_q - 1);
    for (int edge = 64; edge < p.seqlen_q; edge += 64) all = all && set.count(edge - 1) && set.count(edge);
    some_head_has_all_edges = some_head_has_all_edges || all;
  }
  CHECK(some_head_has_all_edges);
  // Longer still: never more than the limit.
  p.seqlen_q = p.seqlen_kv = 100000;
  CHECK(choose_rows(p).size() == 1024);
}

TEST_CASE("the structured heads have their patterns") {
  Problem p;
  p.num_heads_q = p.num_heads_kv = 4;
  p.seqlen_q = p.seqlen_kv = 256;
  p.inputs = Inputs::kStructured;
  const Workload w(p);
  const auto score = [&](int h, int i, int j) {
    double s = 0;
    for (int d = 0; d < p.head_dim; ++d)
      s += element(p, w.q_row({0, h, i}), d) * element(p, w.k_row({0, h, j}), d);
    return s / std::sqrt(double(p.head_dim));
  };
  CHECK(score(0, 100, 100) > score(0, 100, 130) + 3);            // local
  CHECK(score(1, 100, 100 - 32) > score(1, 100, 100 - 25) + 3);  // strided by 16
  CHECK(score(2, 100, 64) > score(2, 100, 70) + 3);              // anchors at multiples of 64
  CHECK(score(3, 100, 97) > score(3, 100, 60) + 3);              // blocks of 32
}
