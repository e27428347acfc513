#include "harness/problem/tensors.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>

#include "harness/base/call_tensors.h"
#include "harness/base/element.h"
#include "harness/base/heartbeat.h"
#include "harness/base/random.h"
#include "harness/base/text.h"

namespace flashsteps {
namespace {

enum Stream : uint64_t {
  kQ = 1,
  kK = 2,
  kV = 3,
  kAnchor = 4,
  kBlock = 5,
  kNoise = 6,
  kEarlier = 7,
  kEarlierKind = 8,
  kEarlierO = 9,
  kOutlier = 10,  // and the three after it
  kNeedle = 14,
  kSpike = 15,  // and the three after it
  kDO = 20      // and kOutlier after it
};

// Its strides are still to come, and in layout `qkv` it may end in another buffer.
Placement tensor(const Problem& p, bool is_query, int buffer) {
  const bool in_pages = !is_query && p.page_size != 0;
  return {.buffer = buffer,
          .batch = in_pages ? p.num_pages() : p.batch,
          .heads = is_query ? p.num_heads_q : p.num_heads_kv,
          .rows = is_query   ? p.seqlen_q
                  : in_pages ? p.page_size
                             : p.seqlen_kv,
          .head_dim = p.head_dim};
}

// [batch, heads, rows, head_dim], with gaps.
void place_bhsd(Placement& t, int64_t row_gap, int64_t block_gap) {
  t.row_stride = t.head_dim + row_gap;
  t.head_stride = t.rows * t.row_stride + block_gap;
  t.batch_stride = t.heads * t.head_stride + block_gap;
}

// So many elements are 16 bytes, to which the gaps of a row are aligned.
int64_t aligned_elements(DType dtype) { return 16 / int64_t(element_bytes(dtype)); }

// Of an input buffer: K and V have their own where they are not of q's type.
DType input_type(const Problem& p, int buffer) { return buffer == 0 ? p.dtype : p.kv_dtype(); }

// Nobody steps over an axis of extent 1, and frameworks leave anything in its stride. This one would not be
// aligned.
void spoil_unused_strides(Placement& t) {
  constexpr int64_t kAnything = -1;
  if (t.batch == 1) t.batch_stride = kAnything;
  if (t.heads == 1) t.head_stride = kAnything;
  if (t.rows == 1) t.row_stride = kAnything;
}

// Of a [batch, rows, heads, head_dim] tensor.
void place_bshd(Placement& t, int64_t heads, int64_t rows) {
  t.head_stride = t.head_dim;
  t.row_stride = heads * t.head_dim;
  t.batch_stride = rows * t.row_stride;
}

// One stride is so large that the last row begins beyond 2^31 elements: of the first among batches, heads and
// rows, taken in turn from number `first` on, that there are two of.
void place_far(Placement& t, int first, int64_t aligned) {
  const int64_t count[] = {t.batch, t.heads, t.rows};
  int64_t* const strides[] = {&t.batch_stride, &t.head_stride, &t.row_stride};
  int far = first;
  while (count[far] == 1 && (far + 1) % 3 != first) far = (far + 1) % 3;
  int64_t next = t.head_dim + 2 * kMargin;
  for (const int axis : {2, 1, 0}) {
    if (axis == far) continue;
    *strides[axis] = next;
    next *= count[axis];
  }
  *strides[far] = next + ((int64_t(1) << 31) / std::max<int64_t>(count[far] - 1, 1) / aligned + 1) * aligned;
}

void set_sizes(const Problem& p, TensorPlan& plan) {
  const auto elements = [](const Placement& t) {
    return t.at({t.batch - 1, t.heads - 1, t.rows - 1}) + t.head_dim + kGuardElements;
  };
  const auto measure = [&](std::vector<int64_t>& sizes, const std::vector<PlannedTensor>& tensors) {
    sizes.clear();
    for (const PlannedTensor& tensor : tensors) {
      const Placement& t = plan.*tensor.at;
      sizes.resize(std::max<size_t>(sizes.size(), t.buffer + 1));
      sizes[t.buffer] = std::max(sizes[t.buffer], elements(t));
    }
  };
  measure(plan.input_elements, inputs_of(p));
  measure(plan.output_elements, outputs_of(p));
}

// What head h's queries and keys look like in the `structured` inputs. `position` counts keys; queries are
// aligned so that the last query sits on the last key, as the causal mask does.
void structured_row(const Problem& p, bool is_query, int b, int h, int position, float* row) {
  enum Pattern { kLocal, kStrided, kAnchors, kBlocks };
  const auto pattern = Pattern(h % 4);
  const int d = p.head_dim;
  // q and k of length `amplitude` give scores of up to amplitude^2 / sqrt(d).
  const float amplitude = std::sqrt(10.0f * std::sqrt(float(d)));
  const float unit = amplitude / std::sqrt(float(d) / 2);
  const uint64_t group = uint64_t(b) * 4096 + h;
  for (int f = 0; f < d; f += 2) {
    float x = 0, y = 0;
    switch (pattern) {
      case kLocal: {  // slow and fast waves together: q . k is large only when the positions are close
        const float frequency = 0.5f * std::pow(0.02f, float(f) / d);
        x = unit * std::cos(frequency * position);
        y = unit * std::sin(frequency * position);
        break;
      }
      case kStrided: {  // harmonics of 1/16: q . k repeats every 16 positions
        const float frequency = 6.2831853f / 16 * float(1 + (f / 2) % 7);
        const int phase = ((position % 16) + 16) % 16;
        x = unit * std::cos(frequency * phase);
        y = unit * std::sin(frequency * phase);
        break;
      }
      case kAnchors: {  // every query looks for one direction, which only each 64th key has
        float ax, ay, nx, ny;
        random_normal_pair(p.seed, kAnchor, group * 512 + f, ax, ay);
        random_normal_pair(p.seed, kNoise,
                           (group * 2 + is_query) * (1ull << 32) + uint32_t(position) * 512ull + f, nx, ny);
        const bool aligned = is_query || position % 64 == 0;
        x = aligned ? ax + 0.3f * nx : nx;
        y = aligned ? ay + 0.3f * ny : ny;
        break;
      }
      case kBlocks: {  // one direction per block of 32 positions
        const int64_t block = position >= 0 ? position / 32 : (position - 31) / 32;
        random_normal_pair(p.seed, kBlock, (group * (1ull << 32) + uint32_t(block)) * 512 + f, x, y);
        break;
      }
    }
    row[f] = x;
    row[f + 1] = y;
  }
}

// The `leaps` inputs. By how many powers of two P grows, one number for each head of K and V: just below 16,
// where it exceeds fp16; on to where only O exceeds it; from 2^100 on to the end of bf16. All of it in two
// coordinates, of which the second has what rounding takes from the first.
constexpr double kLeaps[] = {15.9998, 60, 110, 126.5};
constexpr int kLeapKeys = 128;                // no tile is longer, so none hides that scores grow
constexpr float kLeapCoordinate = 32;         // of q, and 1
bool leaps(const Problem& p, int b, int i) {  // rows of q
  switch ((b + p.head_dim / 128 + p.seed) % 4) {
    case 0:
      return true;
    case 1:  // the upper or the lower rows of an accumulator
      return i % 16 < 8;
    case 2:
      return i % 16 >= 8;
    default:
      return i % 64 == 37;
  }
}
void leap_of_query(const Problem& p, int b, int i, float* row) {
  if (leaps(p, b, i)) std::fill_n(row, p.head_dim, 0.0f);  // so that nothing but the leap counts
  row[0] = leaps(p, b, i) ? kLeapCoordinate : 0.0f;
  row[1] = leaps(p, b, i) ? 1.0f : 0.0f;
}
void leap_of_key(const Problem& p, int b, int h, int j, float* row) {
  row[0] = row[1] = 0.0f;
  if (j / kLeapKeys % 2 == 0) return;
  const double leap = kLeaps[(b * p.num_heads_kv + h + p.seed) % std::size(kLeaps)];
  const double product = leap * 0.69314718055994531 / double(p.softmax_scale());
  row[0] = rounded(p.dtype, float(product / kLeapCoordinate));
  row[1] = float(product - double(row[0]) * kLeapCoordinate);
}

// N(0, 1), and what some inputs make of all tensors alike.
void normal_row(const Problem& p, Stream stream, int64_t row_index, float* row) {
  for (int f = 0; f < p.head_dim; f += 2)
    random_normal_pair(p.seed, stream, (row_index * p.head_dim + f) / 2, row[f], row[f + 1]);
  for (int f = 0; p.inputs == Inputs::kOutliers && f < p.head_dim; ++f) {
    const uint64_t bits = random_bits(p.seed, kOutlier + stream, row_index * p.head_dim + f);
    if (bits % 1000 == 0) row[f] *= 10;
  }
  for (int f = 0; p.inputs == Inputs::kChannels && stream != kQ && f < p.head_dim; ++f)
    row[f] *= std::ldexp(1.0f, f % 8 - 5);
}

// The `spike` inputs: k or v has the spike in one row of a head. `index` is the row's number in the tensor.
void put_spike(const Problem& p, Stream stream, RowId row, int64_t index, int num_keys, float* values) {
  const uint64_t bits = random_bits(p.seed, kSpike + stream, index - row.i);
  if (row.i == int(bits % num_keys)) values[bits / num_keys % p.head_dim] = bits >> 63 ? -1000 : 1000;
}

// The query number `index` of the `needle` inputs. With the default scale, its score with that key is about 4
// * sqrt(head_dim), and those with all others are N(0, 16): the largest of 64k is around 17.
void needle_query(const Problem& p, RowId row, int64_t index, int num_keys, float* values) {
  const int64_t head = int64_t(row.b) * p.num_heads_kv + row.h / (p.num_heads_q / p.num_heads_kv);
  const int key = int(random_bits(p.seed, kNeedle, index) % num_keys);
  normal_row(p, kK, head * p.seqlen_kv + key, values);
  for (int d = 0; d < p.head_dim; ++d) values[d] *= 4;
}

// The largest value of a tensor, all of whose values must be finite. What lies beyond a length may be
// anything.
double largest_of(const Problem& p, const char* name, const CallTensor& tensor, bool of_keys) {
  const Rows rows(tensor.batch, tensor.heads, tensor.rows);
  std::vector<float> values(p.head_dim);
  double largest = 0;
  for (int64_t index = 0; index < int64_t(rows.size()); ++index) {
    const RowId row = rows[index];
    if (of_keys && p.kv_lengths == KvLengths::kGiven && row.i >= p.given_lengths[row.b]) continue;
    load_elements(of_keys ? p.kv_dtype() : p.dtype, tensor.row(index), p.head_dim, values.data());
    for (int d = 0; d < p.head_dim; ++d) {
      if (!std::isfinite(values[d]))
        throw std::invalid_argument(std::string(name) + ": is NaN or Inf in batch " + std::to_string(row.b) +
                                    ", head " + std::to_string(row.h) + ", row " + std::to_string(row.i) +
                                    ", column " + std::to_string(d) + ": nothing is right then");
      largest = std::max(largest, std::abs(double(values[d])));
    }
  }
  return largest;
}

void fill_poison(std::span<unsigned char> bytes, Poison poison) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) std::memcpy(&bytes[i], &poison, 2);
}

// What a step reads. Of FP8 each byte is an element, and the poison's first one is no NaN.
void fill_input_poison(std::span<unsigned char> bytes, Poison poison, DType dtype) {
  if (dtype == DType::kE4m3 && poison == Poison::kNan)
    std::ranges::fill(bytes, 0xff);
  else
    fill_poison(bytes, poison);
}

// Of a row's log-sum-exp, in bytes.
size_t lse_offset(const Problem& p, RowId row) {
  const int64_t index = (int64_t(row.b) * p.num_heads_q + row.h) * p.seqlen_q + row.i;
  return (kGuardElements + index) * sizeof(float);
}

// To at least `value`.
void raise(std::atomic<float>& most, float value) {
  for (float now = most; now < value && !most.compare_exchange_weak(now, value);) {
  }
}

}  // namespace

void parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& fn) {
  const int64_t num_threads =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(count, 1));
  std::vector<std::jthread> threads;
  for (int64_t t = 1; t < num_threads; ++t)
    threads.emplace_back([&, t] { fn(count * t / num_threads, count * (t + 1) / num_threads); });
  fn(0, count / num_threads);
}

std::vector<PlannedTensor> inputs_of(const Problem& p) {
  std::vector<PlannedTensor> all{{"q", &TensorPlan::q}, {"k", &TensorPlan::k}, {"v", &TensorPlan::v}};
  if (p.backward) all.insert(all.end(), {{"o", &TensorPlan::o}, {"d_o", &TensorPlan::d_o}});
  return all;
}

std::vector<PlannedTensor> outputs_of(const Problem& p) {
  if (!p.backward) return {{"o", &TensorPlan::o}};
  return {{"dq", &TensorPlan::dq}, {"dk", &TensorPlan::dk}, {"dv", &TensorPlan::dv}};
}

TensorPlan plan_tensors(const Problem& p) {
  TensorPlan plan{};
  plan.lse_elements = p.num_rows() + 2 * kGuardElements;
  std::vector<Placement*> tensors;
  const auto add = [&](Placement& t, bool is_query, int buffer) {
    t = tensor(p, is_query, buffer);
    tensors.push_back(&t);
  };
  add(plan.q, true, 0);
  add(plan.k, false, 1);
  add(plan.v, false, 2);
  add(plan.o, true, p.backward ? 3 : 0);
  if (p.backward) {
    add(plan.d_o, true, 4);
    add(plan.dq, true, 0);
    add(plan.dk, false, 1);
    add(plan.dv, false, 2);
  }
  // Where there are gaps, each tensor has pitches of its own, so that a kernel that takes another one's goes
  // wrong.
  int number = 0;
  for (Placement* const t : tensors) {
    const int64_t aligned = aligned_elements(input_type(p, t->buffer));
    ++number;
    switch (p.layout) {
      case Layout::kBhsd:
        place_bhsd(*t, 0, 0);
        break;
      case Layout::kBshd:
        place_bshd(*t, t->heads, t->rows);
        break;
      case Layout::kGapped:
        place_bhsd(*t, aligned * number, 2 * aligned * number);
        spoil_unused_strides(*t);
        break;
      case Layout::kOdd:
        place_bhsd(*t, 2 * number - 1, 3 * number);
        t->offset += 1;
        break;
      case Layout::kFar:
        place_bhsd(*t, 2 * kMargin, 0);
        break;
      case Layout::kQkv: {
        if (t == &plan.o || t == &plan.d_o) {
          place_bshd(*t, t->heads, t->rows);
          if (p.backward) t->buffer = t == &plan.o ? 1 : 2;
          break;
        }
        // One tensor for all three, and one for their gradients; the shorter of q and kv leaves its remaining
        // rows unused.
        const int slice = number <= 3 ? number - 1 : number - 6;  // of q, k and v, or of dq, dk and dv
        place_bshd(*t, p.num_heads_q + 2 * p.num_heads_kv, std::max(p.seqlen_q, p.seqlen_kv));
        t->offset += (slice > 0 ? p.num_heads_q + (slice - 1) * p.num_heads_kv : 0) * p.head_dim;
        t->buffer = 0;
        break;
      }
    }
  }
  set_sizes(p, plan);
  return plan;
}

TensorPlan plan_on_device(const Problem& p) {
  TensorPlan plan = plan_tensors(p);
  if (p.layout != Layout::kFar) return plan;
  place_far(plan.q, 2, aligned_elements(p.dtype));
  place_far(plan.k, 1, aligned_elements(p.kv_dtype()));
  place_far(plan.v, 0, aligned_elements(p.kv_dtype()));
  place_far(plan.o, 0, aligned_elements(p.dtype));
  if (p.backward) {
    place_far(plan.d_o, 1, aligned_elements(p.dtype));
    place_far(plan.dq, 0, aligned_elements(p.dtype));
    place_far(plan.dk, 2, aligned_elements(p.dtype));
    place_far(plan.dv, 1, aligned_elements(p.dtype));
  }
  set_sizes(p, plan);
  return plan;
}

double total_bytes(const Problem& problem, const TensorPlan& plan) {
  double total = 4.0 * plan.lse_elements;
  for (const int64_t elements : plan.output_elements)
    total += double(elements) * element_bytes(output_type(problem.dtype));
  for (size_t i = 0; i < plan.input_elements.size(); ++i)
    total += double(plan.input_elements[i]) * element_bytes(input_type(problem, int(i)));
  return total;
}

Problem problem_of(const AttentionCall& call) {
  Problem p;
  p.batch = call.batch;
  p.num_heads_q = call.num_heads_q;
  p.num_heads_kv = call.num_heads_kv;
  p.seqlen_q = call.seqlen_q;
  p.seqlen_kv = call.seqlen_kv;
  p.head_dim = call.head_dim;
  p.dtype = call.dtype;
  p.causal = call.causal;
  p.inputs = Inputs::kGiven;
  p.lse = call.lse != nullptr;
  p.fast = call.fast && call.dtype == DType::kE4m3;
  p.fp8_cache = call.fp8_cache;
  p.quantize = call.quantize;
  p.backward = call.backward;
  if (call.softmax_scale != p.softmax_scale()) p.given_scale = nine_digits(call.softmax_scale);
  if (call.kv_lengths != nullptr) {
    p.kv_lengths = KvLengths::kGiven;
    p.given_lengths.assign(call.kv_lengths, call.kv_lengths + call.batch);
  }
  if (const std::string error = shape_error(p); !error.empty()) throw std::invalid_argument("q: " + error);
  const auto [q_tensor, k_tensor, v_tensor, o_tensor] = tensors_of(call);
  const double q = largest_of(p, "q", q_tensor, false), k = largest_of(p, "k", k_tensor, true),
               v = largest_of(p, "v", v_tensor, true);
  if (p.backward) {
    largest_of(p, "o", o_tensor, false);
    largest_of(p, "d_o", gradients_of(call)[0], false);
    const std::vector<int> lengths = p.draw_kv_lengths();
    const float* lse = call.lse;
    for (const RowId row : p.rows()) {
      if (const float of_row = *lse++; !std::isfinite(of_row) && p.visible_keys(row.i, lengths[row.b]) > 0)
        throw std::invalid_argument("lse: is NaN or Inf in batch " + std::to_string(row.b) + ", head " +
                                    std::to_string(row.h) + ", row " + std::to_string(row.i) +
                                    ", which sees keys: nothing is right then");
    }
  }
  constexpr double kLimit = std::numeric_limits<float>::max();
  if (q * k * p.head_dim > kLimit)
    throw std::invalid_argument("q: holds values of up to " + format("%.3g", q) + ", and k of up to " +
                                format("%.3g", k) + ": their dot products may overflow float32");
  if (v * p.seqlen_kv > kLimit)
    throw std::invalid_argument("v: holds values of up to " + format("%.3g", v) +
                                ": sums over its rows may overflow float32");
  return p;
}

Workload::Workload(const Problem& problem)
    : problem_(problem), plan_(plan_tensors(problem)), kv_lengths_(problem.draw_kv_lengths()) {
  allocate();
  generate();
  if (problem_.quantize) find_quantizers();
  if (problem_.earlier) make_earlier();
}

Workload::Workload(const Problem& problem, const AttentionCall& given)
    : problem_(problem), plan_(plan_tensors(problem)), kv_lengths_(problem.draw_kv_lengths()) {
  allocate();
  const auto tensors = tensors_of(given);
  const auto copy = [&](const Placement& to, const CallTensor& from) {
    const auto rows = to.all_rows();
    for (int64_t row = 0; row < int64_t(rows.size()); ++row) {
      if (readable_row(to, rows[row]))
        std::memcpy(const_cast<void*>(at(to, rows[row])), from.row(row), from.row_bytes);
    }
  };
  copy(plan_.q, tensors[0]);
  copy(plan_.k, tensors[1]);
  copy(plan_.v, tensors[2]);
  if (problem_.backward) {
    copy(plan_.o, tensors[3]);
    copy(plan_.d_o, gradients_of(given)[0]);
    std::memcpy(&lse_[kGuardElements * sizeof(float)], given.lse, problem_.num_rows() * sizeof(float));
  }
  if (problem_.quantize) find_quantizers();
  if (problem_.kv_dtype() != DType::kE4m3) return;
  for (const auto& [to, from] :
       {std::pair(&q_descales_, given.q_descale), std::pair(&k_descales_, given.k_descale),
        std::pair(&v_descales_, given.v_descale)}) {
    if (to == &q_descales_ && problem_.dtype != DType::kE4m3) continue;
    for (const RowId head : Rows(given.batch, given.num_heads_kv, 1))
      to->push_back(from.data == nullptr ? 1
                                         : from.data[head.b * from.batch_stride + head.h * from.head_stride]);
  }
}

void Workload::allocate() {
  if (problem_.page_size != 0) make_page_table();
  for (const int64_t n : plan_.input_elements) {
    const DType dtype = input_type(problem_, int(inputs_.size()));
    inputs_.emplace_back(n * element_bytes(dtype));
    fill_input_poison(inputs_.back(), poison_, dtype);
  }
  if (problem_.backward) {
    lse_.resize(plan_.lse_elements * sizeof(float));
    fill_poison(lse_, poison_);
  }
  find_unreadable();
}

void Workload::set_forward_result(RowId row, const float* o, float lse) {
  const size_t bytes = element_bytes(problem_.dtype);
  unsigned char* const to = inputs_[plan_.o.buffer].data() + plan_.o.at(row) * bytes;
  for (int d = 0; d < problem_.head_dim; ++d) store_element(problem_.dtype, to + d * bytes, o[d]);
  std::memcpy(&lse_[lse_offset(problem_, row)], &lse, sizeof lse);
}

float Workload::lse_at(RowId row) const {
  float lse;
  std::memcpy(&lse, &lse_[lse_offset(problem_, row)], sizeof lse);
  return lse;
}

void Workload::make_earlier() {
  const size_t rows = EarlierResult::at(problem_, {problem_.batch, 0, 0}), d = problem_.head_dim;
  earlier_.lse.resize(rows);
  earlier_.o.resize(rows * d);
  for (size_t row = 0; row < rows; ++row) {
    float x, y;
    random_normal_pair(problem_.seed, kEarlier, row, x, y);
    // Some rows have seen no key yet, and their O holds anything. In some the earlier result alone counts, in
    // some it does not count at all, and in the others it counts about as much as the call's own.
    const uint64_t kind = random_bits(problem_.seed, kEarlierKind, row) % 8;
    earlier_.lse[row] = kind == 0   ? -INFINITY
                        : kind == 1 ? 200.0f + x
                        : kind == 2 ? -200.0f + x
                                    : std::log(float(problem_.seqlen_kv)) + x;
    float* const o = &earlier_.o[row * d];
    if (kind == 0) std::fill_n(o, d, NAN);
    for (size_t f = 0; f < d && kind != 0; f += 2)
      random_normal_pair(problem_.seed, kEarlierO, (row * d + f) / 2, o[f], o[f + 1]);
  }
}

bool Workload::poison(Poison poison) {
  if (poison == poison_) return false;
  poison_ = poison;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (const auto [begin, end] : unreadable_[i])
      fill_input_poison(std::span(inputs_[i]).subspan(begin, end - begin), poison_,
                        input_type(problem_, int(i)));
  }
  if (problem_.backward) {
    constexpr size_t kBand = kGuardElements * sizeof(float);
    fill_poison(std::span(lse_).first(kBand), poison_);
    fill_poison(std::span(lse_).last(kBand), poison_);
  }
  if (problem_.page_size != 0) make_page_table();
  return true;
}

void Workload::make_page_table() {
  pages_ = problem_.draw_pages();
  first_keys_.assign(plan_.k.batch, {-1, 0, 0});
  const size_t max_pages = problem_.max_pages();
  const int garbage = int(uint32_t(poison_) * 0x10001);
  page_table_.assign(problem_.batch * max_pages, garbage);
  for (int b = 0; b < problem_.batch; ++b) {
    std::ranges::copy(pages_[b], &page_table_[b * max_pages]);
    for (size_t i = 0; i < pages_[b].size(); ++i)
      first_keys_[pages_[b][i]] = {b, 0, int(i) * problem_.page_size};
  }
}

RowId Workload::place_of(RowId key) const {
  if (problem_.page_size == 0) return key;
  return {pages_[key.b][key.i / problem_.page_size], key.h, key.i % problem_.page_size};
}

std::optional<RowId> Workload::key_at(RowId place) const {
  RowId key = place;
  if (problem_.page_size != 0) {
    const RowId first = first_keys_[place.b];
    if (first.b < 0) return std::nullopt;
    key = {first.b, place.h, first.i + place.i};
  }
  if (key.i >= kv_lengths_[key.b]) return std::nullopt;
  return key;
}

std::optional<RowId> Workload::readable_row(const Placement& tensor, RowId place) const {
  return is_of_keys(tensor) ? key_at(place) : place;
}

void Workload::find_unreadable() {
  std::vector<std::vector<Stretch>> readable(inputs_.size());
  for (const PlannedTensor& planned : inputs_of(problem_)) {
    const Placement& t = plan_.*planned.at;
    const size_t bytes = element_bytes(input_type(problem_, t.buffer));
    std::vector<Stretch>& stretches = readable[t.buffer];
    for (const RowId row : t.all_rows()) {
      if (!readable_row(t, row)) continue;
      const size_t begin = t.at(row) * bytes, end = begin + t.head_dim * bytes;
      if (!stretches.empty() && stretches.back().end == begin)
        stretches.back().end = end;
      else
        stretches.push_back({begin, end});
    }
  }
  unreadable_.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    std::ranges::sort(readable[i], {}, &Stretch::begin);
    size_t at = 0;
    for (const auto [begin, end] : readable[i]) {
      if (at < begin) unreadable_[i].push_back({at, begin});
      at = end;
    }
    unreadable_[i].push_back({at, inputs_[i].size()});
  }
}

// Of each (batch, KV head), whose largest magnitude is that of the rows that exist.
void Workload::find_quantizers() {
  for (const auto& [tensor, found] :
       {std::pair(&plan_.q, &q_quantizers_), {&plan_.k, &k_quantizers_}, {&plan_.v, &v_quantizers_}}) {
    std::vector<std::atomic<float>> largest(size_t(problem_.batch) * problem_.num_heads_kv);
    const auto places = tensor->all_rows();
    parallel_for(int64_t(places.size()), [&, tensor = tensor](int64_t begin, int64_t end) {
      std::vector<float> values(problem_.head_dim);
      for (int64_t place = begin; place < end; ++place) {
        const std::optional<RowId> row = readable_row(*tensor, places[place]);
        if (!row) continue;
        load_elements(problem_.dtype, at(*tensor, places[place]), problem_.head_dim, values.data());
        for (const float value : values) raise(largest[descale_at(*tensor, *row)], std::abs(value));
      }
    });
    const float limit =
        tensor == &plan_.v ? AttentionCall::kLargestQuantizedV : AttentionCall::kLargestFastQk;
    found->clear();
    for (const float most : largest) found->push_back(Quantizer::of(most, limit));
  }
}

Workload Workload::before_quantization() const {
  if (problem_.quantize) {
    Workload before = *this;
    before.problem_.quantize = false;
    for (auto* const each : {&before.q_quantizers_, &before.k_quantizers_, &before.v_quantizers_})
      each->clear();
    return before;
  }
  Problem before = problem_;
  before.dtype = DType::kFp32;
  before.fp8_cache = false;
  return Workload(before);
}

void Workload::generate() {
  const auto for_rows = [&](const Placement& tensor, auto&& make_row, auto&& use) {
    const auto places = tensor.all_rows();
    const int64_t rows_of_head = is_of_keys(tensor) ? problem_.seqlen_kv : problem_.seqlen_q;
    parallel_for(int64_t(places.size()), [&](int64_t begin, int64_t end) {
      std::vector<float> values(problem_.head_dim);
      for (int64_t place = begin; place < end; ++place) {
        const std::optional<RowId> row = readable_row(tensor, places[place]);
        if (!row) continue;  // padding stays poison
        // Its number as if nothing were in pages, so that these change no values.
        const int64_t index = (int64_t(row->b) * tensor.heads + row->h) * rows_of_head + row->i;
        make_row(*row, index, values.data());
        use(places[place], *row, values);
        heartbeat();
      }
    });
  };
  // FP8: the largest value of the heads that share a scale becomes the type's largest number, or the largest
  // that a fast approximation takes.
  const auto find_descales = [&](const Placement& tensor, auto&& make_row) {
    std::vector<float> descales;
    const bool one_for_all = problem_.layout == Layout::kQkv;
    std::vector<std::atomic<float>> largest(one_for_all ? 1 : problem_.batch * problem_.num_heads_kv);
    for_rows(tensor, make_row, [&](RowId, RowId row, const std::vector<float>& values) {
      float most = 0;
      for (const float value : values) most = std::max(most, std::abs(value));
      raise(largest[descale_at(tensor, row)], most);
    });
    const float limit = problem_.fast && &tensor != &plan_.v ? AttentionCall::kLargestFastQk : kLargestE4m3;
    for (const float most : largest) descales.push_back(most == 0 ? 1 : most / limit);
    return descales;
  };
  const auto fill = [&](const Placement& tensor, std::vector<float>& descales, auto&& make_row) {
    const DType dtype = input_type(problem_, tensor.buffer);
    const size_t bytes = element_bytes(dtype);
    if (dtype == DType::kE4m3) descales = find_descales(tensor, make_row);
    for_rows(tensor, make_row, [&](RowId place, RowId row, const std::vector<float>& values) {
      unsigned char* const out = inputs_[tensor.buffer].data() + tensor.at(place) * bytes;
      const float scale = descales.empty() ? 1 : descales[descale_at(tensor, row)];
      for (int d = 0; d < problem_.head_dim; ++d) store_element(dtype, out + d * bytes, values[d] / scale);
    });
  };
  const bool structured = problem_.inputs == Inputs::kStructured;
  // What the scores are moved by comes from one coordinate, in which every query is alike. In the steep
  // inputs a key has the number of its 64 keys there: bf16 holds it exactly, so that no two neighbours are
  // rounded to one.
  const float size = moved_by(problem_.inputs);
  const float product = size / problem_.softmax_scale();
  const float coordinate = is_steep(problem_.inputs) ? product : std::sqrt(product);
  enum Ramp { kUp, kDown, kConstant };  // constant: all keys of the head are one
  const auto ramp = [&](RowId row) { return Ramp((row.b + row.h + problem_.seed) % 3); };
  const auto key_coordinate = [&](RowId row) -> float {
    const auto [b, h, i, output] = row;
    switch (problem_.inputs) {
      // The sign changes a tile's length at a time: exp() overflows unless the running maximum is subtracted,
      // and that has to be updated.
      case Inputs::kShifted:
      case Inputs::kHuge:
        return (b + h + i / 64) % 2 == 0 ? coordinate : -coordinate;
      case Inputs::kOffset:
        return (b + h) % 2 == 0 ? -coordinate : coordinate;
      case Inputs::kRising:  // around 0, or the last scores would be twice as large
        return float(i / 64 - problem_.seqlen_kv / 128);
      case Inputs::kFalling:
        return -float(i / 64);
      default: {  // kRamps: by 2 in 64 keys; in e4m3 to 32 at most, as sums of its products have few digits
        const float slope = ramp(row) == kUp ? coordinate : ramp(row) == kDown ? -coordinate : 0.0f;
        return slope * float(problem_.computed_dtype() == DType::kE4m3 ? std::min(i, 1024) : i) / 32;
      }
    }
  };
  const int heads_per_kv = problem_.num_heads_q / problem_.num_heads_kv;
  fill(plan_.q, q_descales_, [&](RowId row, int64_t index, float* values) {
    const int position = row.i + problem_.seqlen_kv - problem_.seqlen_q;
    structured ? structured_row(problem_, true, row.b, row.h / heads_per_kv, position, values)
               : normal_row(problem_, kQ, index, values);
    for (int d = 0; problem_.inputs == Inputs::kSharp && d < problem_.head_dim; ++d) values[d] *= 3;
    if (problem_.inputs == Inputs::kHuge) std::fill_n(values, problem_.head_dim, 0.0f);
    if (size > 0) values[0] = coordinate;
    if (problem_.inputs == Inputs::kLeaps) leap_of_query(problem_, row.b, row.i, values);
    const int num_keys = problem_.visible_keys(row.i, kv_lengths_[row.b]);
    if (problem_.inputs == Inputs::kNeedle && num_keys > 0)
      needle_query(problem_, row, index, num_keys, values);
  });
  fill(plan_.k, k_descales_, [&](RowId row, int64_t index, float* values) {
    const bool constant = problem_.inputs == Inputs::kRamps && ramp(row) == kConstant;
    structured ? structured_row(problem_, false, row.b, row.h, row.i, values)
               : normal_row(problem_, kK, constant ? index - row.i : index, values);
    if (size > 0) values[0] = key_coordinate(row);
    if (problem_.inputs == Inputs::kZeroKeys) std::fill_n(values, problem_.head_dim, 0.0f);
    if (problem_.inputs == Inputs::kSpike) put_spike(problem_, kK, row, index, kv_lengths_[row.b], values);
    if (problem_.inputs == Inputs::kLeaps) leap_of_key(problem_, row.b, row.h, row.i, values);
  });
  fill(plan_.v, v_descales_, [&](RowId row, int64_t index, float* values) {
    normal_row(problem_, kV, index, values);
    if (problem_.inputs == Inputs::kSpike) put_spike(problem_, kV, row, index, kv_lengths_[row.b], values);
    for (int d = 0; problem_.inputs == Inputs::kMean && d < problem_.head_dim; ++d) values[d] += 2;
  });
  if (!problem_.backward) return;
  std::vector<float> none;
  fill(plan_.d_o, none,
       [&](RowId, int64_t index, float* values) { normal_row(problem_, kDO, index, values); });
}

const void* Workload::at(const Placement& tensor, RowId row) const {
  return inputs_[tensor.buffer].data() + tensor.at(row) * element_bytes(input_type(problem_, tensor.buffer));
}

void Workload::load(const Placement& tensor, RowId place, RowId row, float* values) const {
  load_elements(input_type(problem_, tensor.buffer), at(tensor, place), problem_.head_dim, values);
  if (!quantizers(tensor).empty()) {
    const Quantizer quantized = quantizers(tensor)[descale_at(tensor, row)];
    for (int d = 0; d < problem_.head_dim; ++d) values[d] = quantized(values[d]);
  }
  if (descales(tensor).empty()) return;
  const float scale = descales(tensor)[descale_at(tensor, row)];
  for (int d = 0; d < problem_.head_dim; ++d) values[d] *= scale;
}

const std::vector<float>& Workload::descales(const Placement& tensor) const {
  return &tensor == &plan_.q ? q_descales_ : &tensor == &plan_.k ? k_descales_ : v_descales_;
}

const std::vector<Quantizer>& Workload::quantizers(const Placement& tensor) const {
  return &tensor == &plan_.q ? q_quantizers_ : &tensor == &plan_.k ? k_quantizers_ : v_quantizers_;
}

size_t Workload::descale_at(const Placement& tensor, RowId row) const {
  if (problem_.layout == Layout::kQkv && !problem_.quantize) return 0;
  const int group = &tensor == &plan_.q ? problem_.num_heads_q / problem_.num_heads_kv : 1;
  return size_t(row.b) * problem_.num_heads_kv + row.h / group;
}

Outputs::Outputs(const Problem& problem, Poison poison)
    : problem_(problem), plan_(plan_tensors(problem)), poison_(poison) {
  for (const int64_t elements : plan_.output_elements) {
    buffers.emplace_back(elements * element_bytes(output_type(problem.dtype)));
    fill_poison(buffers.back(), poison_);
  }
  if (problem.backward) return;
  lse.resize(plan_.lse_elements * sizeof(float));
  fill_poison(lse, poison_);
}

Outputs::Outputs(const Problem& problem, const AttentionCall& call) : Outputs(problem) {
  for (int output = 0; output < int(problem.output_names().size()); ++output) {
    const CallTensor from = problem.backward ? gradients_of(call)[1 + output] : tensors_of(call)[3];
    const Rows rows = problem.rows_of_output(output);
    for (int64_t number = 0; number < int64_t(rows.size()); ++number)
      std::memcpy(const_cast<void*>(row(rows[number])), from.row(number), from.row_bytes);
  }
  if (has_lse())
    std::memcpy(&lse[kGuardElements * sizeof(float)], call.lse, problem.num_rows() * sizeof(float));
}

const void* Outputs::row(RowId id) const {
  static const std::vector<PlannedTensor> kForward = outputs_of({}),
                                          kBackward = outputs_of({.backward = true});
  const Placement& t = plan_.*(problem_.backward ? kBackward : kForward)[id.output].at;
  return buffers[t.buffer].data() + t.at(id) * element_bytes(output_type(problem_.dtype));
}

void Outputs::zero_row(RowId id) {
  std::memset(const_cast<void*>(row(id)), 0, problem_.head_dim * element_bytes(output_type(problem_.dtype)));
}

float Outputs::lse_at(RowId row) const {
  if (problem_.earlier) return earlier.lse[EarlierResult::at(problem_, row)];
  float value;
  std::memcpy(&value, &lse[lse_offset(problem_, row)], sizeof value);
  return value;
}

std::string Outputs::damage() {
  const size_t bytes = element_bytes(output_type(problem_.dtype));
  const auto rows = problem_.rows();
  for (int64_t number = 0; number < problem_.num_output_rows(); ++number) {
    void* const at = const_cast<void*>(row(problem_.output_row(number)));
    fill_poison({static_cast<unsigned char*>(at), problem_.head_dim * bytes}, poison_);
  }
  if (!problem_.backward)
    fill_poison(std::span(lse).subspan(kGuardElements * sizeof(float), rows.size() * sizeof(float)), poison_);

  const auto first_change = [this](const std::vector<unsigned char>& data) -> int64_t {
    for (size_t i = 0; i + 1 < data.size(); i += 2) {
      if (std::memcmp(&data[i], &poison_, 2) != 0) return int64_t(i);
    }
    return -1;
  };
  const auto sentence = [](const std::string& tensor, int64_t element, int64_t first, int64_t last) {
    if (element < first)
      return tensor + " was written " + std::to_string(first - element) + " element(s) before its first one";
    if (element > last)
      return tensor + " was written " + std::to_string(element - last) + " element(s) past its end";
    return tensor + " was written in a gap between rows (element offset " + std::to_string(element - first) +
           ")";
  };
  const auto tensors = outputs_of(problem_);
  for (size_t buffer = 0; buffer < buffers.size(); ++buffer) {
    const int64_t at = first_change(buffers[buffer]);
    if (at < 0) continue;
    const bool fused = buffers.size() < tensors.size();
    int64_t first = plan_.output_elements[buffer], last = 0;
    for (const PlannedTensor& tensor : tensors) {
      const Placement& t = plan_.*tensor.at;
      if (t.buffer != int(buffer)) continue;
      first = std::min(first, t.offset);
      last = std::max(last, t.at(t.all_rows().back()) + t.head_dim - 1);
    }
    return sentence(fused ? "the fused tensor of dq, dk and dv" : tensors[buffer].name, at / int64_t(bytes),
                    first, last);
  }
  if (const int64_t at = first_change(lse); at >= 0)
    return sentence("lse", at / 4, kGuardElements, kGuardElements + rows.size() - 1);
  return "";
}

}  // namespace flashsteps
