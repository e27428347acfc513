// The reference against attention written down naively, the choice of rows, and the conversions of elements
// against arithmetic in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "harness/base/element.h"
#include "harness/base/random.h"
#include "harness/judge/reference.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

double element(const Problem& p, const void* row, int d) {
  return load_element(p.dtype, static_cast<const char*>(row) + d * element_bytes(p.dtype));
}

// Value of a 16-bit float with the given number of exponent and mantissa bits, from its definition.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? NAN : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void check_all(float (*widen)(uint16_t), uint16_t (*narrow)(float), int exponent_bits, int mantissa_bits) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = value_of(uint16_t(bits), exponent_bits, mantissa_bits);
    const float wide = widen(uint16_t(bits));
    if (std::isnan(expected)) {
      wrong += !std::isnan(wide) || !std::isnan(widen(narrow(wide)));
    } else {
      wrong += double(wide) != expected || narrow(wide) != bits;
    }
  }
  CHECK(wrong == 0);
  // Rounding: the nearest representable value, ties to even.
  int misrounded = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    const uint16_t low =
        uint16_t(random_bits(1, 2, i) % ((1u << (exponent_bits + mantissa_bits)) - (2u << mantissa_bits)));
    const double a = value_of(low, exponent_bits, mantissa_bits),
                 b = value_of(low + 1, exponent_bits, mantissa_bits);
    const double fraction = i % 3 == 0 ? 0.5 : double(random_bits(1, 3, i) >> 11) * 0x1p-53;
    const float between = float(a + (b - a) * fraction);
    const double below = between - a, above = b - between;
    const uint16_t nearest = below < above || (below == above && low % 2 == 0) ? low : low + 1;
    misrounded += narrow(between) != nearest || narrow(-between) != (nearest | 0x8000);
  }
  CHECK(misrounded == 0);
}

}  // namespace

TEST_CASE("fp16 and bf16 convert exactly one way and round to nearest even the other") {
  check_all(half_to_float, float_to_half, 5, 10);
  check_all(bfloat16_to_float, float_to_bfloat16, 8, 7);
}

TEST_CASE("e4m3 converts exactly one way and to the nearest, or the even one of two, the other") {
  const auto value = [](int code) {  // from its definition
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
  };
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(e4m3_to_float(uint8_t(code))));
      continue;
    }
    CHECK(e4m3_to_float(uint8_t(code)) == value(code));
    CHECK(float_to_e4m3(float(value(code))) == code);
    if ((code & 0x7f) == 0x7e) continue;
    const double next = value(code + 1), middle = (value(code) + next) / 2;
    CHECK(float_to_e4m3(float(middle)) == (code % 2 == 0 ? code : code + 1));
    CHECK(float_to_e4m3(float(middle + (next - middle) * 1e-3)) == code + 1);
    CHECK(float_to_e4m3(float(middle - (next - middle) * 1e-3)) == code);
  }
  for (const float large : {449.0f, 1e30f, INFINITY}) {
    CHECK(float_to_e4m3(large) == 0x7e);
    CHECK(float_to_e4m3(-large) == 0xfe);
  }
  CHECK(float_to_e4m3(NAN) == 0x7f);
}

TEST_CASE("out of range becomes infinity") {
  CHECK(float_to_half(65519.0f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(-1e30f) == 0xfc00);
  CHECK(float_to_bfloat16(3.4e38f) == 0x7f80);
  CHECK(float_to_half(1e-9f) == 0);
}

TEST_CASE("the reference is attention") {
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    for (const bool causal : {false, true}) {
      for (const Inputs inputs : {Inputs::kNormal, Inputs::kSharp, Inputs::kStructured}) {
        const Problem p{.batch = 2,
                        .num_heads_q = 8,
                        .num_heads_kv = 4,
                        .seqlen_q = 21,
                        .seqlen_kv = 13,
                        .dtype = dtype,
                        .causal = causal,
                        .kv_lengths = KvLengths::kZeros,
                        .layout = Layout::kOdd,
                        .inputs = inputs};
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

// Of O = softmax(scale * Q K^T) V, sum(dO * O): whose derivatives the gradients are.
TEST_CASE("the reference of the backward pass has the derivatives that finite differences have") {
  for (const bool causal : {false, true}) {
    for (const Inputs inputs : {Inputs::kNormal, Inputs::kSharp}) {
      const Problem p{.batch = 2,
                      .num_heads_q = 4,
                      .num_heads_kv = 2,
                      .seqlen_q = 5,
                      .seqlen_kv = 7,
                      .dtype = DType::kFp32,
                      .causal = causal,
                      .kv_lengths = KvLengths::kZeros,
                      .layout = Layout::kQkv,
                      .inputs = inputs,
                      .backward = true,
                      .given_scale = 0.2,
                      .seed = 5};
      INFO(p.label());
      Workload w(p);
      set_forward_results(w);
      const size_t d = p.head_dim;
      std::map<RowId, std::vector<double>> q, k, v, d_o;
      const auto load = [&](auto& rows, RowId row, auto loader) {
        std::vector<float> values(d);
        (w.*loader)(row, values.data());
        rows[row].assign(values.begin(), values.end());
      };
      for (const RowId row : p.rows()) {
        load(q, row, &Workload::load_q);
        load(d_o, row, &Workload::load_d_o);
      }
      for (const RowId key : Rows(p.batch, p.num_heads_kv, p.seqlen_kv)) {
        if (key.i >= w.kv_lengths()[key.b]) continue;
        load(k, key, &Workload::load_k);
        load(v, key, &Workload::load_v);
      }
      const auto loss = [&](int b, int h_kv) {  // of the heads that read these keys
        double sum = 0;
        for (const auto& [row, values] : q) {
          if (row.b != b || row.h / 2 != h_kv) continue;
          const int kv_len = w.kv_lengths()[row.b];
          double weights = 0, weighted = 0;
          for (int j = 0; j < kv_len; ++j) {
            if (causal && j > row.i + kv_len - p.seqlen_q) continue;
            double score = 0, product = 0;
            for (size_t c = 0; c < d; ++c) {
              score += values[c] * k[{b, h_kv, j}][c];
              product += d_o[row][c] * v[{b, h_kv, j}][c];
            }
            const double weight = std::exp(score * 0.2f);
            weights += weight;
            weighted += weight * product;
          }
          if (weights > 0) sum += weighted / weights;
        }
        return sum;
      };
      size_t num_rows = 0;
      for (const ReferenceRow& row : reference_rows(w, choose_rows(p))) {
        RowId id = row.id;
        id.output = 0;
        auto& tensor = row.id.output == 0 ? q : row.id.output == 1 ? k : v;
        ++num_rows;
        if (row.id.output != 0 && row.id.i >= w.kv_lengths()[row.id.b]) {
          CHECK((row.visible_keys == 0 && tensor.find(id) == tensor.end()));
          for (const double x : row.o) CHECK(x == 0);
          continue;
        }
        for (const size_t c : {size_t(0), size_t(17), d - 1}) {
          double& x = tensor.at(id)[c];
          const double step = 1e-4, before = x;
          const int h_kv = row.id.output == 0 ? id.h / 2 : id.h;
          x = before + step;
          const double above = loss(id.b, h_kv);
          x = before - step;
          const double below = loss(id.b, h_kv);
          x = before;
          INFO("output " << row.id.output << ", row " << id.b << " " << id.h << " " << id.i << ", column "
                         << c);
          CHECK(row.o[c] == Approx((above - below) / (2 * step)).margin(3e-6).epsilon(3e-6));
        }
      }
      CHECK(num_rows == size_t(p.num_output_rows()));
    }
  }
}

TEST_CASE("large backward passes are sampled: dk and dv at the same keys") {
  const Problem p{.batch = 2,
                  .num_heads_q = 16,
                  .num_heads_kv = 4,
                  .seqlen_q = 4096,
                  .seqlen_kv = 8192,
                  .head_dim = 128,
                  .backward = true};
  std::map<int, std::set<RowId>> by_output;
  for (RowId row : choose_rows(p)) {
    const int output = std::exchange(row.output, 0);
    by_output[output].insert(row);
  }
  CHECK((by_output[0].size() == 1024 && by_output[1].size() == 512 && by_output[1] == by_output[2]));
  CHECK(std::ranges::any_of(by_output[1], [](const RowId& key) { return key.i == 8191; }));
}

TEST_CASE("e4m3: each row says how far rounding the inputs has moved it") {
  Problem p{.num_heads_q = 2, .num_heads_kv = 2, .seqlen_q = 20, .seqlen_kv = 1, .dtype = DType::kE4m3};
  Problem before = p;
  before.dtype = DType::kFp32;
  const Workload quantized(p), exact(before);
  std::vector<float> v(p.head_dim), exact_v(p.head_dim);
  for (const ReferenceRow& row :
       reference_rows(quantized, choose_rows(p))) {  // of one key, which is the answer
    quantized.load_v({0, row.id.h, 0}, v.data());
    exact.load_v({0, row.id.h, 0}, exact_v.data());
    double squares = 0;
    for (int d = 0; d < p.head_dim; ++d) squares += std::pow(double(v[d]) - exact_v[d], 2);
    CHECK(squares > 0);
    CHECK(row.quantization == Approx(squares));
  }
}

TEST_CASE("a quantizer has one scale for each head of k and v, of the rows that exist") {
  Problem p{.batch = 2,
            .num_heads_q = 4,
            .num_heads_kv = 2,
            .seqlen_q = 5,
            .seqlen_kv = 33,
            .dtype = DType::kBf16,
            .kv_lengths = KvLengths::kRandom,
            .layout = Layout::kQkv,
            .inputs = Inputs::kSpike,
            .quantize = true};
  const Workload w(p);
  std::vector<float> values(p.head_dim), before(p.head_dim);
  const Workload unrounded = w.before_quantization();
  const auto check = [&](bool of_q, float limit, auto load) {
    const int rows_of_head = of_q ? p.seqlen_q : p.seqlen_kv, group = of_q ? 2 : 1;
    for (const RowId head : Rows(p.batch, p.num_heads_kv, 1)) {
      const auto each = [&](const auto& look) {
        for (const RowId row : Rows(1, group, of_q ? rows_of_head : w.kv_lengths()[head.b])) {
          const RowId id{head.b, head.h * group + row.h, row.i};
          (unrounded.*load)(id, before.data());
          (w.*load)(id, values.data());
          for (int d = 0; d < p.head_dim; ++d) look(before[d], values[d]);
        }
      };
      float most = 0;
      each([&](float x, float) { most = std::max(most, std::abs(x)); });
      REQUIRE(most > 0);
      each([&](float x, float rounded) {
        const float code = e4m3_to_float(float_to_e4m3(x * (limit / most)));
        CHECK(rounded == code * (most / limit));
        CHECK(std::abs(rounded) <= most * (1 + 0x1p-22f));
      });
    }
  };
  check(true, 14, &Workload::load_q);
  check(false, 14, &Workload::load_k);
  check(false, 448, &Workload::load_v);
  // One key may have so much of a row's weight that the others are hardly numbers of FP32. Their errors
  // count.
  for (const ReferenceRow& row : reference_rows(w, choose_rows(p)))
    for (int d = 0; d < p.head_dim; ++d) CHECK((row.rounding[d] > 0 || row.o[d] == 0));
  // Of what is 0, or nearly, the factor is finite.
  for (const float most : {0.0f, 0x1p-133f, 3e38f}) {
    const Quantizer quantizer = Quantizer::of(most, 448);
    CHECK((std::isfinite(quantizer.factor) && quantizer.descale > 0 && std::abs(quantizer(most)) <= most));
  }
}

TEST_CASE("e4m3: what may be cut off of lse is a mean of what may be cut off of scores, by weight") {
  // The needle's score is about lse, and no other counts.
  const Problem p{
      .seqlen_q = 8, .seqlen_kv = 300, .head_dim = 128, .dtype = DType::kE4m3, .inputs = Inputs::kNeedle};
  for (const ReferenceRow& row : reference_rows(Workload(p), choose_rows(p))) {
    CHECK(row.lse > std::log(300) + 5);
    CHECK(row.cut_off > 0x1p-13 * 128 / 8 * row.lse * 0.95);
  }
}

TEST_CASE("e4m3: the scores of ramps end where 14 bits are too few for them") {
  Problem p{.seqlen_q = 1, .seqlen_kv = 2049, .dtype = DType::kE4m3, .inputs = Inputs::kRamps};
  for (const uint64_t seed : {1, 2, 3}) {  // up, down, and all alike
    p.seed = seed;
    const Workload workload(p);
    std::vector<float> at_1024(p.head_dim), last(p.head_dim);
    workload.load_k({0, 0, 1024}, at_1024.data());
    workload.load_k({0, 0, 2048}, last.data());
    CHECK(last[0] == at_1024[0]);
  }
}

TEST_CASE("large problems are sampled: edges of one head, a spread over all heads") {
  Problem p{.batch = 2,
            .num_heads_q = 16,
            .num_heads_kv = 16,
            .seqlen_q = 16384,
            .seqlen_kv = 16384,
            .head_dim = 128};
  const std::vector<RowId> rows = choose_rows(p);
  CHECK(rows.size() == 1024);
  CHECK(std::set(rows.begin(), rows.end()).size() == rows.size());
  std::map<std::pair<int, int>, std::set<int>> by_head;
  for (const RowId& r : rows) by_head[{r.b, r.h}].insert(r.i);
  CHECK(by_head.size() == 32);
  CHECK(std::ranges::any_of(by_head, [&](const auto& head_and_rows) {
    const std::set<int>& of_head = head_and_rows.second;
    bool all = of_head.contains(0) && of_head.contains(p.seqlen_q - 1);
    for (int edge = 64; edge < p.seqlen_q; edge += 64)
      all = all && of_head.contains(edge - 1) && of_head.contains(edge);
    return all;
  }));
  // Longer still: never more than the limit.
  p.seqlen_q = p.seqlen_kv = 100000;
  CHECK(choose_rows(p).size() == 1024);
}

TEST_CASE("the structured heads have their patterns") {
  const Problem p{
      .num_heads_q = 4, .num_heads_kv = 4, .seqlen_q = 256, .seqlen_kv = 256, .inputs = Inputs::kStructured};
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
