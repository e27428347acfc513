// One attention problem: shapes, type, mask, lengths, layout, inputs. Everything that decides what is
// computed.
#pragma once

#include <compare>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/interface.h"

namespace flashsteps {

// Where the rows lie in memory.
enum class Layout {
  kBhsd,  // [batch, heads, seqlen, head_dim], contiguous
  kBshd,  // [batch, seqlen, heads, head_dim], contiguous
  kQkv,   // q, k and v are slices of one [batch, seqlen, heads_q + 2 heads_kv, head_dim] tensor; in FP8 each
          // has one scale for all of its heads
  kGapped,  // bhsd with 16-byte aligned gaps between rows, heads and batches; axes of extent 1 have odd
            // strides
  kOdd,     // bhsd with rows of odd pitch: aligned to nothing but the element
  kFar,     // rows, heads or batches, in each tensor others, end beyond 2^31 elements from the first
};

enum class Inputs {
  kNormal,      // q, k, v ~ N(0, 1)
  kSharp,       // q * 3: the softmax is far from uniform
  kShifted,     // normal, with scores moved by +100 or -100 (see tensors.cpp); fp16 and bf16 only
  kStructured,  // heads take turns at four attention patterns: local, strided, anchor, block
  kOffset,      // normal, with all scores of a head moved by +1000 or by -1000; fp16 and bf16 only
  kRamps,       // normal, with scores that grow from key to key, fall, or are all the same: by head
  kHuge,        // scores of +-2^20, and nothing between them; not for e4m3
  kRising,      // normal, with scores that grow with every 64 keys, in every head; fp16 and bf16 only
  kFalling,     // the same with scores that fall, faster
  kLeaps,       // in some rows, all scores of every second 128 keys lie higher than the others by as much as
                // some limit of a softmax that rescales lazily; normal in the other rows; fp16 and bf16 only
  kMean,        // normal, and 2 is added to V: its sums are of one sign
  kOutliers,    // normal, and one element of a thousand is ten times as large
  kChannels,    // normal, and k and v times 1/32 to 4: by channel
  kZeroKeys,    // normal, and k is 0
  kSpike,       // normal, and one element of each head of k and of v is +-1,000
  kNeedle,      // normal, but each query is one of the keys that it sees, times 4: that key's V is the answer
  kGiven,       // a caller's own, see problem_of()
};

enum class KvLengths {
  kFull,    // no lengths are passed: every batch has seqlen_kv keys
  kRandom,  // 1 .. seqlen_kv, at least one of them shorter
  kSkewed,  // the last batch has seqlen_kv, the others 1 (the first) .. seqlen_kv / 8
  kZeros,   // as random, and batch 0 has no key at all
  kGiven,   // a caller's own
};

// A row of a [batch, heads, rows, head_dim] tensor.
struct RowId {
  int b, h, i;
  int output = 0;  // of which one, where several are meant: see Problem::output_names()
  auto operator<=>(const RowId&) const = default;
};
// All of its rows, numbered batch by batch and head by head. (No view: clang 14 cannot compile libstdc++'s.)
class Rows {
 public:
  Rows(int batch, int heads, int rows, int output = 0)
      : heads_(heads), rows_(rows), output_(output), size_(size_t(batch) * heads * rows) {}
  size_t size() const { return size_; }
  RowId operator[](int64_t number) const {
    return {int(number / rows_ / heads_), int(number / rows_ % heads_), int(number % rows_), output_};
  }

  RowId back() const { return (*this)[int64_t(size_) - 1]; }

  class Iterator;
  Iterator begin() const;
  Iterator end() const;

 private:
  int heads_, rows_, output_;
  size_t size_;
};

class Rows::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = RowId;
  using difference_type = std::ptrdiff_t;
  using pointer = const RowId*;
  using reference = RowId;

  Iterator(const Rows& rows, int64_t number) : rows_(rows), number_(number) {}
  RowId operator*() const { return rows_[number_]; }
  Iterator& operator++() {
    ++number_;
    return *this;
  }
  Iterator operator++(int) { return {rows_, number_++}; }
  bool operator==(const Iterator& other) const { return number_ == other.number_; }

 private:
  Rows rows_;
  int64_t number_;
};

inline Rows::Iterator Rows::begin() const { return {*this, 0}; }
inline Rows::Iterator Rows::end() const { return {*this, int64_t(size_)}; }

// What memory holds that must not matter: outputs before a run, keys at or beyond kv_len, the gaps of
// strides, the bands around each buffer and, on the emulator, shared memory that nobody has written.
// 16 bits, repeated: a value in fp16, bf16 and fp32 alike. Each hides some mistakes, so each run of a step
// has another. NaN spreads through arithmetic, but fmaxf and fminf drop it. A large number survives a
// maximum, a small one a minimum, and neither a product with 0.
enum class Poison : uint16_t {
  kNan = 0xffa5,    // a NaN that no arithmetic produces: an output that still holds it was never written
  kLarge = 0x7b7b,  // 61,280 in fp16, 1.3e36 in bf16 and fp32
  kSmall = 0x0404,  // 6.1e-5 in fp16, 1.6e-36 in bf16 and fp32
};

inline std::string name(Poison poison) {
  return poison == Poison::kNan ? "NaN" : poison == Poison::kLarge ? "a large number" : "a small number";
}

struct Problem {
  int batch = 1, num_heads_q = 1, num_heads_kv = 1;
  int seqlen_q = 1, seqlen_kv = 1, head_dim = 64;
  DType dtype = DType::kFp16;
  bool causal = false;
  KvLengths kv_lengths = KvLengths::kFull;
  Layout layout = Layout::kBhsd;
  Inputs inputs = Inputs::kNormal;
  int page_size = 0;       // K and V lie in pages of so many keys, in random order; 0: they do not
  bool lse = true;         // false: the call has no place for it
  bool earlier = false;    // the result is merged with an earlier one, over other keys
  bool fast = false;       // an approximation will do: AttentionCall::fast
  bool fp8_cache = false;  // K and V are in e4m3, and q in dtype: AttentionCall::fp8_cache
  bool quantize = false;   // the step rounds q, k and v to e4m3: AttentionCall::quantize
  bool backward = false;   // the gradients of q, k and v are wanted: AttentionCall::backward
  int num_sms = 0;         // that the emulator says it has; 0: as few as it has otherwise. No GPU cares
  double given_scale = 0;  // softmax_scale, of 9 digits; 0: 1 / sqrt(head_dim)
  uint64_t seed = 1;
  std::vector<int> given_lengths = {};  // KvLengths::kGiven

  bool operator==(const Problem&) const = default;

  DType kv_dtype() const { return fp8_cache ? DType::kE4m3 : dtype; }
  // Of q, k and v as they are multiplied, unless K and V alone have another one.
  DType computed_dtype() const { return quantize ? DType::kE4m3 : dtype; }
  // Is it known what the inputs were before they were rounded to e4m3?
  bool knows_quantization() const {
    return quantize || (kv_dtype() == DType::kE4m3 && inputs != Inputs::kGiven);
  }
  bool may_approximate() const { return fast || quantize; }
  std::string label()
      const;  // "B=1 Hq=4 Hkv=4 Sq=256 Skv=256 D=64 fp16 causal", other axes when not the default
  // The length of every batch's keys: given, or drawn from the seed.
  std::vector<int> draw_kv_lengths() const;
  // The pages of each sequence, those of its first keys first: different numbers from 0 on, shuffled by the
  // seed, up to num_pages(). Some numbers are nobody's.
  std::vector<std::vector<int>> draw_pages() const;
  int num_pages() const;
  int max_pages() const;  // columns of the page table: some seeds leave more than the longest sequence needs
  // Keys that query `row` sees: 0 .. visible_keys - 1. The same rule as AttentionParams::visible_keys.
  int visible_keys(int row, int kv_len) const;
  // The first query that sees a key below kv_len, as all after it do. As BackwardParams::first_query.
  int first_query(int key, int kv_len) const;
  // 4 * head_dim * unmasked (query, key) pairs over batch and query heads: a multiply and an add in each of
  // two products. A backward pass has five.
  double flops() const;
  // Of all keys and values below their lengths, once: what has to come out of memory, next to which q and o
  // are little where there are few queries. (Every key is seen by some query, the last one.)
  double kv_bytes() const;
  Rows rows() const { return {batch, num_heads_q, seqlen_q}; }  // of q and o
  int64_t num_rows() const { return int64_t(rows().size()); }
  // What a step writes besides the log-sum-exp, numbered as in RowId::output: o, or the gradients.
  std::vector<std::string> output_names() const;
  Rows rows_of_output(int output) const;
  // The rows of all outputs, those of the first one first.
  int64_t num_output_rows() const;
  RowId output_row(int64_t number) const;
  float softmax_scale() const;
};

// By how much the scores of these inputs are moved, or grow in 32 keys, or in 64 (rising) or fall in 64
// (falling); 0: by nothing.
float moved_by(Inputs inputs);

// Do all scores change with every 64 keys, and in one direction?
bool is_steep(Inputs inputs);

// What is wrong with the problem's sizes, in a line that names the argument; empty when nothing is.
std::string shape_error(const Problem& problem);

// The names used on the command line and in the results file. The lists have no name for what only a caller
// brings.
std::string name(Layout layout);
std::string name(Inputs inputs);
std::string name(KvLengths kv_lengths);
std::string name(BackendKind backend);
template <typename Enum>
using Names = std::vector<std::pair<std::string, Enum>>;
extern const Names<DType> kDTypeNames;
extern const Names<Layout> kLayoutNames;
extern const Names<Inputs> kInputsNames;
extern const Names<KvLengths> kKvLengthsNames;

// As many as tell any two floats apart: for Problem::given_scale.
double nine_digits(double value);

// A small sample of the problem contract in which every two choices meet.
//
// At least 60 problems such that every value of every axis appears, and every feasible pair of values of two
// axes (rows, how many keys for them, mask, kv_lengths, type, head_dim, batch, heads, layout, inputs,
// softmax_scale, what becomes of the LSE, page size) appears in some problem. Of those that would do,
// mostly cheap ones: a long sequence meets many heads or batches only where it must. Then come some that no
// pair brings, such as one query of each of 33 sequences, 17,000 keys, or scores that grow by 2^16. The same
// list every time. It has what the step takes: fp32, rows without alignment, K and V in pages, an earlier
// result.
std::vector<Problem> covering_sample(const StepInfo& step);

}  // namespace flashsteps
