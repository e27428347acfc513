// The tensors of a problem in host memory: where every row lies, what surrounds it, and what the rows hold.
//
// Whatever a step must not read (K and V rows at or beyond kv_len, gaps of strides, the bands around each
// buffer) is poison, another one in each run, and whatever it must not write (bands and gaps of the outputs)
// is compared afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/interface.h"
#include "harness/base/quantizer.h"
#include "harness/problem/problem.h"

namespace flashsteps {

constexpr int64_t kGuardElements = 128;  // before and after every buffer; keeps 256-byte alignment

// A [batch, heads, rows, head_dim] tensor inside buffer number `buffer`. Everything in elements. K and V in
// pages have a batch for each page of the pool, and a row for each key of a page.
struct Placement {
  int buffer, batch, heads, rows, head_dim;
  int64_t offset = kGuardElements, batch_stride = 0, head_stride = 0, row_stride = 0;

  Rows all_rows() const { return {batch, heads, rows}; }
  int64_t at(RowId row) const {
    return offset + row.b * batch_stride + row.h * head_stride + row.i * row_stride;
  }
};

struct TensorPlan {
  Placement q, k, v;          // in input buffers
  Placement o;                // in an output buffer; of a backward pass, in an input one
  Placement d_o, dq, dk, dv;  // of a backward pass: an input and three outputs
  std::vector<int64_t> input_elements, output_elements;  // per buffer, guard bands included
  int64_t lse_elements;                                  // floats, guard bands included
};
// The tensors that a step reads, and those that it writes, as RowId::output numbers them.
struct PlannedTensor {
  const char* name;
  Placement TensorPlan::*at;
};
std::vector<PlannedTensor> inputs_of(const Problem& problem);
std::vector<PlannedTensor> outputs_of(const Problem& problem);

// On the host. In layout `far` each row, with kMargin elements on either side, is somewhere else on the
// device.
TensorPlan plan_tensors(const Problem& problem);
TensorPlan plan_on_device(const Problem& problem);
constexpr int64_t kMargin = 8;

// Bytes of the problem's inputs and outputs.
double total_bytes(const Problem& problem, const TensorPlan& plan);

// A result over other keys, that a call merges its own with: PartialResult. Some rows have none yet, and the
// rows that are more than the problem's belong to nobody.
struct EarlierResult {
  static constexpr int kSpareRows = 3;
  std::vector<float> o,
      lse;  // [batch, num_heads_q, seqlen_q + kSpareRows, head_dim], and the same without the last
  static size_t at(const Problem& p, RowId row) {  // its number in there
    return (size_t(row.b) * p.num_heads_q + row.h) * (p.seqlen_q + kSpareRows) + row.i;
  }
};

// The problem that a call on the host is. Throws std::invalid_argument, whose text begins with the argument,
// where nothing can be judged: NaN or Inf among the inputs that count, or values so large that sums overflow
// in FP32.
Problem problem_of(const AttentionCall& call);

class Workload {
 public:
  // Fills the inputs on all cores. The poison is NaN. Of a backward pass o and lse are poison, too, until
  // set_forward_result() has been called for every row: see workload_of() in harness/judge/validate.h.
  explicit Workload(const Problem& problem);
  // Of Inputs::kGiven: with what this call on the host has.
  Workload(const Problem& problem, const AttentionCall& given);

  // With the values that the inputs had before they were rounded to e4m3, by the harness or by the step. For
  // Problem::knows_quantization().
  Workload before_quantization() const;

  // Puts another poison wherever a step must not read. True when there was another one.
  bool poison(Poison poison);
  // That is where, in an input buffer: stretches of it, in bytes, in their order.
  struct Stretch {
    size_t begin, end;
  };
  const std::vector<Stretch>& unreadable(int buffer) const { return unreadable_[buffer]; }

  const Problem& problem() const { return problem_; }
  const TensorPlan& plan() const { return plan_; }
  const std::vector<int>& kv_lengths() const { return kv_lengths_; }
  // [batch, max_pages], or nothing; poison where a sequence has no page any more.
  const std::vector<int>& page_table() const { return page_table_; }
  std::span<const unsigned char> input(int buffer) const { return inputs_[buffer]; }
  // Of a backward pass: what the forward pass has left of a row. `o` is rounded to the type.
  void set_forward_result(RowId row, const float* o, float lse);
  std::span<const unsigned char> lse() const { return lse_; }
  float lse_at(RowId row) const;
  const EarlierResult& earlier() const { return earlier_; }  // empty without Problem::earlier

  // One row of head_dim elements.
  const void* q_row(RowId row) const { return at(plan_.q, row); }
  const void* k_row(RowId row) const { return at(plan_.k, place_of(row)); }
  const void* v_row(RowId row) const { return at(plan_.v, place_of(row)); }
  // The values of a row: its elements times its scale, or what a step that quantizes makes of them.
  void load_q(RowId row, float* values) const { load(plan_.q, row, row, values); }
  void load_k(RowId row, float* values) const { load(plan_.k, place_of(row), row, values); }
  void load_v(RowId row, float* values) const { load(plan_.v, place_of(row), row, values); }
  void load_o(RowId row, float* values) const { load(plan_.o, row, row, values); }
  void load_d_o(RowId row, float* values) const { load(plan_.d_o, row, row, values); }
  // Of q, k and v: [batch, num_heads_kv], or one for all; nothing where the type has no scales.
  const std::vector<float>& q_descales() const { return q_descales_; }
  const std::vector<float>& k_descales() const { return k_descales_; }
  const std::vector<float>& v_descales() const { return v_descales_; }

 private:
  void allocate();
  void generate();
  void find_unreadable();
  void find_quantizers();
  void make_page_table();
  void make_earlier();
  // Where a key is in k and v, and which key is there, if one is; of a key at or beyond the length, nothing.
  RowId place_of(RowId key) const;
  std::optional<RowId> key_at(RowId place) const;
  bool is_of_keys(const Placement& tensor) const { return &tensor == &plan_.k || &tensor == &plan_.v; }
  // Which query or key is there, if a step may read it.
  std::optional<RowId> readable_row(const Placement& tensor, RowId place) const;
  const void* at(const Placement& tensor, RowId row) const;
  void load(const Placement& tensor, RowId place, RowId row, float* values) const;
  const std::vector<float>& descales(const Placement& tensor) const;
  const std::vector<Quantizer>& quantizers(const Placement& tensor) const;
  // Where a row's scale is among those of its tensor.
  size_t descale_at(const Placement& tensor, RowId row) const;

  Problem problem_;
  TensorPlan plan_;
  std::vector<int> kv_lengths_;
  std::vector<std::vector<int>> pages_;  // of each sequence
  std::vector<RowId> first_keys_;        // of each page of the pool: b and i; b is -1 where it is nobody's
  std::vector<int> page_table_;
  std::vector<std::vector<unsigned char>> inputs_;
  std::vector<unsigned char> lse_;                // of a backward pass: plan().lse_elements floats
  std::vector<std::vector<Stretch>> unreadable_;  // of each input
  std::vector<float> q_descales_, k_descales_, v_descales_;
  std::vector<Quantizer> q_quantizers_, k_quantizers_, v_quantizers_;  // [batch, num_heads_kv], or nothing
  EarlierResult earlier_;
  Poison poison_ = Poison::kNan;
};

// The outputs as downloaded from the device, and what they looked like before the step ran.
class Outputs {
 public:
  explicit Outputs(const Problem& problem, Poison poison = Poison::kNan);
  // What a call on the host has left, without its gaps.
  Outputs(const Problem& problem, const AttentionCall& call);

  std::vector<std::vector<unsigned char>> buffers;  // plan().output_elements of output_type()
  std::vector<unsigned char> lse;                   // nothing of a backward pass, which reads it
  EarlierResult earlier;                            // with Problem::earlier: what the call has made of it

  const void* row(RowId row) const;  // of output row.output
  bool has_lse() const { return problem_.lse && !problem_.backward; }
  float lse_at(RowId row) const;
  void zero_row(RowId row);
  // The first byte outside the logical elements that changed, as a sentence; empty when none did. Overwrites
  // the logical elements with poison on the way: call it last.
  std::string damage();

 private:
  Problem problem_;
  TensorPlan plan_;
  Poison poison_;
};

// Runs fn(begin, end) over [0, count) on all cores. fn must not throw.
void parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& fn);

}  // namespace flashsteps
