#include "harness/judge/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <tuple>

#include "harness/base/element.h"
#include "harness/base/heartbeat.h"
#include "harness/base/random.h"

namespace flashsteps {
namespace {

constexpr int64_t kMaxSampledRows = 1024;
constexpr double kCheapProducts = 5e8;  // about a third of a second on one core
constexpr uint64_t kRowStream = 200;

// Rows that share K and V are worked on together, so that a key is fetched from memory once for all of them.
constexpr int kRowsAtOnce = 8;
constexpr int kLanes = 8;  // independent partial sums, so that the loop vectorises without reordering a sum

double dot(const float* a, const float* b, int n) {
  double sums[kLanes] = {};
  for (int d = 0; d < n; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += double(a[d + lane] * b[d + lane]);
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

float dot_fp32(const float* a, const float* b, int n) {
  float sums[kLanes] = {};
  for (int d = 0; d < n; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

float rounded(DType dtype, float x) {
  unsigned char bits[4];
  store_element(dtype, bits, x);
  return load_element(dtype, bits);
}

std::vector<float> load_head(const Workload& w, bool keys, int b, int h_kv, int rows) {
  const int d = w.problem().head_dim;
  const size_t bytes = element_bytes(w.problem().dtype);
  std::vector<float> values(size_t(rows) * d);
  parallel_for(rows, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const auto* row =
          static_cast<const unsigned char*>(keys ? w.k_row({b, h_kv, int(j)}) : w.v_row({b, h_kv, int(j)}));
      for (int c = 0; c < d; ++c)
        values[size_t(j) * d + c] = load_element(w.problem().dtype, row + c * bytes);
    }
  });
  return values;
}

// Up to kRowsAtOnce rows that share `keys` and `values`.
void compute_rows(const Workload& w, const float* keys, const float* values, ReferenceRow* rows, int count) {
  const Problem& p = w.problem();
  const int d = p.head_dim;
  const size_t bytes = element_bytes(p.dtype);
  std::vector<float> q(size_t(count) * d);
  std::vector<std::vector<double>> scores(count);
  int most_keys = 0;
  for (int r = 0; r < count; ++r) {
    const auto* row = static_cast<const unsigned char*>(w.q_row(rows[r].id));
    for (int c = 0; c < d; ++c) q[size_t(r) * d + c] = load_element(p.dtype, row + c * bytes);
    scores[r].resize(rows[r].visible_keys);
    most_keys = std::max(most_keys, rows[r].visible_keys);
    rows[r].o.assign(d, 0.0);
    rows[r].naive.assign(d, 0.0f);
    rows[r].rounding.assign(d, 0.0f);
  }
  const double scale = p.softmax_scale();
  for (int j = 0; j < most_keys; ++j) {
    for (int r = 0; r < count; ++r) {
      if (j < rows[r].visible_keys) scores[r][j] = dot(&q[size_t(r) * d], keys + size_t(j) * d, d) * scale;
    }
  }
  // The naive scores: FP32 all the way.
  std::vector<std::vector<float>> naive_p(count);
  std::vector<float> naive_sums(count, 0.0f);
  for (int r = 0; r < count; ++r) {
    naive_p[r].resize(rows[r].visible_keys);
    float row_max = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < rows[r].visible_keys; ++j) {
      naive_p[r][j] = dot_fp32(&q[size_t(r) * d], keys + size_t(j) * d, d) * float(scale);
      row_max = std::max(row_max, naive_p[r][j]);
    }
    for (float& x : naive_p[r]) {
      x = std::exp(x - row_max);
      naive_sums[r] += x;
      x = rounded(p.dtype, x);
    }
  }
  std::vector<double> sums(count, 0.0);
  for (int r = 0; r < count; ++r) {
    if (rows[r].visible_keys == 0) {
      rows[r].lse = -std::numeric_limits<double>::infinity();
      continue;
    }
    const double row_max = *std::max_element(scores[r].begin(), scores[r].end());
    for (double& s : scores[r]) {
      s = std::exp(s - row_max);
      sums[r] += s;
    }
    rows[r].lse = row_max + std::log(sums[r]);
  }
  for (int j = 0; j < most_keys; ++j) {
    const float* const v = values + size_t(j) * d;
    for (int r = 0; r < count; ++r) {
      if (j >= rows[r].visible_keys) continue;
      const float weight = float(scores[r][j] / sums[r]);
      const float naive_weight = naive_p[r][j];
      double* const o = rows[r].o.data();
      float* const naive = rows[r].naive.data();
      float* const rounding = rows[r].rounding.data();
      for (int c = 0; c < d; ++c) {
        const float product = weight * v[c];
        o[c] += double(product);
        naive[c] += naive_weight * v[c];
        rounding[c] += product * product;
      }
    }
  }
  for (int r = 0; r < count; ++r) {
    if (rows[r].visible_keys == 0) continue;
    for (int c = 0; c < d; ++c) {
      rows[r].naive[c] = rounded(p.dtype, rows[r].naive[c] / naive_sums[r]);
      rows[r].rounding[c] = std::sqrt(rows[r].rounding[c]);
    }
  }
}

}  // namespace

std::vector<RowId> choose_rows(const Problem& p) {
  const double products = double(p.num_rows()) * p.seqlen_kv * p.head_dim * 2;
  if (p.num_rows() <= kMaxSampledRows || products <= kCheapProducts) {
    std::vector<RowId> rows;
    for (int64_t index = 0; index < p.num_rows(); ++index) rows.push_back(p.row(index));
    return rows;
  }
  std::set<RowId> chosen;
  const int b0 = int(random_bits(p.seed, kRowStream, 0) % p.batch);
  const int h0 = int(random_bits(p.seed, kRowStream, 1) % p.num_heads_q);
  chosen.insert({b0, h0, 0});
  chosen.insert({b0, h0, p.seqlen_q - 1});
  // Half of the rows at most: with very long sequences the edges are thinned out evenly.
  const int num_edges = (p.seqlen_q - 1) / 64;
  const int stride = std::max(1, int((num_edges * 2 + kMaxSampledRows / 2 - 1) / (kMaxSampledRows / 2)));
  for (int edge = 1; edge <= num_edges; edge += stride) {
    chosen.insert({b0, h0, edge * 64 - 1});
    chosen.insert({b0, h0, edge * 64});
  }
  const int64_t num_heads = int64_t(p.batch) * p.num_heads_q;
  for (uint64_t draw = 0; int64_t(chosen.size()) < kMaxSampledRows; ++draw) {
    const int64_t head = int64_t(draw) % num_heads;  // every head in turn, a random row of it
    chosen.insert({int(head / p.num_heads_q), int(head % p.num_heads_q),
                   int(random_bits(p.seed, kRowStream, 2 + draw) % p.seqlen_q)});
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<ReferenceRow> reference_rows(const Workload& w, const std::vector<RowId>& ids) {
  const Problem& p = w.problem();
  const int group = p.num_heads_q / p.num_heads_kv;
  std::vector<ReferenceRow> rows;
  for (const RowId& id : ids)
    rows.push_back({id, p.visible_keys(id.i, w.kv_lengths()[id.b]), 0.0, {}, {}, {}});
  // Rows of one (batch, KV head) next to each other, those that see similar numbers of keys together.
  std::stable_sort(rows.begin(), rows.end(), [&](const ReferenceRow& x, const ReferenceRow& y) {
    return std::tuple(x.id.b, x.id.h / group, x.id.i) < std::tuple(y.id.b, y.id.h / group, y.id.i);
  });

  const auto same_head = [&](const ReferenceRow& x, const ReferenceRow& y) {
    return x.id.b == y.id.b && x.id.h / group == y.id.h / group;
  };
  for (size_t begin = 0, end; begin < rows.size(); begin = end) {
    for (end = begin; end < rows.size() && same_head(rows[begin], rows[end]); ++end) {
    }
    int most_keys = 0;
    for (size_t r = begin; r < end; ++r) most_keys = std::max(most_keys, rows[r].visible_keys);
    const int b = rows[begin].id.b, h_kv = rows[begin].id.h / group;
    const std::vector<float> keys = load_head(w, true, b, h_kv, most_keys);
    const std::vector<float> values = load_head(w, false, b, h_kv, most_keys);
    // Blocks are handed out one by one: under a causal mask the later ones are longer.
    std::atomic<size_t> next{begin};
    parallel_for(std::thread::hardware_concurrency(), [&](int64_t, int64_t) {
      for (size_t r; (r = next.fetch_add(kRowsAtOnce)) < end;) {
        compute_rows(w, keys.data(), values.data(), &rows[r], int(std::min<size_t>(kRowsAtOnce, end - r)));
        heartbeat();
      }
    });
  }
  return rows;
}

}  // namespace flashsteps
