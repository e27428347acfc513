#include "harness/problem/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "harness/base/element.h"
#include "harness/base/heartbeat.h"
#include "harness/base/random.h"
#include "harness/problem/tensors_file.h"

namespace flashsteps {
namespace {

enum Stream : uint64_t { kQ = 1, kK = 2, kV = 3, kAnchor = 4, kBlock = 5, kNoise = 6 };

struct Extent {
  int64_t batch, heads, rows, head_dim;
};

// [batch, heads, rows, head_dim] with the given pitches, starting after the guard band.
Placement place(int buffer, const Extent& e, int64_t row_gap, int64_t block_gap, int64_t shift) {
  const int64_t row_stride = e.head_dim + row_gap;
  const int64_t head_stride = e.rows * row_stride + block_gap;
  const int64_t batch_stride = e.heads * head_stride + block_gap;
  return {buffer, kGuardElements + shift, batch_stride, head_stride, row_stride};
}

Placement place_bshd(int buffer, const Extent& e) {
  return {buffer, kGuardElements, e.rows * e.heads * e.head_dim, e.head_dim, e.heads * e.head_dim};
}

// The same extents with one stride so large that the last row begins beyond 2^31 elements: of the first among
// batches, heads and rows, taken in turn from number `first` on, that there are two of.
Placement place_far(int buffer, const Extent& e, int first) {
  const int64_t count[] = {e.batch, e.heads, e.rows};
  int far = first;
  while (count[far] == 1 && (far + 1) % 3 != first) far = (far + 1) % 3;
  int64_t stride[3];
  int64_t next = e.head_dim + 2 * kMargin;
  for (const int axis : {2, 1, 0}) {
    if (axis == far) continue;
    stride[axis] = next;
    next *= count[axis];
  }
  stride[far] = next + ((int64_t(1) << 31) / std::max<int64_t>(count[far] - 1, 1) / 8 + 1) * 8;
  return {buffer, kGuardElements, stride[0], stride[1], stride[2]};
}

int64_t elements_far(const Placement& p, const Extent& e) {
  return p.row(int(e.batch) - 1, int(e.heads) - 1, int(e.rows) - 1) + e.head_dim + kGuardElements;
}

int64_t elements(const Placement& p, int64_t batch) {
  return p.offset + batch * p.batch_stride + kGuardElements;
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

void normal_row(const Problem& p, Stream stream, int64_t row_index, float factor, float* row) {
  for (int f = 0; f < p.head_dim; f += 2) {
    random_normal_pair(p.seed, stream, (row_index * p.head_dim + f) / 2, row[f], row[f + 1]);
    row[f] *= factor;
    row[f + 1] *= factor;
  }
}

void fill_poison(std::span<unsigned char> bytes, Poison poison) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) std::memcpy(&bytes[i], &poison, 2);
}

}  // namespace

void parallel_for(int64_t count, const std::function<void(int64_t, int64_t)>& fn) {
  const int64_t num_threads =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(count, 1));
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < num_threads; ++t)
    threads.emplace_back([&, t] { fn(count * t / num_threads, count * (t + 1) / num_threads); });
  fn(0, count / num_threads);
  for (auto& thread : threads) thread.join();
}

TensorPlan plan_tensors(const Problem& p) {
  const Extent q{p.batch, p.num_heads_q, p.seqlen_q, p.head_dim};
  const Extent kv{p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim};
  TensorPlan plan;
  switch (p.layout) {
    case Layout::kBshd:
      plan.q = place_bshd(0, q);
      plan.k = place_bshd(1, kv);
      plan.v = place_bshd(2, kv);
      plan.o = place_bshd(0, q);
      break;
    case Layout::kQkv: {
      // One tensor for all three; the shorter of q and kv leaves its remaining rows unused.
      const int64_t heads = p.num_heads_q + 2 * int64_t(p.num_heads_kv);
      const int64_t rows = std::max(p.seqlen_q, p.seqlen_kv);
      plan.q = place_bshd(0, {p.batch, heads, rows, p.head_dim});
      plan.k = plan.v = plan.q;
      plan.k.offset += int64_t(p.num_heads_q) * p.head_dim;
      plan.v.offset += (int64_t(p.num_heads_q) + p.num_heads_kv) * p.head_dim;
      plan.o = place_bshd(0, q);
      plan.input_elements.push_back(elements(plan.q, p.batch));
      break;
    }
    case Layout::kBhsd:
    case Layout::kGapped:
    case Layout::kOdd:
    case Layout::kFar: {
      const int64_t row_gap = p.layout == Layout::kGapped ? 8 : p.layout == Layout::kOdd ? 1 : 0;
      const int64_t block_gap = p.layout == Layout::kGapped ? 16 : p.layout == Layout::kOdd ? 3 : 0;
      const int64_t shift = p.layout == Layout::kOdd ? 1 : 0;
      // Each tensor has pitches of its own, so that a kernel that takes another one's goes wrong. Odd ones
      // stay odd.
      const int64_t odd = p.layout == Layout::kOdd ? 1 : 0;
      const int64_t margins = p.layout == Layout::kFar ? 2 * kMargin : 0;
      plan.q = place(0, q, row_gap + margins, block_gap, shift);
      plan.k = place(1, kv, 2 * row_gap + odd + margins, block_gap, shift);
      plan.v = place(2, kv, 3 * row_gap + 2 * odd + margins, 2 * block_gap, shift);
      plan.o = place(0, q, 4 * row_gap + 3 * odd + margins, 3 * block_gap, shift);
      break;
    }
  }
  if (plan.input_elements.empty()) {
    for (const Placement& tensor : {plan.q, plan.k, plan.v})
      plan.input_elements.push_back(elements(tensor, p.batch));
  }
  plan.output_elements = elements(plan.o, p.batch);
  plan.lse_elements = p.num_rows() + 2 * kGuardElements;
  return plan;
}

TensorPlan plan_on_device(const Problem& p) {
  TensorPlan plan = plan_tensors(p);
  if (p.layout != Layout::kFar) return plan;
  const Extent q{p.batch, p.num_heads_q, p.seqlen_q, p.head_dim};
  const Extent kv{p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim};
  plan.q = place_far(0, q, 2);
  plan.k = place_far(1, kv, 1);
  plan.v = place_far(2, kv, 0);
  plan.o = place_far(0, q, 0);
  plan.input_elements = {elements_far(plan.q, q), elements_far(plan.k, kv), elements_far(plan.v, kv)};
  plan.output_elements = elements_far(plan.o, q);
  return plan;
}

double total_bytes(const Problem& problem, const TensorPlan& plan) {
  double total = double(plan.output_elements) * element_bytes(problem.dtype) + 4.0 * plan.lse_elements;
  for (const int64_t n : plan.input_elements) total += double(n) * element_bytes(problem.dtype);
  return total;
}

Workload::Workload(const Problem& problem)
    : problem_(problem), plan_(plan_tensors(problem)), kv_lengths_(problem.draw_kv_lengths()) {
  for (const int64_t n : plan_.input_elements) {
    inputs_.emplace_back(n * element_bytes(problem_.dtype));
    fill_poison(inputs_.back(), poison_);
  }
  problem_.inputs == Inputs::kFile ? read_file() : generate();
}

bool Workload::poison(Poison poison) {
  if (poison == poison_) return false;
  poison_ = poison;
  const size_t row_bytes = problem_.head_dim * element_bytes(problem_.dtype);
  const std::vector<std::vector<unsigned char>> before = std::move(inputs_);
  inputs_.clear();
  for (const auto& buffer : before) {
    inputs_.emplace_back(buffer.size());
    fill_poison(inputs_.back(), poison_);
  }
  const auto keep = [&](const Placement& placement, int heads, auto&& rows) {
    for (int b = 0; b < problem_.batch; ++b) {
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < rows(b); ++i) {
          const size_t at = placement.row(b, h, i) * element_bytes(problem_.dtype);
          std::memcpy(&inputs_[placement.buffer][at], &before[placement.buffer][at], row_bytes);
        }
      }
    }
  };
  const auto all_queries = [&](int) { return problem_.seqlen_q; };
  const auto valid_keys = [&](int b) { return kv_lengths_[b]; };
  keep(plan_.q, problem_.num_heads_q, all_queries);
  keep(plan_.k, problem_.num_heads_kv, valid_keys);
  keep(plan_.v, problem_.num_heads_kv, valid_keys);
  return true;
}

void Workload::read_file() {
  if (problem_.layout != Layout::kBhsd && problem_.layout != Layout::kBshd)
    throw std::logic_error("a file's tensors are contiguous");
  const size_t bytes = element_bytes(problem_.dtype);
  const Placement* const placements[] = {&plan_.q, &plan_.k, &plan_.v};
  read_tensors(problem_, [&](int t, uint64_t offset, const unsigned char* data, size_t n) {
    std::memcpy(inputs_[placements[t]->buffer].data() + placements[t]->offset * bytes + offset, data, n);
  });
  // Whatever the padding holds, a step must not see it: poison would show.
  for (const Placement* const p : {&plan_.k, &plan_.v}) {
    for (int b = 0; b < problem_.batch; ++b) {
      for (int h = 0; h < problem_.num_heads_kv; ++h) {
        for (int j = kv_lengths_[b]; j < problem_.seqlen_kv; ++j)
          fill_poison(
              std::span(inputs_[p->buffer]).subspan(p->row(b, h, j) * bytes, problem_.head_dim * bytes),
              poison_);
      }
    }
  }
}

void Workload::generate() {
  const size_t bytes = element_bytes(problem_.dtype);
  const auto fill = [&](const Placement& placement, int heads, int rows, auto&& valid_rows, auto&& make_row) {
    parallel_for(int64_t(problem_.batch) * heads * rows, [&](int64_t begin, int64_t end) {
      std::vector<float> row(problem_.head_dim);
      for (int64_t index = begin; index < end; ++index) {
        const int i = int(index % rows);
        const int h = int(index / rows % heads);
        const int b = int(index / rows / heads);
        if (i >= valid_rows(b)) continue;  // padding stays poison
        make_row(b, h, i, index, row.data());
        unsigned char* const out = inputs_[placement.buffer].data() + placement.row(b, h, i) * bytes;
        for (int d = 0; d < problem_.head_dim; ++d) store_element(problem_.dtype, out + d * bytes, row[d]);
        heartbeat();
      }
    });
  };
  const bool structured = problem_.inputs == Inputs::kStructured;
  // What the scores are moved by comes from one coordinate, in which every query is alike.
  const float size = moved_by(problem_.inputs);
  const float coordinate = std::sqrt(size / problem_.softmax_scale());
  const auto key_coordinate = [&](int b, int h, int i) -> float {
    switch (problem_.inputs) {
      // The sign changes a tile's length at a time: exp() overflows unless the running maximum is subtracted,
      // and that has to be updated.
      case Inputs::kShifted:
      case Inputs::kHuge:
        return (b + h + i / 64) % 2 == 0 ? coordinate : -coordinate;
      case Inputs::kOffset:
        return (b + h) % 2 == 0 ? -coordinate : coordinate;
      default: {  // kRamps: by 2 in 64 keys
        const int kind = int((b + h + problem_.seed) % 3);
        return kind == 0 ? coordinate * float(i) / 32 : kind == 1 ? -coordinate * float(i) / 32 : 0.0f;
      }
    }
  };
  const float q_factor = problem_.inputs == Inputs::kSharp ? 3.0f : 1.0f;
  const auto constant = [&](int b, int h) {  // all keys of the head are one
    return problem_.inputs == Inputs::kRamps && (b + h + problem_.seed) % 3 == 2;
  };
  const auto all_queries = [&](int) { return problem_.seqlen_q; };
  const auto valid_keys = [&](int b) { return kv_lengths_[b]; };
  const int heads_per_kv = problem_.num_heads_q / problem_.num_heads_kv;
  fill(plan_.q, problem_.num_heads_q, problem_.seqlen_q, all_queries,
       [&](int b, int h, int i, int64_t index, float* row) {
         const int position = i + problem_.seqlen_kv - problem_.seqlen_q;
         structured ? structured_row(problem_, true, b, h / heads_per_kv, position, row)
                    : normal_row(problem_, kQ, index, q_factor, row);
         if (problem_.inputs == Inputs::kHuge) std::fill_n(row, problem_.head_dim, 0.0f);
         if (size > 0) row[0] = coordinate;
       });
  fill(plan_.k, problem_.num_heads_kv, problem_.seqlen_kv, valid_keys,
       [&](int b, int h, int i, int64_t index, float* row) {
         structured ? structured_row(problem_, false, b, h, i, row)
                    : normal_row(problem_, kK, constant(b, h) ? index - i : index, 1.0f, row);
         if (size > 0) row[0] = key_coordinate(b, h, i);
       });
  fill(plan_.v, problem_.num_heads_kv, problem_.seqlen_kv, valid_keys,
       [&](int, int, int, int64_t index, float* row) { normal_row(problem_, kV, index, 1.0f, row); });
}

const void* Workload::at(const Placement& p, int b, int h, int i) const {
  return inputs_[p.buffer].data() + p.row(b, h, i) * element_bytes(problem_.dtype);
}

Outputs::Outputs(const Problem& problem, Poison poison)
    : problem_(problem), plan_(plan_tensors(problem)), poison_(poison) {
  o.resize(plan_.output_elements * element_bytes(problem.dtype));
  lse.resize(plan_.lse_elements * sizeof(float));
  fill_poison(o, poison_);
  fill_poison(lse, poison_);
}

const void* Outputs::o_row(int b, int h, int i) const {
  return o.data() + plan_.o.row(b, h, i) * element_bytes(problem_.dtype);
}

float Outputs::lse_at(int b, int h, int i) const {
  float value;
  const int64_t index = kGuardElements + (int64_t(b) * problem_.num_heads_q + h) * problem_.seqlen_q + i;
  std::memcpy(&value, lse.data() + index * sizeof(float), sizeof(float));
  return value;
}

std::string Outputs::damage() {
  const size_t bytes = element_bytes(problem_.dtype);
  const int64_t rows = problem_.num_rows();
  for (int64_t index = 0; index < rows; ++index) {
    const int i = int(index % problem_.seqlen_q);
    const int h = int(index / problem_.seqlen_q % problem_.num_heads_q);
    const int b = int(index / problem_.seqlen_q / problem_.num_heads_q);
    fill_poison(std::span(o).subspan(plan_.o.row(b, h, i) * bytes, problem_.head_dim * bytes), poison_);
  }
  fill_poison(std::span(lse).subspan(kGuardElements * sizeof(float), rows * sizeof(float)), poison_);

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
  if (const int64_t at = first_change(o); at >= 0) {
    const int64_t last_row = plan_.o.row(problem_.batch - 1, problem_.num_heads_q - 1, problem_.seqlen_q - 1);
    return sentence("o", at / int64_t(bytes), plan_.o.offset, last_row + problem_.head_dim - 1);
  }
  if (const int64_t at = first_change(lse); at >= 0)
    return sentence("lse", at / 4, kGuardElements, kGuardElements + rows - 1);
  return "";
}

}  // namespace flashsteps
