#include "harness/judge/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <thread>

#include "harness/base/element.h"
#include "harness/base/heartbeat.h"
#include "harness/base/random.h"
#include "harness/judge/dot.h"
#include "harness/judge/gates.h"

namespace flashsteps {
namespace {

constexpr int64_t kMaxSampledRows = 1024;
constexpr double kCheapProducts = 5e8;  // about a third of a second on one core
constexpr uint64_t kRowStream = 200, kKeyStream = 300;

// Rows that share K and V are worked on together, so that a key is fetched from memory once for all of them.
constexpr size_t kMostRowsAtOnce = 8;

double norm_of_products(const float* a, const float* b, int n) {
  double squares = 0;
  for (int d = 0; d < n; ++d) squares += double(a[d] * b[d]) * (a[d] * b[d]);
  return std::sqrt(squares);
}

// K or V of a head, its first rows. `values` may be larger, as an earlier head has left it: fresh memory
// takes time.
void load_head(const Workload& w, void (Workload::*load)(RowId, float*) const, int b, int h_kv, int rows,
               std::vector<float>& values) {
  const int d = w.problem().head_dim;
  if (values.size() < size_t(rows) * d) values.resize(size_t(rows) * d);
  parallel_for(rows, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) (w.*load)({b, h_kv, int(j)}, &values[size_t(j) * d]);
  });
}

// A score, and as an implementation in 16 bits or fewer has it. A fast approximation in FP8 sums in FP16,
// whose numbers have 11 significant bits, 32 products at a time.
std::pair<double, float> exact_and_naive_score(const Problem& p, const float* q, const float* k) {
  if (!p.may_approximate()) return exact_and_naive_dot(q, k, p.head_dim);
  float sum = 0;
  for (int d = 0; d < p.head_dim; d += 32) {
    sum += dot<float>(q + d, k + d, 32);
    const float large = sum * (1 + 0x1p13f);
    sum = large - (large - sum);  // without its 13 last bits, rounded
  }
  return {dot<double>(q, k, p.head_dim), sum};
}

// Scores become exp(score - their maximum). Returns that maximum and the new values' sum.
template <typename Score>
std::pair<Score, Score> exponentiate(std::vector<Score>& scores) {
  Score row_max = -std::numeric_limits<Score>::infinity(), sum = 0;
  for (const Score s : scores) row_max = std::max(row_max, s);
  for (Score& s : scores) sum += s = std::exp(s - row_max);
  return {row_max, sum};
}

// P, whose largest value is 1. Where the cache is in e4m3 it may be in FP16. In e4m3 it becomes 2^8, or most
// of what is small would be lost. A fast approximation has the number whose byte is nearest to a straight
// line in the logarithm, or below 2^-6 nearest.
float rounded_weight(const Problem& p, float weight) {
  if (p.fp8_cache) return rounded(DType::kFp16, weight);
  if (p.computed_dtype() != DType::kE4m3) return rounded(p.dtype, weight);
  if (!p.may_approximate()) return rounded(DType::kE4m3, 256 * weight) / 256;
  const float line = 8 * (std::log2(256 * weight) + 7) - 0.458f;
  const auto code = uint8_t(std::nearbyint(std::max(line, std::min(256 * weight * 512, 8.0f))));
  return load_element(DType::kE4m3, &code) / 256;
}

// By how much more than the unit roundoff of itself may P be off, in units of that? Its largest value is 1.
// Below its normal numbers it is rounded by up to half of the smallest one, or is lost: in e4m3, where the
// largest P is 2^8, and where only the cache is in e4m3, because P may be in FP16 then. And P is off by what
// is cut off of its score.
float excess_error(const Problem& p, double weight, double cut_off) {
  const bool is_e4m3 = p.computed_dtype() == DType::kE4m3;
  const double smallest_normal = is_e4m3 ? 0x1p-6 / 256 : p.fp8_cache ? 0x1p-14 : 0;
  const double half_smallest = is_e4m3 ? 0x1p-10 / 256 : 0x1p-25;
  const double rounded_by = weight < smallest_normal ? std::min(weight, half_smallest) : 0;
  return float((rounded_by + weight * cut_off) / gates(p.computed_dtype()).unit);
}

// With the earlier result over other keys that the row has at number `at`.
void merge(const EarlierResult& earlier, int64_t at, ReferenceRow& row) {
  const double before = earlier.lse[at], now = row.lse;
  if (std::isinf(before)) return;
  const double largest = std::max(before, now);
  row.lse = largest + std::log(std::exp(before - largest) + std::exp(now - largest));
  const double kept = std::exp(before - row.lse), weight = std::exp(now - row.lse);
  row.cut_off *= weight;
  for (size_t d = 0; d < row.o.size(); ++d) {
    const double kept_o = kept * earlier.o[at * row.o.size() + d];
    row.o[d] = row.o[d] * weight + kept_o;
    row.naive[d] = float(row.naive[d] * weight + kept_o);
    row.rounding[d] *= weight;
    row.excess[d] *= weight;
  }
}

// Rows that share `keys` and `values`, at most kMostRowsAtOnce. `only_results`: nobody judges by these rows,
// of which then only o and lse are right.
void compute_rows(const Workload& w, const float* keys, const float* values, std::span<ReferenceRow> rows,
                  bool only_results) {
  const Problem& p = w.problem();
  const int d = p.head_dim;
  const double scale = p.softmax_scale();
  struct Work {
    std::vector<float> q;
    std::vector<double> scores;
    std::vector<float> naive_scores;  // FP32 all the way
    std::vector<double> cut_off;      // e4m3: of each score
    double sum;
    float naive_sum;
  };
  std::vector<Work> works(rows.size());
  int most_keys = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    works[r].q.resize(d);
    w.load_q(rows[r].id, works[r].q.data());
    works[r].scores.resize(rows[r].visible_keys);
    works[r].naive_scores.resize(rows[r].visible_keys);
    most_keys = std::max(most_keys, rows[r].visible_keys);
    rows[r].o.assign(d, 0.0);
    rows[r].naive.assign(d, 0.0f);
    rows[r].rounding.assign(d, 0.0);
    rows[r].excess.assign(d, 0.0);
  }
  for (int j = 0; j < most_keys; ++j) {
    const float* const k = keys + size_t(j) * d;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (j >= rows[r].visible_keys) continue;
      const float* const q = works[r].q.data();
      if (only_results) {
        works[r].scores[j] = dot<double>(q, k, d) * scale;
        continue;
      }
      const auto [score, naive_score] = exact_and_naive_score(p, q, k);
      works[r].scores[j] = score * scale;
      works[r].naive_scores[j] = naive_score * float(scale);
      if (p.computed_dtype() == DType::kE4m3)
        works[r].cut_off.push_back(
            cut_off(gates(p), d, works[r].scores[j], norm_of_products(q, k, d) * scale));
    }
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto [row_max, sum] = exponentiate(works[r].scores);
    rows[r].lse = row_max + std::log(sum);  // of no key: -inf
    works[r].sum = sum;
    if (only_results) continue;
    for (size_t j = 0; j < works[r].cut_off.size(); ++j)
      rows[r].cut_off += works[r].cut_off[j] * works[r].scores[j] / sum;
    works[r].naive_sum = exponentiate(works[r].naive_scores).second;
    for (float& weight : works[r].naive_scores) weight = rounded_weight(p, weight);
    if (p.may_approximate())
      works[r].naive_sum = std::reduce(works[r].naive_scores.begin(), works[r].naive_scores.end(), 0.0f);
  }
  for (int j = 0; j < most_keys; ++j) {
    const float* const v = values + size_t(j) * d;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (j >= rows[r].visible_keys) continue;
      const float weight = float(works[r].scores[j] / works[r].sum);
      double* const o = rows[r].o.data();
      if (only_results) {
        for (int c = 0; c < d; ++c) o[c] += double(weight * v[c]);
        continue;
      }
      const float naive_weight = works[r].naive_scores[j];
      float* const naive = rows[r].naive.data();
      double* const rounding = rows[r].rounding.data();
      for (int c = 0; c < d; ++c) {
        const float product = weight * v[c];
        o[c] += double(product);
        naive[c] += naive_weight * v[c];
        rounding[c] += double(product) * product;
      }
      const double score_error = works[r].cut_off.empty() ? 0 : works[r].cut_off[j];
      if (const float excess = excess_error(p, works[r].scores[j], score_error); excess > 0) {
        for (int c = 0; c < d; ++c) rows[r].excess[c] += std::pow(excess / works[r].sum * v[c], 2.0);
      }
    }
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    for (double& x : rows[r].rounding) x = std::sqrt(x);
    for (double& x : rows[r].excess) x = std::sqrt(x);
    if (rows[r].visible_keys > 0) {
      for (float& o : rows[r].naive) o /= works[r].naive_sum;
    }
    if (p.earlier) merge(w.earlier(), EarlierResult::at(p, rows[r].id), rows[r]);
    for (float& o : rows[r].naive) o = rounded(output_type(p.dtype), o);
  }
}

}  // namespace

// At most so many of the rows [batch, heads, num_rows].
static std::vector<RowId> sample(const Problem& p, uint64_t stream, int heads, int num_rows, int64_t most) {
  const Rows all(p.batch, heads, num_rows);
  if (int64_t(all.size()) <= most) return {all.begin(), all.end()};
  std::set<RowId> chosen;
  const int b0 = int(random_bits(p.seed, stream, 0) % p.batch);
  const int h0 = int(random_bits(p.seed, stream, 1) % heads);
  chosen.insert({b0, h0, 0});
  chosen.insert({b0, h0, num_rows - 1});
  // Half of the rows at most: with very long sequences the edges are thinned out evenly.
  const int num_edges = (num_rows - 1) / 64;
  const int stride = std::max(1, int((num_edges * 2 + most / 2 - 1) / (most / 2)));
  for (int edge = 1; edge <= num_edges; edge += stride) {
    chosen.insert({b0, h0, edge * 64 - 1});
    chosen.insert({b0, h0, edge * 64});
  }
  const int64_t num_heads = int64_t(p.batch) * heads;
  for (uint64_t draw = 0; int64_t(chosen.size()) < most; ++draw) {
    const int64_t head = int64_t(draw) % num_heads;  // every head in turn, a random row of it
    chosen.insert(
        {int(head / heads), int(head % heads), int(random_bits(p.seed, stream, 2 + draw) % num_rows)});
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<RowId> choose_rows(const Problem& p) {
  const double products = double(p.num_rows()) * p.seqlen_kv * p.head_dim * 2;
  const bool cheap = p.num_rows() <= kMaxSampledRows || products <= kCheapProducts;
  if (!p.backward)
    return sample(p, kRowStream, p.num_heads_q, p.seqlen_q, cheap ? p.num_rows() : kMaxSampledRows);
  constexpr int64_t kMostRows = 1 << 17;  // in memory, of all outputs
  const bool all = 2.5 * products <= kCheapProducts && p.num_output_rows() <= kMostRows;
  const int64_t most = all ? kMostRows : kMaxSampledRows;
  std::vector<RowId> rows = sample(p, kRowStream, p.num_heads_q, p.seqlen_q, most);
  const std::vector<RowId> keys = sample(p, kKeyStream, p.num_heads_kv, p.seqlen_kv, all ? most : most / 2);
  for (const int output : {1, 2}) {
    for (const RowId& key : keys) rows.push_back({key.b, key.h, key.i, output});
  }
  return rows;
}

bool is_cheap_on_the_cpu(const Problem& p) {
  return double(p.num_rows()) * p.seqlen_kv * p.head_dim * 2 <= 16 * kCheapProducts;
}

static std::vector<ReferenceRow> reference_attention(const Workload& w, const std::vector<RowId>& ids,
                                                     bool only_results = false);

void set_forward_results(Workload& w) {
  constexpr int64_t kAtOnce = 4096;  // rows take memory
  const Rows rows = w.problem().rows();
  for (int64_t begin = 0; begin < w.problem().num_rows(); begin += kAtOnce) {
    std::vector<RowId> ids;
    for (int64_t row = begin; row < std::min(begin + kAtOnce, w.problem().num_rows()); ++row)
      ids.push_back(rows[row]);
    for (const ReferenceRow& row : reference_attention(w, ids, /*only_results=*/true)) {
      const std::vector<float> o(row.o.begin(), row.o.end());
      w.set_forward_result(row.id, o.data(), float(row.lse));
    }
  }
}

std::vector<ReferenceRow> reference_rows(const Workload& w, const std::vector<RowId>& ids) {
  return w.problem().backward ? reference_gradients(w, ids) : reference_attention(w, ids);
}

static std::vector<ReferenceRow> reference_attention(const Workload& w, const std::vector<RowId>& ids,
                                                     bool only_results) {
  const Problem& p = w.problem();
  const int group = p.num_heads_q / p.num_heads_kv;
  std::vector<ReferenceRow> rows;
  for (const RowId& id : ids)
    rows.push_back({id, p.visible_keys(id.i, w.kv_lengths()[id.b]), 0.0, {}, {}, {}, {}, 0.0});
  // Rows of one (batch, KV head) next to each other, those that see similar numbers of keys together.
  const auto head = [&](const ReferenceRow& row) { return std::pair(row.id.b, row.id.h / group); };
  std::ranges::stable_sort(rows, {}, [&](const auto& row) { return std::pair(head(row), row.id.i); });
  std::vector<float> keys, values;
  for (size_t begin = 0, end; begin < rows.size(); begin = end) {
    int most_keys = 0;
    for (end = begin; end < rows.size() && head(rows[end]) == head(rows[begin]); ++end)
      most_keys = std::max(most_keys, rows[end].visible_keys);
    const auto [b, h_kv] = head(rows[begin]);
    load_head(w, &Workload::load_k, b, h_kv, most_keys, keys);
    load_head(w, &Workload::load_v, b, h_kv, most_keys, values);
    // Blocks are handed out one by one: under a causal mask the later ones are longer.
    std::atomic<size_t> next{begin};
    const size_t threads = std::max(1u, std::thread::hardware_concurrency());
    const size_t rows_at_once = std::clamp<size_t>((end - begin) / threads, 1, kMostRowsAtOnce);
    parallel_for(int64_t(threads), [&](int64_t, int64_t) {
      for (size_t r; (r = next.fetch_add(rows_at_once)) < end;) {
        const size_t count = std::min(rows_at_once, end - r);
        compute_rows(w, keys.data(), values.data(), std::span(rows).subspan(r, count), only_results);
        heartbeat();
      }
    });
  }
  if (p.knows_quantization()) {
    const std::vector<ReferenceRow> exact = reference_rows(w.before_quantization(), ids);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int d = 0; d < p.head_dim; ++d) {
        const double difference = rows[r].o[d] - exact[r].o[d];
        rows[r].quantization += difference * difference;
      }
    }
  }
  return rows;
}

}  // namespace flashsteps
