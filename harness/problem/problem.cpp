#include "harness/problem/problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "harness/base/random.h"
#include "harness/base/text.h"

namespace flashsteps {
namespace {

template <typename Enum>
std::string find_name(const Names<Enum>& names, Enum value) {
  const auto found = std::ranges::find(names, value, &std::pair<std::string, Enum>::second);
  if (found == names.end()) throw std::logic_error("an enumerator without a name");
  return found->first;
}

constexpr const char* kGivenByCaller = "given";
constexpr const char* kNineDigits = "%.9g";
constexpr float kLn2 = 0.693147181f;
constexpr int kMostSteepKeys = 64 * 256;
constexpr uint64_t kLengthStream = 100, kPageStream = 101;  // apart from the tensors' streams in tensors.cpp
constexpr int kSparePages = 3;

}  // namespace

const Names<DType> kDTypeNames{{name(DType::kFp32), DType::kFp32},
                               {name(DType::kFp16), DType::kFp16},
                               {name(DType::kBf16), DType::kBf16},
                               {name(DType::kE4m3), DType::kE4m3}};
const Names<Layout> kLayoutNames{{"bhsd", Layout::kBhsd},     {"bshd", Layout::kBshd}, {"qkv", Layout::kQkv},
                                 {"gapped", Layout::kGapped}, {"odd", Layout::kOdd},   {"far", Layout::kFar}};
const Names<Inputs> kInputsNames{{"normal", Inputs::kNormal},      {"sharp", Inputs::kSharp},
                                 {"shifted", Inputs::kShifted},    {"structured", Inputs::kStructured},
                                 {"offset", Inputs::kOffset},      {"ramps", Inputs::kRamps},
                                 {"huge", Inputs::kHuge},          {"rising", Inputs::kRising},
                                 {"falling", Inputs::kFalling},    {"leaps", Inputs::kLeaps},
                                 {"mean", Inputs::kMean},          {"outliers", Inputs::kOutliers},
                                 {"channels", Inputs::kChannels},  {"needle", Inputs::kNeedle},
                                 {"zero_keys", Inputs::kZeroKeys}, {"spike", Inputs::kSpike}};
const Names<KvLengths> kKvLengthsNames{{"full", KvLengths::kFull},
                                       {"random", KvLengths::kRandom},
                                       {"skewed", KvLengths::kSkewed},
                                       {"zeros", KvLengths::kZeros}};

std::string name(Layout layout) { return find_name(kLayoutNames, layout); }
std::string name(Inputs inputs) {
  return inputs == Inputs::kGiven ? kGivenByCaller : find_name(kInputsNames, inputs);
}
std::string name(KvLengths kv_lengths) {
  return kv_lengths == KvLengths::kGiven ? kGivenByCaller : find_name(kKvLengthsNames, kv_lengths);
}
std::string name(BackendKind backend) { return backend == BackendKind::kCuda ? "cuda" : "emulator"; }

std::string Problem::label() const {
  std::string text = "B=" + std::to_string(batch) + " Hq=" + std::to_string(num_heads_q) +
                     " Hkv=" + std::to_string(num_heads_kv) + " Sq=" + std::to_string(seqlen_q) +
                     " Skv=" + std::to_string(seqlen_kv) + " D=" + std::to_string(head_dim) + " " +
                     name(dtype) + (causal ? " causal" : " full");
  if (kv_lengths != KvLengths::kFull) text += " kv_lengths=" + name(kv_lengths);
  if (layout != Layout::kBhsd) text += " layout=" + name(layout);
  if (inputs != Inputs::kNormal) text += " inputs=" + name(inputs);
  if (page_size != 0) text += " page_size=" + std::to_string(page_size);
  if (!lse) text += " lse=none";
  if (earlier) text += " earlier=merged";
  if (fast) text += " fast=yes";
  if (fp8_cache) text += " cache=e4m3";
  if (quantize) text += " quantize=yes";
  if (backward) text += " backward=yes";
  if (num_sms != 0) text += " num_sms=" + std::to_string(num_sms);
  if (given_scale != 0) text += " softmax_scale=" + format(kNineDigits, given_scale);
  if (seed != 1) text += " seed=" + std::to_string(seed);
  return text;
}

std::vector<int> Problem::draw_kv_lengths() const {
  if (kv_lengths == KvLengths::kGiven) return given_lengths;
  std::vector<int> lengths(batch, seqlen_kv);
  if (kv_lengths == KvLengths::kFull) return lengths;
  const bool skewed = kv_lengths == KvLengths::kSkewed;
  const int most = skewed ? std::max(1, seqlen_kv / 8) : seqlen_kv;
  for (int b = 0; b < batch; ++b) lengths[b] = 1 + int(random_bits(seed, kLengthStream, b) % most);
  if (skewed) {
    lengths.front() = 1;
    lengths.back() = seqlen_kv;
    return lengths;
  }
  // At least one batch must have padding, or the axis would test nothing.
  if (seqlen_kv > 1 && *std::min_element(lengths.begin(), lengths.end()) == seqlen_kv)
    lengths[0] = seqlen_kv - 1;
  if (kv_lengths == KvLengths::kZeros) lengths[0] = 0;
  return lengths;
}

std::vector<std::vector<int>> Problem::draw_pages() const {
  std::vector<int> free(num_pages());
  std::iota(free.begin(), free.end(), 0);
  uint64_t draws = 0;
  std::vector<std::vector<int>> pages;
  for (const int kv_len : draw_kv_lengths()) {
    std::vector<int>& own = pages.emplace_back();
    while (int64_t(own.size()) * page_size < kv_len) {
      std::swap(free[random_bits(seed, kPageStream, draws++) % free.size()], free.back());
      own.push_back(free.back());
      free.pop_back();
    }
  }
  return pages;
}

int Problem::num_pages() const {
  int pages = kSparePages;
  for (const int kv_len : draw_kv_lengths()) pages += (kv_len + page_size - 1) / page_size;
  return pages;
}

int Problem::max_pages() const { return (seqlen_kv + page_size - 1) / page_size + int(seed % 3); }

int Problem::visible_keys(int row, int kv_len) const {
  return causal ? std::clamp(row + 1 + (kv_len - seqlen_q), 0, kv_len) : kv_len;
}

int Problem::first_query(int key, int kv_len) const {
  return causal ? std::clamp(key - (kv_len - seqlen_q), 0, seqlen_q) : 0;
}

double Problem::flops() const {
  double pairs = 0;
  for (const int kv_len : draw_kv_lengths()) {
    // Causal is visible_keys summed over the rows: 1 + 2 + ... up to kv_len, of which the last seqlen_q terms
    // exist.
    const double hidden = std::max(kv_len - seqlen_q, 0);
    pairs +=
        causal ? (double(kv_len) * (kv_len + 1.0) - hidden * (hidden + 1.0)) / 2 : double(seqlen_q) * kv_len;
  }
  return (backward ? 10.0 : 4.0) * head_dim * num_heads_q * pairs;
}

std::vector<std::string> Problem::output_names() const {
  if (backward) return {"dq", "dk", "dv"};
  return {"o"};
}

Rows Problem::rows_of_output(int output) const {
  return output == 0 ? Rows(batch, num_heads_q, seqlen_q) : Rows(batch, num_heads_kv, seqlen_kv, output);
}

int64_t Problem::num_output_rows() const {
  return num_rows() + (backward ? 2 * int64_t(rows_of_output(1).size()) : 0);
}

RowId Problem::output_row(int64_t number) const {
  if (number < num_rows()) return rows()[number];
  const int64_t of_keys = number - num_rows(), keys = int64_t(rows_of_output(1).size());
  return rows_of_output(1 + int(of_keys / keys))[of_keys % keys];
}

double Problem::kv_bytes() const {
  double keys = 0;
  for (const int kv_len : draw_kv_lengths()) keys += kv_len;
  return 2.0 * keys * num_heads_kv * head_dim * double(element_bytes(kv_dtype()));
}

float Problem::softmax_scale() const {
  return given_scale != 0 ? float(given_scale) : 1.0f / std::sqrt(float(head_dim));
}

float moved_by(Inputs inputs) {
  switch (inputs) {
    case Inputs::kShifted:
      return 100.0f;
    case Inputs::kOffset:
      return 1000.0f;
    case Inputs::kRamps:
      return 1.0f;
    case Inputs::kHuge:
      return 0x1p20f;
    // 24 in units of log2. The lazy softmax rescales above 15 (kMaxGrowth), and the noise takes back less
    // than the other 9, 6 natural units: the largest of 64 of N(0, 1) is between 1 and 6. More would cost
    // digits, since the last scores grow with the number of keys.
    case Inputs::kRising:
      return 24 * kLn2;
    // 128: P of the next 64 keys passes 2^100 (kLostSum), whatever the noise, where keys are met from the
    // last on. It costs no digits, since the first keys alone count, whose scores are near 0.
    case Inputs::kFalling:
      return 128 * kLn2;
    default:
      return 0.0f;
  }
}

bool is_steep(Inputs inputs) { return inputs == Inputs::kRising || inputs == Inputs::kFalling; }

std::string shape_error(const Problem& p) {
  if (std::string error =
          size_error(p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim);
      !error.empty())
    return error;
  if (p.page_size != 0 && !std::has_single_bit(unsigned(p.page_size)))
    return "page_size is " + std::to_string(p.page_size) + ", it must be a power of two";
  if (p.page_size != 0 && p.layout == Layout::kQkv)
    return "layout 'qkv' has q, k and v in one tensor, and K and V in pages are not in one with q";
  // Scores near 100 have no digits left for the gates of fp32 to judge.
  const bool large = p.inputs == Inputs::kShifted || p.inputs == Inputs::kOffset ||
                     p.inputs == Inputs::kLeaps || is_steep(p.inputs);
  if ((large || (p.backward && p.inputs == Inputs::kHuge)) && p.dtype == DType::kFp32)
    return "inputs '" + name(p.inputs) +
           "' are for fp16 and bf16: rounding of such scores alone exceeds the gates of fp32";
  if (p.quantize && p.dtype != DType::kFp16 && p.dtype != DType::kBf16)
    return "q, k and v can be rounded to e4m3 where they are fp16 or bf16, not " + name(p.dtype);
  if (p.quantize && p.fp8_cache) return "K and V in e4m3 cannot be rounded to it";
  // FP8 products are summed with 14 bits, and e4m3 cannot tell the keys of the steep ones apart. Of `huge`
  // all P that count are one number, whose rounding is an error of all elements alike.
  if ((large || p.inputs == Inputs::kHuge) && p.computed_dtype() == DType::kE4m3)
    return "inputs '" + name(p.inputs) + "' are not for e4m3: it has too few digits for such scores";
  if (is_steep(p.inputs) && p.seqlen_kv > kMostSteepKeys)
    return "inputs '" + name(p.inputs) + "' are for up to " + std::to_string(kMostSteepKeys) +
           " keys: bf16 cannot count more tiles of 64";
  if (p.fp8_cache && p.dtype != DType::kFp16 && p.dtype != DType::kBf16)
    return "K and V can be in e4m3 alone where q is fp16 or bf16, not " + name(p.dtype);
  if (p.fp8_cache && p.layout == Layout::kQkv)
    return "layout 'qkv' has q, k and v in one tensor, and K and V in e4m3 are not in one with q";
  if (p.fp8_cache && p.inputs == Inputs::kLeaps)
    return "inputs 'leaps' are not for K in e4m3, which rounds the leaps";
  if (p.fast && p.dtype != DType::kE4m3) return "only e4m3 has fast approximations";
  const bool has_more = p.page_size != 0 || !p.lse || p.earlier || p.fp8_cache || p.quantize;
  if (p.backward && (has_more || p.dtype == DType::kE4m3))
    return "a backward pass is for fp32, fp16 and bf16, with a log-sum-exp, without pages, an earlier result "
           "or "
           "e4m3";
  if (p.earlier && !p.lse)
    return "an earlier result has a log-sum-exp, which the call replaces: it cannot be unwanted";
  const double product = moved_by(p.inputs) / p.softmax_scale();
  const double coordinate = is_steep(p.inputs) ? product : std::sqrt(product);
  if (p.dtype == DType::kFp16 && coordinate * (p.inputs == Inputs::kRamps ? p.seqlen_kv / 32.0 : 1.0) > 6e4)
    return "inputs '" + name(p.inputs) + "' exceed the range of fp16 at this softmax_scale";
  return "";
}

double nine_digits(double value) { return std::strtod(format(kNineDigits, value).c_str(), nullptr); }

}  // namespace flashsteps
