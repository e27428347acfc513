// The judge, on outputs made by hand: what is right passes, and each thing that can be wrong is named.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "harness/base/element.h"
#include "harness/judge/gates.h"
#include "harness/judge/judge.h"
#include "harness/judge/validate.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

struct Case {
  explicit Case(const Problem& problem) : Case(Workload(problem)) {}
  explicit Case(Workload made)
      : workload(std::move(made)),
        reference(reference_rows(workload, choose_rows(workload.problem()))),
        outputs(workload.problem()) {
    scale_all(1);
    for (const ReferenceRow& row : reference) set_lse(row.id, float(row.lse));
  }
  // What is right, times this.
  void scale_row(const RowId& id, double factor) {
    const auto row = std::ranges::find(reference, id, &ReferenceRow::id);
    for (int d = 0; d < workload.problem().head_dim; ++d) store(id, d, float(row->o[d] * factor));
  }
  void scale_all(double factor) {
    for (const ReferenceRow& row : reference) scale_row(row.id, factor);
  }
  char* element(const RowId& id, int d) {
    const auto* row = static_cast<const char*>(outputs.row(id));
    return const_cast<char*>(row) + d * element_bytes(output_type(workload.problem().dtype));
  }
  void store(const RowId& id, int d, float value) {
    store_element(output_type(workload.problem().dtype), element(id, d), value);
  }
  void set_lse(const RowId& id, float value) {
    const Problem& p = workload.problem();
    const int64_t index = kGuardElements + (int64_t(id.b) * p.num_heads_q + id.h) * p.seqlen_q + id.i;
    std::memcpy(outputs.lse.data() + index * 4, &value, 4);
  }
  Validation judged() { return judge(workload, reference, outputs); }

  Workload workload;
  std::vector<ReferenceRow> reference;
  Outputs outputs;
};

Problem problem(DType dtype = DType::kFp16) {
  Problem p{.batch = 2,
            .num_heads_q = 2,
            .num_heads_kv = 2,
            .seqlen_q = 70,
            .seqlen_kv = 90,
            .dtype = dtype,
            .kv_lengths = KvLengths::kZeros,
            .layout = Layout::kGapped};
  return p;
}

bool has(const Validation& v, const std::string& text) { return v.message.find(text) != std::string::npos; }

// Kernels as people get them wrong.
enum class Mistake {
  kNone,
  kQRounded,       // scaled, then rounded to the type
  kScoresRounded,  // to the type
  kLseRounded,     // to the type
  kNoScale,
  kKTransposed,  // every 8x8 block
  kKeyTooMany,   // on the diagonal
  kKeyTooFew,
  kLastTileDropped,
  kONotRescaled,
  kSumNotRescaled,
};

Validation judge_mistake(const Problem& p, Mistake mistake) {
  Case c(p);
  const int head_dim = p.head_dim;
  const double log2e = 1.4426950408889634, scale = mistake == Mistake::kNoScale ? 1 : p.softmax_scale();
  const auto load = [&](const void* row) {
    std::vector<float> values(head_dim);
    load_elements(p.dtype, row, head_dim, values.data());
    return values;
  };
  for (const ReferenceRow& row : c.reference) {
    const RowId kv{row.id.b, row.id.h * p.num_heads_kv / p.num_heads_q, 0};
    const std::vector<float> q = load(c.workload.q_row(row.id));
    int visible = row.visible_keys;
    if (p.causal && mistake == Mistake::kKeyTooMany) visible = std::min(visible + 1, p.seqlen_kv);
    if (p.causal && mistake == Mistake::kKeyTooFew) visible -= 1;
    const int num_tiles = (visible + 63) / 64 - (mistake == Mistake::kLastTileDropped && visible > 64);
    double row_max = -INFINITY, row_sum = 0;
    std::vector<double> o(head_dim);
    for (int tile = 0; tile < num_tiles; ++tile) {
      std::vector<double> scores;
      double new_max = row_max;
      for (int key = tile * 64; key < std::min(visible, tile * 64 + 64); ++key) {
        double score = 0;
        for (int d = 0; d < head_dim; ++d) {
          RowId from{kv.b, kv.h, key};
          int column = d;
          if (mistake == Mistake::kKTransposed) {
            from.i = std::min(key / 8 * 8 + d % 8, p.seqlen_kv - 1);
            column = d / 8 * 8 + key % 8;
          }
          float k = 0;
          const auto* const k_row = static_cast<const char*>(c.workload.k_row(from));
          load_elements(p.dtype, k_row + column * element_bytes(p.dtype), 1, &k);
          score += mistake == Mistake::kQRounded ? rounded(p.dtype, q[d] * scale * log2e) / log2e * k
                                                 : q[d] * scale * k;
        }
        scores.push_back(mistake == Mistake::kScoresRounded ? rounded(p.dtype, score) : score);
        new_max = std::max(new_max, scores.back());
      }
      const double row_scale = std::exp(row_max - new_max);
      row_max = new_max;
      if (mistake != Mistake::kSumNotRescaled) row_sum *= row_scale;
      for (double& x : o) x *= mistake == Mistake::kONotRescaled ? 1 : row_scale;
      for (size_t j = 0; j < scores.size(); ++j) {
        const double weight = std::exp(scores[j] - row_max);
        row_sum += weight;
        const std::vector<float> v = load(c.workload.v_row({kv.b, kv.h, tile * 64 + int(j)}));
        for (int d = 0; d < head_dim; ++d) o[d] += rounded(p.dtype, weight) * v[d];
      }
    }
    for (int d = 0; d < head_dim; ++d) c.store(row.id, d, float(o[d] / row_sum));
    const float lse = float(row_max + std::log(row_sum));
    c.set_lse(row.id, mistake == Mistake::kLseRounded ? rounded(p.dtype, lse) : lse);
  }
  return c.judged();
}

}  // namespace

TEST_CASE("the rounded reference itself passes, far below the gates") {
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    Case c(problem(dtype));
    const Validation v = c.judged();
    INFO(v.message);
    CHECK(v.pass);
    CHECK(v.nrmse < gates(dtype).nrmse / 2);
    CHECK(v.rows_checked == problem(dtype).num_rows());
  }
}

TEST_CASE("each defect is found and named") {
  const RowId sees_all{1, 1, 33}, sees_none{0, 1, 5};
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  constexpr Poison kPoison[2] = {Poison::kNan, Poison::kNan};
  const struct {
    std::function<void(Case&)> spoil;
    std::vector<const char*> says;
  } defects[] = {
      {[&](Case& c) { c.store(sees_all, 7, kNaN); },
       {"1 element(s) of o are NaN", "batch 1, head 1, row 33"}},
      {[&](Case& c) { c.store(sees_all, 7, -kInf); }, {"are Inf"}},
      {[&](Case& c) { std::memcpy(c.element(sees_all, 9), kPoison, 2); },
       {"1 element(s) of o were never written"}},
      {[&](Case& c) { c.scale_row(sees_all, 0); }, {"1 of 280 checked rows", "every lse is right"}},
      {[&](Case& c) { c.scale_all(1.0015); }, {"NRMSE"}},
      {[&](Case& c) { c.store(sees_none, 0, -0.0f); }, {"1 row(s) of o see no key and are not exactly zero"}},
      {[&](Case& c) { c.set_lse(sees_none, -1e30f); }, {"must be -inf"}},
      {[&](Case& c) { c.set_lse(sees_all, c.outputs.lse_at(sees_all) + 5e-4f); }, {"lse"}},
      {[&](Case& c) { c.set_lse(sees_all, kNaN); }, {"lse value(s) are of the wrong kind"}},
      {[&](Case& c) { c.set_lse(sees_all, std::bit_cast<float>(kPoison)); }, {"was never written"}},
      {[&](Case& c) { c.element(sees_all, 64)[0] = 1; }, {"in a gap between rows"}},
      {[&](Case& c) {
         c.element({1, 1, 69}, 64)[0] = 1;
       },
       {"o was written 1 element(s) past its end"}},
      {[&](Case& c) {
         c.element({0, 0, 0}, -1)[0] = 1;
       },
       {"o was written 1 element(s) before"}},
      {[&](Case& c) {
         c.set_lse({1, 1, 70}, 0.0f);
       },
       {"lse was written 1 element(s) past its end"}},
  };
  for (const auto& [spoil, says] : defects) {
    Case c(problem());
    spoil(c);
    const Validation v = c.judged();
    INFO(v.message);
    CHECK_FALSE(v.pass);
    for (const char* const text : says) CHECK(has(v, text));
  }
  SECTION("a row that sees no key must be zero also when it is not among those that have a reference") {
    Case c(problem());
    c.store(sees_none, 0, -0.0f);
    c.reference.resize(1);
    CHECK_FALSE(c.judged().pass);
  }
  SECTION("one element off by 1 %") {
    Case c(problem());
    const auto row = std::ranges::find(c.reference, sees_all, &ReferenceRow::id);
    const auto largest = std::ranges::max_element(row->o, {}, [](double x) { return std::abs(x); });
    const int d = int(largest - row->o.begin());
    c.store(sees_all, d, float(*largest * 1.01));
    const Validation v = c.judged();
    INFO(v.message);
    CHECK((!v.pass && v.worst_element > v.gate_element));
    CHECK(has(v, "an element is too far off: batch 1, head 1, row 33"));
    CHECK(has(v, "column " + std::to_string(d) + " is "));
  }
  SECTION("everything a little short: what truncation does") {
    for (const DType dtype : {DType::kFp16, DType::kBf16}) {
      Case c(problem(dtype));
      c.scale_all(1 - 0.5 * gates(dtype).unit);
      const Validation v = c.judged();
      INFO(v.message);
      CHECK((!v.pass && v.bias && *v.bias > v.gate_bias && v.nrmse < gates(dtype).nrmse));
      CHECK((has(v, "o is too short by") && has(v, "truncated to " + name(dtype))));
    }
    for (const Inputs inputs : {Inputs::kRamps, Inputs::kHuge, Inputs::kStructured}) {  // of equal scores
      Problem p = problem();
      p.inputs = inputs;
      CHECK(!Case(p).judged().bias);
    }
  }
}

TEST_CASE("a hint names no cause that the outputs rule out") {
  const std::string rounding = "is Q scaled and then rounded?", mask = "the mask", one_way = "the mask alone";
  const std::string q_k = "o and lse are wrong together: look at Q K^T (operand order, transposition)";
  struct {
    Mistake mistake;
    std::string says, not_said;
  } const cases[] = {
      {Mistake::kQRounded, rounding, mask},
      {Mistake::kScoresRounded, "The scores, or P before it is summed, may be rounded too", mask},
      {Mistake::kLseRounded, "o is right, and every wrong lse is a number of ", mask},
      {Mistake::kNoScale, "softmax_scale", "nothing"},
      {Mistake::kKTransposed, q_k, "softmax_scale and the mask"},
      {Mistake::kKeyTooMany, mask, one_way},
      {Mistake::kKeyTooFew, mask, one_way},
      {Mistake::kLastTileDropped, "the number of tiles", mask},
      {Mistake::kONotRescaled, "every lse is right", mask + " ("},
      {Mistake::kSumNotRescaled, "rows that see a single KV tile are right", mask},
  };
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    for (const Inputs inputs : {Inputs::kNormal, Inputs::kSharp}) {
      Problem p{.seqlen_q = 150, .seqlen_kv = 170, .dtype = dtype, .causal = true, .inputs = inputs};
      CHECK(judge_mistake(p, Mistake::kNone).pass);
      for (const auto& c : cases) {
        const Validation v = judge_mistake(p, c.mistake);
        INFO(p.label() << ", mistake " << int(c.mistake) << ": " << v.message);
        // Little is wrong with rounded scores where they are small.
        if (v.pass && c.mistake == Mistake::kQRounded && inputs == Inputs::kNormal) continue;
        CHECK(!v.pass);
        CHECK(has(v, c.says));
        CHECK(!has(v, c.not_said));
        CHECK(!has(v, "truncated"));
      }
    }
  }
}

TEST_CASE("what tensor cores lose of large scores is allowed") {
  const auto judged = [](Inputs inputs, double o_times, double lse_times) {
    Case c({.batch = 4,
            .num_heads_q = 4,
            .num_heads_kv = 4,
            .seqlen_q = 200,
            .seqlen_kv = 90,
            .head_dim = 128,
            .dtype = DType::kFp16,
            .inputs = inputs});
    c.scale_all(o_times);
    for (const ReferenceRow& row : c.reference) c.set_lse(row.id, float(row.lse * lse_times));
    return c.judged();
  };
  const Inputs large = Inputs::kOffset;  // scores of 1000
  CHECK((judged(large, 1, 1 - 1e-6).pass && !judged(large, 1, 1 - 1.5e-6).pass));
  CHECK(judged(large, 1 - 1.2e-4, 1).pass);
  CHECK(has(judged(Inputs::kNormal, 1 - 1.2e-4, 1), "too short"));
}

TEST_CASE("truncation is suspected only where nothing else is wrong, and NaN has no length") {
  Case c(problem());
  c.scale_all(0.5);
  CHECK((has(c.judged(), "o is too short by 5.0e-01 of its length") && !has(c.judged(), "truncated")));
  Case d(problem());
  for (const ReferenceRow& row : d.reference) d.store(row.id, 0, std::numeric_limits<float>::quiet_NaN());
  const Validation v = d.judged();
  INFO(v.message);
  CHECK((!v.pass && has(v, "are NaN") && !has(v, "of its length") && !has(v, "truncated")));
}

TEST_CASE("on a user's own inputs, what is only imprecise gets a word on the gates instead of a hint") {
  AttentionCall call{};
  call.dtype = DType::kFp16;
  call.batch = 1;
  call.num_heads_q = call.num_heads_kv = 2;
  call.seqlen_q = call.seqlen_kv = 20;
  call.head_dim = 64;
  call.softmax_scale = 0.125f;
  std::vector<char> data[3];
  TensorView* const views[] = {&call.q, &call.k, &call.v};
  for (int t = 0; t < 3; ++t) {
    data[t].resize(2 * 2 * 20 * 64);
    for (int i = 0; i < 2 * 20 * 64; ++i)
      store_element(DType::kFp16, &data[t][2 * i], float(((i + 2 * 20 * 64 * t) * 7919) % 101) / 50 - 1);
    *views[t] = {data[t].data(), 2 * 20 * 64, 20 * 64, 64};
  }
  std::vector<char> o(data[0].size());
  std::vector<float> lse(2 * 20);
  call.o = call.q;
  call.o.data = o.data();
  call.lse = lse.data();
  CHECK(!judge_call(call, problem_of(call)).pass);  // all zero
  const Workload given(problem_of(call), call);
  const char* const note = "the gates were set for inputs like N(0, 1)";
  const RowId row{0, 1, 7};
  Case c(given);
  CHECK((c.judged().pass && !has(c.judged(), note)));
  c.scale_all(1.0015);
  // The total alone, and rows as well.
  CHECK((!c.judged().pass && has(c.judged(), note) && !has(c.judged(), "hint")));
  c.scale_row(row, 0);
  CHECK((!c.judged().pass && has(c.judged(), note) && !has(c.judged(), "hint")));
  // Anything else that is wrong: a bug.
  const Validation unsound = judge(c.workload, c.reference, c.outputs, /*runs_sound=*/false);
  CHECK((!unsound.pass && !has(unsound, note) && has(unsound, "hint: every lse is right")));
  c.set_lse(row, 0.0f);
  CHECK((!c.judged().pass && !has(c.judged(), note) && has(c.judged(), "hint: o and lse are wrong")));
  c.set_lse(row, std::numeric_limits<float>::quiet_NaN());
  CHECK((!c.judged().pass && !has(c.judged(), note)));
  Case damaged(given);
  damaged.scale_row(row, 0);
  damaged.element({0, 1, 19}, 64)[0] = 1;
  CHECK((!damaged.judged().pass && !has(damaged.judged(), note) && has(damaged.judged(), "hint")));
}

TEST_CASE(
    "e4m3: outputs compared whole may differ by what is cut off of scores whose products have one sign") {
  const Problem p{
      .seqlen_q = 39, .seqlen_kv = 39, .head_dim = 128, .dtype = DType::kE4m3, .inputs = Inputs::kStructured};
  Case a(p), b(p);
  for (const ReferenceRow& row : reference_rows(b.workload, choose_rows(p)))
    b.set_lse(row.id, b.outputs.lse_at(row.id) + float(0.9 * row.cut_off));
  CHECK(compare_outputs(a.workload, {}, a.outputs, b.outputs).empty());
  // A row of O may be small beside the errors of its P, but a row that is lost is not.
  b.scale_row({0, 0, 3}, 1.3);
  CHECK(compare_outputs(a.workload, {}, a.outputs, b.outputs).empty());
  b.scale_row({0, 0, 3}, 0);
  CHECK(compare_outputs(a.workload, {}, a.outputs, b.outputs).find("row 3") != std::string::npos);
}

TEST_CASE("e4m3: what a fast approximation may do is right only where the call allows it") {
  Problem p{.seqlen_q = 40, .seqlen_kv = 300, .head_dim = 128, .dtype = DType::kE4m3};
  const RowId row{0, 0, 3};
  const struct {
    std::function<void(Case&)> approximate, spoil;
  } pairs[] = {
      {[&](Case& c) { c.set_lse(row, c.outputs.lse_at(row) + 0.08f); },
       [&](Case& c) { c.set_lse(row, c.outputs.lse_at(row) + 0.1f); }},
      {[&](Case& c) { c.scale_row(row, 1.1); }, [&](Case& c) { c.scale_row(row, 1.15); }},
      {[&](Case& c) {
         for (int i = 0; i < p.seqlen_q; ++i) c.scale_row({0, 0, i}, i % 2 == 0 ? 1.05 : 0.95);
       },
       [&](Case& c) { c.scale_all(1.05); }},  // P may be off by so much, but not all in one direction
  };
  for (const auto& [approximate, spoil] : pairs) {
    for (const bool fast : {false, true}) {
      p.fast = fast;
      Case approximated(p), spoiled(p);
      approximate(approximated);
      INFO(approximated.judged().message);
      CHECK(approximated.judged().pass == fast);
      spoil(spoiled);
      CHECK_FALSE(spoiled.judged().pass);
    }
  }
}

TEST_CASE("e4m3: scores may be in FP16 only where nobody wants an lse") {
  Problem p{.seqlen_q = 300,
            .seqlen_kv = 300,
            .head_dim = 128,
            .dtype = DType::kE4m3,
            .inputs = Inputs::kSharp,
            .given_scale = 0.2};
  for (const bool lse : {true, false}) {
    p.lse = lse;
    Case off(p), too_far(p);
    p.lse = false;
    const ReferenceRow row = Case(p).reference[7];
    REQUIRE(row.cut_off > 0.05);
    off.scale_row(row.id, 1.08 + 0.9 * row.cut_off);
    INFO(off.judged().message);
    CHECK(off.judged().pass == !lse);
    too_far.scale_row(row.id, 1.08 + 1.1 * row.cut_off);
    CHECK_FALSE(too_far.judged().pass);
  }
}

TEST_CASE("where nobody wants an lse, o alone is judged") {
  Problem p = problem();
  for (const bool lse : {true, false}) {
    p.lse = lse;
    Case c(p);
    CHECK((c.judged().pass && to_json(c.judged(), p).at("lse_max_abs").is_null() == !lse));
    const RowId row{1, 1, 7};
    c.set_lse(row, 1000);
    CHECK(c.judged().pass == !lse);
    c.scale_row(row, 1.01);
    INFO(c.judged().message);
    CHECK_FALSE(c.judged().pass);
    CHECK(has(c.judged(), "1 of 280 checked rows are wrong"));
    CHECK(has(c.judged(), "lse") == lse);
  }
}

TEST_CASE(
    "what is rounded to e4m3 by the step is judged by the rounded inputs, and the rounding is reported") {
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    Problem p{.num_heads_q = 4, .num_heads_kv = 2, .seqlen_q = 40, .seqlen_kv = 300, .dtype = dtype};
    Case exact(p);
    p.quantize = true;
    Case rounded(p);
    const Validation v = rounded.judged();
    INFO(v.message);
    CHECK((v.pass && v.quantization_nrmse && *v.quantization_nrmse > 0.03 && *v.quantization_nrmse < 0.08));
    CHECK(to_json(v, p).at("gate_nrmse") == gates(DType::kE4m3, true, true).nrmse);
    CHECK_FALSE(exact.judged().quantization_nrmse);
    // Twice as far off, and it is too far: a step that rounds twice, or by another scale.
    for (const ReferenceRow& row : rounded.reference) {
      const auto unrounded = std::ranges::find(exact.reference, row.id, &ReferenceRow::id);
      for (int d = 0; d < p.head_dim; ++d)
        rounded.store(row.id, d, float(row.o[d] + 2 * (unrounded->o[d] - row.o[d])));
    }
    CHECK_FALSE(rounded.judged().pass);
  }
}

TEST_CASE("a cache in e4m3: numbers with the same mantissa are rounded alike, and that is no bias") {
  Problem p{.num_heads_q = 7, .seqlen_q = 3201, .inputs = Inputs::kOutliers, .fp8_cache = true};
  p.seed = 1773964395;
  Case c(p);  // of one key, so that each row of O is V, rounded
  const Validation v = c.judged();
  INFO(v.message);
  CHECK((v.pass && *v.bias > 2e-4));
  c.scale_all(1 - 6e-4);
  CHECK_FALSE(c.judged().pass);
}

TEST_CASE("two outputs are compared whole") {
  Problem p = problem();
  p.kv_lengths = KvLengths::kFull;
  Case a(p), b(p);
  CHECK(compare_outputs(a.workload, {}, a.outputs, b.outputs).empty());
  Case longer(p), shorter(p);  // each within its gate
  longer.scale_all(1 + 0.9 * gates(p.dtype).nrmse);
  shorter.scale_all(1 - 0.9 * gates(p.dtype).nrmse);
  CHECK(compare_outputs(a.workload, {}, longer.outputs, shorter.outputs).empty());
  longer.scale_all(1 + 1.2 * gates(p.dtype).nrmse);
  shorter.scale_all(1 - 1.2 * gates(p.dtype).nrmse);
  CHECK_FALSE(compare_outputs(a.workload, {}, longer.outputs, shorter.outputs).empty());
  b.set_lse({0, 1, 9}, b.outputs.lse_at({0, 1, 9}) + 0.01f);
  CHECK(compare_outputs(a.workload, {}, a.outputs, b.outputs).find("1 lse value(s) differ") == 0);
  b.set_lse({0, 1, 9}, a.outputs.lse_at({0, 1, 9}));
  a.scale_row({1, 0, 3}, 0);
  CHECK(compare_outputs(a.workload, {}, a.outputs, b.outputs).find("batch 1, head 0, row 3") !=
        std::string::npos);
  a.store({1, 0, 3}, 0, std::numeric_limits<float>::quiet_NaN());
  CHECK_FALSE(compare_outputs(a.workload, {}, a.outputs, b.outputs).empty());
}
