// The judge, on outputs made by hand: what is right passes, and each thing that can be wrong is named.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "harness/base/element.h"
#include "harness/judge/gates.h"
#include "harness/judge/reference.h"
#include "harness/judge/validate.h"
#include "harness/problem/safetensors.h"
#include "harness/problem/tensors_file.h"
#include "harness/tests/catch.h"
#include "harness/tests/temporary_folder.h"

using namespace flashsteps;

namespace {

struct Case {
  explicit Case(const Problem& problem)
      : workload(problem), reference(reference_rows(workload, choose_rows(problem))), outputs(problem) {
    for (const ReferenceRow& row : reference) {
      for (int d = 0; d < problem.head_dim; ++d) store(row.id, d, float(row.o[d]));
      set_lse(row.id, float(row.lse));
    }
  }
  char* element(const RowId& id, int d) {
    const auto* row = static_cast<const char*>(outputs.o_row(id));
    return const_cast<char*>(row) + d * element_bytes(workload.problem().dtype);
  }
  void store(const RowId& id, int d, float value) {
    store_element(workload.problem().dtype, element(id, d), value);
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
  Problem p;
  p.batch = 2;
  p.num_heads_q = 2;
  p.num_heads_kv = 2;
  p.seqlen_q = 70;
  p.seqlen_kv = 90;
  p.dtype = dtype;
  p.kv_lengths = KvLengths::kZeros;
  p.layout = Layout::kGapped;
  return p;
}

bool has(const Validation& v, const std::string& text) { return v.message.find(text) != std::string::npos; }

}  // namespace

TEST_CASE("the rounded reference itself passes, far below the gates") {
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    Case c(problem(dtype));
    const Validation v = c.judged();
    INFO(v.message);
    CHECK(v.pass);
    CHECK(v.nrmse < gates(dtype).nrmse / 2);
    CHECK(v.rows_checked == v.rows_total);
  }
}

TEST_CASE("each defect is found and named") {
  const RowId sees_all{1, 1, 33}, sees_none{0, 1, 5};
  SECTION("NaN") {
    Case c(problem());
    c.store(sees_all, 7, std::numeric_limits<float>::quiet_NaN());
    CHECK((!c.judged().pass && has(c.judged(), "1 element(s) of o are NaN") &&
           has(c.judged(), "batch 1, head 1, row 33")));
    CHECK(c.judged().nonfinite == 1);
  }
  SECTION("Inf") {
    Case c(problem());
    c.store(sees_all, 7, -std::numeric_limits<float>::infinity());
    CHECK((!c.judged().pass && has(c.judged(), "are Inf")));
  }
  SECTION("an element that was never written") {
    Case c(problem());
    constexpr Poison kNan = Poison::kNan;
    std::memcpy(c.element(sees_all, 9), &kNan, 2);
    CHECK((!c.judged().pass && has(c.judged(), "1 element(s) of o were never written")));
  }
  SECTION("a whole row off, in one of 280") {
    Case c(problem());
    for (int d = 0; d < 64; ++d) c.store(sees_all, d, 0.0f);
    CHECK((!c.judged().pass && has(c.judged(), "1 of 280 checked rows") &&
           has(c.judged(), "every lse is right")));
  }
  SECTION("a little off everywhere: the total gate") {
    Case c(problem());
    for (const ReferenceRow& row : c.reference)
      for (int d = 0; d < 64; ++d) c.store(row.id, d, float(row.o[d] * 1.0015));
    CHECK((!c.judged().pass && has(c.judged(), "NRMSE")));
  }
  SECTION("one element off by 1 %") {
    Case c(problem());
    const auto row = std::find_if(c.reference.begin(), c.reference.end(), [&](const ReferenceRow& r) {
      return r.id.b == 1 && r.id.h == 1 && r.id.i == 33;
    });
    const auto largest = std::max_element(row->o.begin(), row->o.end(),
                                          [](double a, double b) { return std::abs(a) < std::abs(b); });
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
      for (const ReferenceRow& row : c.reference)
        for (int d = 0; d < 64; ++d) c.store(row.id, d, float(row.o[d] * (1 - 0.5 * gates(dtype).unit)));
      const Validation v = c.judged();
      INFO(v.message);
      CHECK((!v.pass && v.bias && *v.bias > v.gate_bias && v.nrmse < gates(dtype).nrmse));
      CHECK((has(v, "o is too short by") && has(v, "truncated to " + name(dtype))));
    }
  }
  SECTION("a row that sees no key must be zero, bit by bit") {
    Case c(problem());
    c.store(sees_none, 0, -0.0f);
    CHECK((!c.judged().pass && has(c.judged(), "1 row(s) of o see no key and are not exactly zero")));
    // Also when that row is not among those that are compared with the reference.
    c.reference.resize(1);
    CHECK_FALSE(c.judged().pass);
  }
  SECTION("its lse must be -inf") {
    Case c(problem());
    c.set_lse(sees_none, -1e30f);
    CHECK((!c.judged().pass && has(c.judged(), "must be -inf")));
  }
  SECTION("an lse that is off by more than rounding") {
    Case c(problem());
    c.set_lse(sees_all, c.outputs.lse_at({1, 1, 33}) + 5e-4f);
    CHECK((!c.judged().pass && has(c.judged(), "lse")));
  }
  SECTION("an lse that is NaN, or was never written") {
    Case c(problem());
    c.set_lse(sees_all, std::numeric_limits<float>::quiet_NaN());
    CHECK((!c.judged().pass && has(c.judged(), "lse value(s) are of the wrong kind")));
    Case d(problem());
    const uint32_t poison = uint32_t(Poison::kNan) << 16 | uint32_t(Poison::kNan);
    float f;
    std::memcpy(&f, &poison, 4);
    d.set_lse(sees_all, f);
    CHECK((!d.judged().pass && has(d.judged(), "was never written")));
  }
  SECTION("a byte in a gap between rows") {
    Case c(problem());
    c.element(sees_all, 64)[0] = 1;
    CHECK((!c.judged().pass && has(c.judged(), "in a gap between rows")));
  }
  SECTION("one element past the end, one before the start") {
    Case c(problem());
    c.element({1, 1, 69}, 64)[0] = 1;
    CHECK((!c.judged().pass && has(c.judged(), "o was written 1 element(s) past its end")));
    Case d(problem());
    d.element({0, 0, 0}, -1)[0] = 1;
    CHECK((!d.judged().pass && has(d.judged(), "o was written 1 element(s) before")));
  }
  SECTION("an lse past the end") {
    Case c(problem());
    c.set_lse({1, 1, 70}, 0.0f);
    CHECK((!c.judged().pass && has(c.judged(), "lse was written 1 element(s) past its end")));
  }
}

TEST_CASE("on a user's own inputs, what is only imprecise gets a word on the gates instead of a hint") {
  TemporaryFolder folder;
  const std::string path = folder.file("in.safetensors");
  const std::vector<uint64_t> shape{1, 2, 20, 64};
  const auto value = [](int i) { return float((i * 7919) % 101) / 50 - 1; };
  std::string data;
  for (int i = 0; i < 3 * 2 * 20 * 64; ++i) {
    char element[2];
    store_element(DType::kFp16, element, value(i));
    data.append(element, sizeof element);
  }
  write_file(path,
             safetensors_header({{"q", "F16", shape}, {"k", "F16", shape}, {"v", "F16", shape}}, {}) + data);
  Problem p = problem_of_file(path, Layout::kBhsd);
  examine_tensors({&p, 1}, path);
  const char* const note = "the gates were set for inputs like N(0, 1)";
  const RowId row{0, 1, 7};
  Case c(p);
  CHECK((c.judged().pass && !has(c.judged(), note)));
  for (const ReferenceRow& r : c.reference) {
    for (int d = 0; d < 64; ++d) c.store(r.id, d, float(r.o[d] * 1.0015));
  }
  // The total alone, and rows as well.
  CHECK((!c.judged().pass && has(c.judged(), note) && !has(c.judged(), "hint")));
  for (int d = 0; d < 64; ++d) c.store(row, d, 0.0f);
  CHECK((!c.judged().pass && has(c.judged(), note) && !has(c.judged(), "hint")));
  // Anything else that is wrong: a bug.
  const Validation unsound = judge(c.workload, c.reference, c.outputs, /*runs_sound=*/false);
  CHECK((!unsound.pass && !has(unsound, note) && has(unsound, "hint: every lse is right")));
  c.set_lse(row, 0.0f);
  CHECK((!c.judged().pass && !has(c.judged(), note) && has(c.judged(), "hint: o and lse are wrong")));
  c.set_lse(row, std::numeric_limits<float>::quiet_NaN());
  CHECK((!c.judged().pass && !has(c.judged(), note)));
  Case damaged(p);
  for (int d = 0; d < 64; ++d) damaged.store(row, d, 0.0f);
  damaged.element({0, 1, 19}, 64)[0] = 1;
  CHECK((!damaged.judged().pass && !has(damaged.judged(), note) && has(damaged.judged(), "hint")));
}

TEST_CASE("two outputs are compared whole") {
  Problem p = problem();
  p.kv_lengths = KvLengths::kFull;
  Case a(p), b(p);
  CHECK(compare_outputs(a.workload, a.outputs, b.outputs).empty());
  b.set_lse({0, 1, 9}, b.outputs.lse_at({0, 1, 9}) + 0.01f);
  CHECK(compare_outputs(a.workload, a.outputs, b.outputs).find("1 lse value(s) differ") == 0);
  b.set_lse({0, 1, 9}, a.outputs.lse_at({0, 1, 9}));
  for (int d = 0; d < 64; ++d) a.store({1, 0, 3}, d, 0.0f);
  CHECK(compare_outputs(a.workload, a.outputs, b.outputs).find("batch 1, head 0, row 3") !=
        std::string::npos);
  a.store({1, 0, 3}, 0, std::numeric_limits<float>::quiet_NaN());
  CHECK_FALSE(compare_outputs(a.workload, a.outputs, b.outputs).empty());
}
