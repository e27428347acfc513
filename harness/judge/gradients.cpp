// The reference of a backward pass: its formulas (AttentionCall::backward), row by row.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "harness/base/element.h"
#include "harness/base/heartbeat.h"
#include "harness/judge/dot.h"
#include "harness/judge/reference.h"

namespace flashsteps {
namespace {

// A query, as all of its products need it.
struct Query {
  std::vector<float> q, d_o;
  double lse, delta;
  float naive_delta;
  double q_norm, d_o_norm;
  double error_of_delta;  // of a step that computes it without o, which is rounded
};

double square(double x) { return x * x; }

double norm(const float* row, int d) { return std::sqrt(dot<double>(row, row, d)); }

Query load_query(const Workload& w, RowId row) {
  const Problem& p = w.problem();
  const int d = p.head_dim;
  Query query{std::vector<float>(d), std::vector<float>(d), w.lse_at(row), 0, 0, 0, 0, 0};
  float *const q = query.q.data(), *const d_o = query.d_o.data();
  std::vector<float> o(d);
  w.load_q(row, q);
  w.load_d_o(row, d_o);
  w.load_o(row, o.data());
  query.delta = dot<double>(d_o, o.data(), d);
  query.naive_delta = dot<float>(d_o, o.data(), d);
  query.q_norm = norm(q, d);
  query.d_o_norm = norm(d_o, d);
  double squares = 0;
  for (int c = 0; c < d; ++c) squares += square(d_o[c] * o[c]);
  query.error_of_delta = 2 * gates(p).unit * std::sqrt(squares);
  return query;
}

// K and V of a head of a batch, as far as there are keys.
struct Keys {
  std::vector<float> k, v;
  std::vector<double> k_norms, v_norms;
};

Keys load_keys(const Workload& w, int b, int h_kv) {
  const size_t kv_len = w.kv_lengths()[b], d = w.problem().head_dim;
  Keys keys{std::vector<float>(kv_len * d), std::vector<float>(kv_len * d), std::vector<double>(kv_len),
            std::vector<double>(kv_len)};
  parallel_for(int64_t(kv_len), [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      float *const k = &keys.k[j * d], *const v = &keys.v[j * d];
      w.load_k({b, h_kv, int(j)}, k);
      w.load_v({b, h_kv, int(j)}, v);
      keys.k_norms[j] = norm(k, int(d));
      keys.v_norms[j] = norm(v, int(d));
    }
  });
  return keys;
}

// What a query and a key have in common.
struct Pair {
  double p, ds;
  float naive_p, naive_ds;  // rounded to the type
  double error_of_p;        // as a part of itself
  double lost_p, lost_ds;   // what the two may be off by beyond their unit roundoff
};

// A number below the normal ones of its type: FP16 rounds it by up to half of the smallest. Bf16 and FP32 may
// lose it.
double lost_below_normal(const Problem& p, double x) {
  const double magnitude = std::abs(x);
  if (p.dtype == DType::kFp16) return magnitude < 0x1p-14 ? std::min(magnitude, 0x1p-25) : 0;
  return magnitude < 0x1p-126 ? magnitude : 0;
}

Pair pair_of(const Problem& p, const Query& query, const Keys& keys, int key) {
  const int d = p.head_dim;
  const float *const q = query.q.data(), *const d_o = query.d_o.data();
  const float *const k = &keys.k[size_t(key) * d], *const v = &keys.v[size_t(key) * d];
  Pair pair;
  const auto [score, naive_score] = exact_and_naive_dot(q, k, d);
  const auto [dp, naive_dp] = exact_and_naive_dot(d_o, v, d);
  const float scale = p.softmax_scale();
  pair.p = std::exp(score * scale - query.lse);
  pair.ds = pair.p * (dp - query.delta);
  const float naive_p = std::exp(naive_score * scale - float(query.lse));
  pair.naive_p = rounded(p.dtype, naive_p);
  pair.naive_ds = rounded(p.dtype, naive_p * (naive_dp - query.naive_delta));

  const double root =
      std::sqrt(double(d));  // the norm of a sum's products is about that part of its factors'
  const double products = p.softmax_scale() * query.q_norm * keys.k_norms[key] / root;
  pair.error_of_p = error_of_p(d, query.lse, products, p.inputs != Inputs::kHuge);
  // Such errors are independent. A number that is lost is its own error, and there are millions of rows: the
  // sum of such errors may be five times what they are by their squares.
  constexpr double kMany = 5;
  pair.lost_p = pair.error_of_p * pair.p + kMany * lost_below_normal(p, pair.p);
  // dP and D are FP32 sums, and their difference may be small.
  const double of_difference =
      2 * truncations(d) * (query.d_o_norm * keys.v_norms[key] / root + std::abs(query.delta));
  pair.lost_ds =
      pair.error_of_p * std::abs(pair.ds) + pair.p * of_difference + kMany * lost_below_normal(p, pair.ds);
  // Of FP32, too, P may be lost below the normal numbers, and dP - D may be large.
  if (pair.p < 0x1p-126) pair.lost_ds += kMany * std::abs(pair.ds);
  return pair;
}

// A row of a gradient: the sum of rows x of another tensor, each times a number. And what becomes of it.
struct Sum {
  explicit Sum(int d) : exact(d), squares(d), lost(d), naive(d) {}
  std::vector<double> exact, squares, lost;  // the squares of each summand, and of what it may be off by
  std::vector<float> naive;

  void add(double number, float naive_number, double lost_number, const float* x) {
    const float factor = float(number), lost_factor = float(lost_number);
    for (size_t c = 0; c < exact.size(); ++c) {
      const float product = factor * x[c];
      exact[c] += double(product);
      squares[c] += square(product);
      naive[c] += naive_number * x[c];
      lost[c] += square(lost_factor * x[c]);
    }
  }
  // `alike(c)`: the square of what errors that all summands share add up to in column c.
  template <typename Alike>
  void finish(const Problem& p, double scale, ReferenceRow& row, Alike alike) const {
    const double unit = gates(p).unit;
    row.o.resize(p.head_dim);
    row.naive.resize(p.head_dim);
    row.rounding.resize(p.head_dim);
    row.excess.resize(p.head_dim);
    for (int c = 0; c < p.head_dim; ++c) {
      row.o[c] = exact[c] * scale;
      row.naive[c] = rounded(p.dtype, naive[c] * float(scale));
      row.rounding[c] = std::sqrt(squares[c]) * scale;
      const double of_sum = std::sqrt(lost[c] + alike(c)) * scale;
      row.excess[c] = (of_sum + lost_below_normal(p, row.o[c])) / unit;
    }
  }
};

void compute_dq(const Workload& w, const Keys& keys, ReferenceRow& row) {
  const Problem& p = w.problem();
  const size_t d = p.head_dim;
  const Query query = load_query(w, row.id);
  Sum sum(p.head_dim);
  std::vector<double> mean_k(d);  // by weight: what an error of D is multiplied by
  double mean_error = 0;          // of P, by weight as well
  for (int j = 0; j < row.visible_keys; ++j) {
    const float* const k = &keys.k[j * d];
    const Pair pair = pair_of(p, query, keys, j);
    sum.add(pair.ds, pair.naive_ds, pair.lost_ds, k);
    for (size_t c = 0; c < d; ++c) mean_k[c] += pair.p * k[c];
    mean_error += pair.p * pair.error_of_p;
  }
  row.lse = query.lse;
  const double of_delta = mean_error * std::abs(query.delta) + query.error_of_delta;
  sum.finish(p, p.softmax_scale(), row,
             [&](size_t c) { return square(mean_error * sum.exact[c]) + square(of_delta * mean_k[c]); });
}

// `queries` are all of the heads that read the key, of which each head's see it from `first` on. dk or dv may
// be null.
void compute_dk_dv(const Workload& w, const std::vector<Query>& queries, int num_heads, int first,
                   const Keys& keys, ReferenceRow* dk, ReferenceRow* dv) {
  const Problem& p = w.problem();
  const int key = (dk != nullptr ? dk : dv)->id.i;
  Sum dk_sum(p.head_dim), dv_sum(p.head_dim);
  double farthest_lse = 0, largest_error = 0;
  for (int h = 0; h < num_heads; ++h) {
    for (int i = first; i < p.seqlen_q; ++i) {
      const Query& query = queries[size_t(h) * p.seqlen_q + i];
      const Pair pair = pair_of(p, query, keys, key);
      const double of_delta = pair.p * (pair.error_of_p * std::abs(query.delta) + query.error_of_delta);
      dk_sum.add(pair.ds, pair.naive_ds, pair.lost_ds + of_delta, query.q.data());
      dv_sum.add(pair.p, pair.naive_p, pair.lost_p, query.d_o.data());
      if (std::abs(query.lse) > std::abs(farthest_lse)) farthest_lse = query.lse;
      largest_error = std::max(largest_error, pair.error_of_p);
    }
  }
  for (ReferenceRow* const row : {dk, dv}) {
    if (row == nullptr) continue;
    const Sum& sum = row == dk ? dk_sum : dv_sum;
    row->lse = farthest_lse;
    sum.finish(p, row == dk ? p.softmax_scale() : 1, *row,
               [&](size_t c) { return square(largest_error * sum.exact[c]); });
  }
}

// work(i) for each i below count, handed out one by one: under a causal mask they take different times.
template <typename Work>
void for_each(size_t count, const Work& work) {
  std::atomic<size_t> next{0};
  parallel_for(int64_t(std::max(1u, std::thread::hardware_concurrency())), [&](int64_t, int64_t) {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      work(i);
      heartbeat();
    }
  });
}

}  // namespace

std::vector<ReferenceRow> reference_gradients(const Workload& w, const std::vector<RowId>& ids) {
  const Problem& p = w.problem();
  const int group = p.num_heads_q / p.num_heads_kv;
  std::vector<ReferenceRow> rows;
  struct Head {  // of K and V: what is wanted of it
    std::vector<ReferenceRow*> dq;
    std::map<int, ReferenceRow*> dk, dv;  // by key
  };
  std::map<std::pair<int, int>, Head> heads;
  for (const RowId& id : ids) {
    const int kv_len = w.kv_lengths()[id.b];
    int visible = id.output == 0 ? p.visible_keys(id.i, kv_len) : 0;
    if (id.output != 0 && id.i < kv_len) visible = p.seqlen_q - p.first_query(id.i, kv_len);
    rows.push_back({id, visible, 0.0, {}, {}, {}, {}});
  }
  for (ReferenceRow& row : rows) {
    Head& head = heads[{row.id.b, row.id.output == 0 ? row.id.h / group : row.id.h}];
    if (row.id.output == 0) head.dq.push_back(&row);
    if (row.id.output == 1) head.dk[row.id.i] = &row;
    if (row.id.output == 2) head.dv[row.id.i] = &row;
  }
  for (const auto& [place, head] : heads) {
    const auto [b, h_kv] = place;
    const Keys keys = load_keys(w, b, h_kv);
    for_each(head.dq.size(), [&, &head = head](size_t r) { compute_dq(w, keys, *head.dq[r]); });

    std::map<int, std::pair<ReferenceRow*, ReferenceRow*>> by_key;
    for (const auto& [key, row] : head.dk) by_key[key].first = row;
    for (const auto& [key, row] : head.dv) by_key[key].second = row;
    std::vector<std::pair<int, std::pair<ReferenceRow*, ReferenceRow*>>> wanted(by_key.begin(), by_key.end());
    if (wanted.empty()) continue;
    std::vector<Query> queries(size_t(group) * p.seqlen_q);
    parallel_for(int64_t(queries.size()), [&, b = b, h_kv = h_kv](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        queries[i] = load_query(w, {b, h_kv * group + int(i / p.seqlen_q), int(i % p.seqlen_q)});
    });
    for_each(wanted.size(), [&](size_t k) {
      const auto& [dk, dv] = wanted[k].second;
      const int visible = (dk != nullptr ? dk : dv)->visible_keys;
      compute_dk_dv(w, queries, group, p.seqlen_q - visible, keys, dk, dv);
    });
  }
  return rows;
}

}  // namespace flashsteps
