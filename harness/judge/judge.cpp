#include "harness/judge/judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "harness/base/element.h"
#include "harness/base/text.h"
#include "harness/judge/dot.h"
#include "harness/judge/gates.h"

namespace flashsteps {
namespace {

constexpr int kTile = 64;  // rows per tile in every step of the ladder's first half; for naming places only

// "0-63, 128, 130-131"
std::string ranges(const std::set<int>& values) {
  std::string text;
  int listed = 0;
  for (auto it = values.begin(); it != values.end();) {
    const int first = *it;
    int last = first;
    for (++it; it != values.end() && *it == last + 1; ++it) last = *it;
    if (++listed > 6) return text + ", ...";
    if (!text.empty()) text += ", ";
    text += std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
  }
  return text;
}

// Keeps the larger error; a NaN is the worst there is, and stays. True when `error` was the worse one.
bool keep_worst(double& worst, double error) {
  if (std::isnan(worst) || error <= worst) return false;
  worst = error;
  return true;
}

// What no arithmetic produces: the outputs that are judged lay in memory full of NaN.
bool is_poison(const void* at) {
  constexpr Poison kNan = Poison::kNan;
  return std::memcmp(at, &kNan, 2) == 0;
}

// What is as good as zero: rounding to the type may leave it or not.
double smallest(const Problem& p) { return output_type(p.dtype) == DType::kFp16 ? 0x1p-24 : 0x1p-126; }

// Equal scores are rounded alike, so that their errors do not cancel. Structured inputs have them where keys
// come again: the mean of two keys' V often lies halfway between two numbers of the type, for many rows. The
// keys of a leap have them, too. The largest P of a row of O is 1 there, but the one of a gradient is divided
// by the row's sum, and so it is rounded.
bool has_independent_roundings(const Problem& p) {
  return has_roundings(p) && p.inputs != Inputs::kRamps && p.inputs != Inputs::kHuge &&
         p.inputs != Inputs::kStructured && p.inputs != Inputs::kGiven &&
         !(p.backward && p.inputs == Inputs::kLeaps);
}

// The summands of a row may nearly cancel, and what they are rounded by is relative to them, not to the row:
// p v where P is in e4m3, and those of a gradient, whose dS of a row add up to nearly nothing.
bool has_cancellation(const Problem& p) { return p.backward || p.computed_dtype() == DType::kE4m3; }

// How many of something there are, and where the first one is.
struct Finding {
  int64_t count = 0;
  RowId first{};
  void add(const RowId& row) {
    if (count++ == 0) first = row;
  }
  void add(const Finding& later) {
    if (count == 0) first = later.first;
    count += later.count;
  }
};

// look(row, part) at every row of every output, in a part for each thread, or in a single one if there is
// little to look at. The parts come in the order of their rows.
template <typename Part, typename Look>
std::vector<Part> look_at_rows(const Problem& p, const Look& look) {
  std::map<int64_t, Part> parts;  // by their first rows
  std::mutex mutex;
  const auto look_at = [&](int64_t begin, int64_t end) {
    Part part;
    for (int64_t row = begin; row < end; ++row) look(p.output_row(row), part);
    const std::lock_guard lock(mutex);
    parts.emplace(begin, std::move(part));
  };
  constexpr int64_t kFewElements = 1 << 20;
  const int64_t num_rows = p.num_output_rows();
  num_rows* p.head_dim < kFewElements ? look_at(0, num_rows) : parallel_for(num_rows, look_at);
  std::vector<Part> all;
  for (auto& [begin, part] : parts) all.push_back(std::move(part));
  return all;
}

struct Scan {
  Finding unwritten_rows, unwritten_elements, nans, infs, not_zero, lse;
  int64_t nonfinite() const { return unwritten_elements.count + nans.count + infs.count + lse.count; }
};

// Nor has an earlier result seen any. A row of dk or dv sees queries: the last one sees all keys that exist.
bool sees_none(const Workload& w, const RowId& row) {
  const Problem& p = w.problem();
  if (row.output != 0) return row.i >= w.kv_lengths()[row.b];
  if (p.earlier && !std::isinf(w.earlier().lse[EarlierResult::at(p, row)])) return false;
  return p.visible_keys(row.i, w.kv_lengths()[row.b]) == 0;
}

// Is a row of o the merged result in FP32, rounded?
bool is_rounded_merge(const Problem& p, const Outputs& outputs, const RowId& row,
                      const std::vector<float>& o) {
  const float* const merged = &outputs.earlier.o[EarlierResult::at(p, row) * p.head_dim];
  for (int d = 0; d < p.head_dim; ++d) {
    if (!(rounded(output_type(p.dtype), merged[d]) == o[d])) return false;
  }
  return true;
}

// Every element of each output and of lse, whether or not its row has a reference.
std::vector<Scan> scan(const Problem& p, const Workload& w, const Outputs& outputs) {
  const DType type = output_type(p.dtype);
  const size_t bytes = element_bytes(type);
  using Scans = std::vector<Scan>;  // of each output
  const auto look = [&](const RowId& id, Scans& scans) {
    scans.resize(p.output_names().size());
    Scan& s = scans[id.output];
    const auto* const row = static_cast<const unsigned char*>(outputs.row(id));
    int unwritten = 0;
    for (int d = 0; d < p.head_dim; ++d) {
      const float value = load_element(type, row + d * bytes);
      if (std::isfinite(value)) continue;
      const bool is_unwritten = is_poison(row + d * bytes);
      (is_unwritten ? s.unwritten_elements : std::isnan(value) ? s.nans : s.infs).add(id);
      unwritten += is_unwritten;
    }
    if (unwritten == p.head_dim) s.unwritten_rows.add(id);
    // Bitwise: no -0, no tiny remainder.
    const bool all_zero =
        std::all_of(row, row + p.head_dim * bytes, [](unsigned char byte) { return byte == 0; });
    if (sees_none(w, id) && !all_zero && unwritten == 0) s.not_zero.add(id);
    if (!outputs.has_lse()) return;
    const float lse = outputs.lse_at(id);
    if (!(sees_none(w, id) ? std::isinf(lse) && lse < 0 : std::isfinite(lse))) s.lse.add(id);
  };
  Scans all(p.output_names().size());
  for (const Scans& part : look_at_rows<Scans>(p, look)) {
    for (size_t output = 0; output < part.size(); ++output) {
      for (const auto finding : {&Scan::unwritten_rows, &Scan::unwritten_elements, &Scan::nans, &Scan::infs,
                                 &Scan::not_zero, &Scan::lse})
        (all[output].*finding).add(part[output].*finding);
    }
  }
  return all;
}

std::string describe(const Scan& s, int output, const Workload& w, const Outputs& outputs) {
  const Problem& p = w.problem();
  const std::string name = p.output_names()[output];
  std::string text;
  const auto say = [&](const Finding& found, const std::string& what, const std::string& more) {
    if (found.count > 0)
      add_line(text, std::to_string(found.count) + what + ", the first at " + place(p, found.first) + more);
  };
  const std::string unwritten =
      "\nhint: does the grid cover every row, and does the last, ragged tile store all of its rows?";
  if (s.unwritten_rows.count > 0)
    say(s.unwritten_rows,
        " of " + std::to_string(p.rows_of_output(output).size()) + " row(s) of " + name +
            " were never written",
        unwritten);
  else
    say(s.unwritten_elements, " element(s) of " + name + " were never written", unwritten);
  say(s.nans, " element(s) of " + name + " are NaN",
      output == 0 && sees_none(w, s.nans.first)
          ? p.backward ? "\nhint: that row sees no key: its LSE is -inf, and exp(S - LSE) is Inf"
                       : "\nhint: that row sees no key: (-inf) - (-inf) is NaN, and so is 0 / 0"
          : "\nhint: 0 * NaN is NaN: are K or V rows at or beyond kv_len loaded? Is shared memory read "
            "before it "
            "is written?");
  say(s.infs, " element(s) of " + name + " are Inf",
      p.backward ? "\nhint: exp(S - LSE) without the mask, where LSE is -inf or the key beyond kv_len, or an "
                   "overflow "
                   "of the element type"
                 : "\nhint: a division by a zero row_sum, or an overflow of the element type");
  say(s.not_zero,
      " row(s) of " + name + (output == 0 ? " see no key" : " are of no key") + " and are not exactly zero",
      "");
  if (!outputs.has_lse()) return text;
  const float lse = outputs.lse_at(s.lse.first);
  say(s.lse, " lse value(s) are of the wrong kind",
      (is_poison(&lse) && std::isnan(lse) ? ", which was never written" : ", which is " + format("%g", lse)) +
          (sees_none(w, s.lse.first) ? ": the row sees no key, so it must be -inf" : ": it must be finite"));
  return text;
}

// NRMSE, absolute where the norm is 0.
double relative(double error_squares, double norm_squares) {
  return std::sqrt(norm_squares > 0 ? error_squares / norm_squares : error_squares);
}

// The same, and its gate, of a row of a gradient that may also be off by `lost`, as a norm. Both are relative
// to the two norms together: where little is left of summands that cancel, that is nearly all there is.
double relative_beside(double error_squares, double norm_squares, double lost) {
  const double whole = std::sqrt(norm_squares) + lost;
  return whole > 0 ? std::sqrt(error_squares) / whole : std::sqrt(error_squares);
}
double gate_beside(double gate, double norm_squares, double lost) {
  const double norm = std::sqrt(norm_squares);
  return norm + lost > 0 ? (gate * norm + lost) / (norm + lost) : gate;
}

// Within so many times its gate; -inf, of a row that sees no key, exactly. A NaN is wrong.
bool is_right_lse(double lse, double exactly, double cut_off, const Problem& p, double times = 1) {
  if (std::isinf(exactly)) return lse == exactly;
  return std::abs(lse - exactly) <= times * lse_gate(gates(p), p.head_dim, p.seqlen_kv, exactly, cut_off);
}

// What a row of a gradient may be off by beyond roundings, as a norm.
double lost_of(const Problem& p, const ReferenceRow& row) {
  double squares = 0;
  for (const double x : row.excess) squares += x * x;
  return gates(p).unit * std::sqrt(squares);
}

struct WrongRow {
  RowId id;
  int visible_keys;
  double error;  // of o; 0 when that is right
  bool lse_wrong;
  double lse, exactly;
};

// What else the outputs tell about the cause.
struct Evidence {
  bool o_right;  // by all of its gates
  bool o_small;  // or its errors are a few times the gates
  bool one_tile_rows_right;
  bool lse_base_two;  // all that are wrong
};

std::string hint_for(const Problem& p, const std::vector<WrongRow>& wrong, size_t rows_checked,
                     const Evidence& evidence) {
  const double unit = gates(p).unit;
  int too_large = 0, too_small = 0;
  bool some_o_wrong = false, lse_of_type = has_roundings(p), lse_small = has_roundings(p);
  for (const WrongRow& row : wrong) {
    some_o_wrong = some_o_wrong || row.error > 0;
    if (!row.lse_wrong) continue;
    (row.lse > row.exactly ? too_large : too_small)++;
    lse_of_type = lse_of_type && rounded(output_type(p.dtype), float(row.lse)) == float(row.lse);
    lse_small =
        lse_small && std::abs(row.lse - row.exactly) <= 4 * unit * std::max(2.0, std::abs(row.exactly));
  }
  const bool some_lse_wrong = too_large + too_small > 0;
  // Keys too many or too few change every lse in one direction. Errors of the scores do not.
  const bool either_way = 16 * std::min(too_large, too_small) > too_large + too_small;
  if (some_lse_wrong && evidence.lse_base_two)
    return "the lse values are log2 instead of natural logarithms: multiply by ln 2";
  if (lse_small && lse_of_type && evidence.o_right)
    return "o is right, and every wrong lse is a number of " + name(p.dtype) + ": lse is FP32";
  if (lse_small && (evidence.o_right || (evidence.o_small && either_way)))
    return "lse is off by no more than roundings to " + name(p.dtype) +
           " can do: is Q scaled and then rounded? Scale the scores, in FP32. The scores, or P before it is "
           "summed, may be rounded too, or the scale has too few digits";
  if (p.lse && some_o_wrong && !some_lse_wrong)
    return "every lse is right, so scores, mask and row sums are right: look at P V, at the rescaling of "
           "o, or at the store";
  if (evidence.o_right)
    return "o is right and lse is not: look at how row_max and row_sum are combined at the end";
  if (evidence.one_tile_rows_right)
    return "rows that see a single KV tile are right: look at what is carried from tile to tile (row_max, "
           "row_sum, the rescaling of o), at the barriers between tiles and at the number of tiles";
  const std::string what = p.lse ? "o and lse are wrong together" : "o is wrong";
  // Lengths that are mixed up are too large for one batch and too small for another.
  if (either_way && p.kv_lengths == KvLengths::kFull)
    return what +
           ": look at Q K^T (operand order, transposition), its roundings and softmax_scale; the mask alone "
           "would move every lse in one direction";
  if (p.causal && wrong.size() < rows_checked)
    return what + ": look at the mask (who sees whom on the diagonal) and at the ragged last tile";
  return what + ": look at Q K^T (operand order, transposition), softmax_scale and the mask";
}

// Of a backward pass, by which gradients are right.
std::string hint_for_gradients(bool dq_right, bool dk_right, bool dv_right) {
  if (dq_right && !dk_right && !dv_right)
    return "dq is right, and so are P and dS: look at the sums over queries (which of them see a key, every "
           "block, "
           "every head of a group) and at the stores of dk and dv";
  if (!dv_right && !dq_right)
    return "dv is wrong together with others, so P may be: look at Q K^T, softmax_scale, the mask, and at "
           "LSE (a "
           "natural logarithm) in exp(S - LSE)";
  if (!dv_right)
    return "dq and dk are right, and so is P: look at P^T dO, at its sum over queries and the store of dv";
  if (!dq_right && !dk_right)
    return "dv is right, and so is P: look at dP = dO V^T, at D = rowsum(dO * O), at dS = P * (dP - D), "
           "which "
           "softmax_scale multiplies once, and at a mask that P has and dS has not";
  if (!dk_right)
    return "dq is right, and so is dS: look at dS^T Q, at its sum over queries and the store of dk";
  return "dk is right, and so is dS: look at dS K, at its sum over keys (is each added once?) and the store "
         "of dq";
}

struct Element {
  RowId row;
  int column;
  double is, exactly;
};

// What the rows of an output that have a reference come to.
struct Errors {
  double squares = 0, reference_squares = 0, rounding_squares = 0, quantization_squares = 0;
  double lost_squares = 0;  // of a backward pass: of what the rows may be off by beyond roundings
  double worst_row = 0;     // as a part of its gate
  double worst_row_nrmse = 0, gate_row = 0;
  double max_abs = 0;
  double worst_element_error = 0;
  double naive_element = 0;      // the worst one of a naive implementation
  double along = 0, spread = 0;  // the error in the direction of the reference, and its variance
  double naive_along = 0;        // that of the naive implementation
  double largest_lse = 0;        // which is about as large as the scores
  Element worst_element{};
  std::vector<WrongRow> wrong;
  std::map<int, int> wrong_columns;  // how often
  bool every_wrong_lse_is_base_two = true, one_tile_rows_right = true;
  int one_tile_rows = 0;
  Finding not_rounded;  // rows of a merged result
};

// Each comparison is written so that a NaN fails it.
void measure(const Problem& p, const Workload& w, const Outputs& outputs, const ReferenceRow& row,
             Errors& errors, Validation& v) {
  const Gates gate = gates(p);
  std::vector<float> o(p.head_dim);
  load_elements(output_type(p.dtype), outputs.row(row.id), p.head_dim, o.data());
  const bool is_empty = sees_none(w, row.id);
  if (p.earlier && !is_empty && !is_rounded_merge(p, outputs, row.id, o)) errors.not_rounded.add(row.id);
  double row_error = 0, row_norm = 0, row_rounding = 0;
  for (int d = 0; d < p.head_dim; ++d) {
    const double difference = std::abs(o[d] - row.o[d]);
    row_error += difference * difference;
    row_norm += row.o[d] * row.o[d];
    row_rounding += double(row.rounding[d]) * row.rounding[d];
    keep_worst(errors.max_abs, difference);
    if (is_empty || !has_roundings(p)) continue;
    const double scale = gate.unit * (std::abs(row.o[d]) + row.rounding[d] + row.excess[d]) + smallest(p);
    if (keep_worst(errors.worst_element_error, difference / scale))
      errors.worst_element = {row.id, d, o[d], row.o[d]};
    keep_worst(errors.naive_element, std::abs(row.naive[d] - row.o[d]) / scale);
    errors.along += (o[d] - row.o[d]) * row.o[d];
    errors.naive_along += (row.naive[d] - row.o[d]) * row.o[d];
  }
  const double lost = p.backward ? lost_of(p, row) : 0;
  errors.spread += row_norm * (row_rounding + std::pow(lost / gate.unit, 2));
  const double norm = has_cancellation(p) ? std::max(row_norm, row_rounding) : row_norm;
  const double error = p.backward ? relative_beside(row_error, norm, lost) : relative(row_error, norm);
  // Scores in FP16 may be off by more than what the gate has left for that, if they are large.
  const double of_scores = p.lse || p.may_approximate() ? 0 : row.cut_off;
  const double row_gate = is_empty     ? 0
                          : p.backward ? gate_beside(gate.row_nrmse, norm, lost)
                                       : gate.row_nrmse + of_scores;
  const bool o_right = error <= row_gate;
  const double lse = outputs.has_lse() ? outputs.lse_at(row.id) : row.lse;
  const bool lse_right = !outputs.has_lse() || is_right_lse(lse, row.lse, row.cut_off, p);
  if (!is_empty) {
    errors.squares += row_error;
    errors.reference_squares += row_norm;
    errors.rounding_squares += row_rounding;
    errors.lost_squares += lost * lost;
    errors.quantization_squares += row.quantization;
    if (keep_worst(errors.worst_row, error / row_gate))
      errors.worst_row_nrmse = error, errors.gate_row = row_gate;
    if (v.lse_max_abs) keep_worst(*v.lse_max_abs, std::abs(lse - row.lse));
    errors.largest_lse = std::max(errors.largest_lse, std::abs(row.lse));
    const double as_natural = lse * 0.6931471805599453;
    if (!lse_right && !(std::abs(as_natural - row.lse) <= 1e-3 + 1e-4 * std::abs(row.lse)))
      errors.every_wrong_lse_is_base_two = false;
  }
  if (row.visible_keys > 0 && row.visible_keys <= kTile) {
    ++errors.one_tile_rows;
    errors.one_tile_rows_right = errors.one_tile_rows_right && o_right && lse_right;
  }
  if (o_right && lse_right) return;
  errors.wrong.push_back(
      {row.id, row.visible_keys, o_right ? 0 : (error > 0 ? error : 1), !lse_right, lse, row.lse});
  const double tolerance = gate.row_nrmse * std::sqrt(row_norm / p.head_dim) * 3;
  for (int d = 0; d < p.head_dim; ++d) {
    if (!(std::abs(o[d] - row.o[d]) <= tolerance)) ++errors.wrong_columns[d];
  }
}

std::string describe_element(const Errors& errors, double gate_element, const Problem& p) {
  const Element& worst = errors.worst_element;
  return "an element is too far off: " + place(p, worst.row) + ", column " + std::to_string(worst.column) +
         " is " + format("%.6g", worst.is) + " and must be " + format("%.6g", worst.exactly) +
         "; the error is " + format("%.1f", errors.worst_element_error) + " times what roundings to " +
         name(p.computed_dtype()) + " add up to there (gate " + format("%.1f", gate_element) +
         ", from a naive implementation)";
}

// The worst one, and the pattern of all.
std::string describe_wrong_rows(const Errors& errors, const Problem& p, size_t rows_checked) {
  // Of rows whose o is right, the one with the worst lse.
  const auto worst = std::ranges::max_element(errors.wrong, {}, [](const WrongRow& row) {
    const double off = std::abs(row.lse - row.exactly);
    return std::pair(row.error, row.lse_wrong && off >= 0 ? off : 0.0);
  });
  std::set<int> rows, heads, batches, columns;
  for (const WrongRow& r : errors.wrong) {
    rows.insert(r.id.i);
    heads.insert(r.id.h);
    batches.insert(r.id.b);
  }
  for (const auto& [column, count] : errors.wrong_columns) {
    if (count * 4 >= int(errors.wrong.size())) columns.insert(column);
  }
  const Rows all = p.rows_of_output(worst->id.output);
  const bool of_keys = worst->id.output != 0;
  return std::to_string(errors.wrong.size()) + " of " + std::to_string(rows_checked) + " checked rows " +
         (p.backward ? "of " + p.output_names()[worst->id.output] + " " : "") +
         "are wrong; worst: " + place(p, worst->id) + ", which " +
         (of_keys ? std::to_string(worst->visible_keys) + " queries of a head see"
                  : "sees " + std::to_string(worst->visible_keys) + " keys") +
         ", error " + format("%.2e", worst->error) + " (gate " + format("%.0e", gates(p).row_nrmse) + ")" +
         (worst->lse_wrong ? std::string(", lse wrong") + (worst->error > 0 ? " too: " : ": ") +
                                 format("%.6g", worst->lse) + " in place of " + format("%.6g", worst->exactly)
                           : "") +
         "\nwrong rows " + ranges(rows) + " of " + std::to_string(all.back().i + 1) + "; heads " +
         ranges(heads) + " of " + std::to_string(all.back().h + 1) + "; batches " + ranges(batches) + " of " +
         std::to_string(p.batch) +
         (columns.empty() ? "" : "; columns " + ranges(columns) + " of " + std::to_string(p.head_dim));
}

// A right kernel misses the gates as well when the exact result, rounded to the type, is too far off already.
std::string note_on_gates(const Problem& p) {
  return "the gates were set for inputs like N(0, 1): very small values, or attention sinks whose other "
         "weights are tiny, lose digits in " +
         name(p.computed_dtype()) + " itself, even in a correct kernel";
}

// How far an output is from its gates.
struct Distance {
  double nrmse = 0, gate_nrmse = 0, gate_element = 0;
  std::optional<double> bias;
  double gate_bias = 0;
  bool total_right = true, element_right = true, bias_right = true, rows_right = true;
  bool right() const { return total_right && element_right && bias_right && rows_right; }
};

Distance distance_of(const Problem& p, int output, const Errors& errors) {
  const Gates gate = gates(p);
  Distance found;
  const double norm = has_cancellation(p) ? std::max(errors.reference_squares, errors.rounding_squares)
                                          : errors.reference_squares;
  const double lost = std::sqrt(errors.lost_squares);
  found.nrmse = p.backward ? relative_beside(errors.squares, norm, lost) : relative(errors.squares, norm);
  found.gate_nrmse = p.backward ? gate_beside(gate.nrmse, norm, lost) : gate.nrmse;
  found.gate_element = 2 * errors.naive_element + 1;
  if (has_independent_roundings(p) && errors.reference_squares > 0) {
    const int summands = output == 0 ? p.seqlen_kv : p.seqlen_q * (p.num_heads_q / p.num_heads_kv);
    found.bias = std::abs(errors.along) / errors.reference_squares;
    found.gate_bias = gate.unit * (kBias + 4 * std::sqrt(errors.spread / 3) / errors.reference_squares) +
                      bias_of_truncation(p.head_dim, summands, errors.largest_lse);
    // Numbers of e4m3 with the same mantissa, times one scale, are all rounded alike in O.
    if (p.fp8_cache) found.gate_bias += std::abs(errors.naive_along) / errors.reference_squares;
    // No sum of P, as far off, divides the result. And D as the reference has it, from a rounded O, is a part
    // of the gradient: all of it where one key has all the weight.
    if (p.backward)
      found.gate_bias += error_of_p(p.head_dim, errors.largest_lse, 0, /*is_sum=*/true) +
                         errors.lost_squares / errors.reference_squares;
  }
  found.total_right = found.nrmse <= found.gate_nrmse;
  found.element_right = errors.worst_element_error <= found.gate_element;
  found.bias_right = !found.bias || *found.bias <= found.gate_bias;
  found.rows_right = errors.wrong.empty();
  return found;
}

// Of several outputs, v has the worst of each kind: the one that comes closest to its gate.
void add(Validation& v, const std::string& name, const Errors& errors, const Distance& distance) {
  keep_worst(v.max_abs, errors.max_abs);
  const auto keep = [](double error, double gate, double& kept, double& kept_gate) {
    double worst = kept_gate > 0 ? kept / kept_gate : -1;
    if (keep_worst(worst, gate > 0 ? error / gate : error)) kept = error, kept_gate = gate;
  };
  keep(distance.nrmse, distance.gate_nrmse, v.nrmse, v.gate_nrmse);
  keep(errors.worst_row_nrmse, errors.gate_row, v.worst_row_nrmse, v.gate_row);
  keep(errors.worst_element_error, distance.gate_element, v.worst_element, v.gate_element);
  if (distance.bias)
    keep(*distance.bias, distance.gate_bias, v.bias ? *v.bias : v.bias.emplace(), v.gate_bias);
  v.nrmse_of[name] = distance.nrmse;
}

}  // namespace

std::string place(const Problem& p, const RowId& id) {
  const int num_rows = id.output == 0 ? p.seqlen_q : p.seqlen_kv;
  return (p.backward ? p.output_names()[id.output] + " of " : "") + "batch " + std::to_string(id.b) +
         ", head " + std::to_string(id.h) + ", row " + std::to_string(id.i) + " (row " +
         std::to_string(id.i % kTile) + " of tile " + std::to_string(id.i / kTile) + " of " +
         std::to_string((num_rows + kTile - 1) / kTile) + ")";
}

std::optional<RowId> first_difference(const Problem& p, const Outputs& one, const Outputs& other) {
  const size_t row_bytes = p.head_dim * element_bytes(output_type(p.dtype));
  for (int64_t number = 0; number < p.num_output_rows(); ++number) {
    const RowId row = p.output_row(number);
    const float lse = one.has_lse() ? one.lse_at(row) : 0, other_lse = one.has_lse() ? other.lse_at(row) : 0;
    const size_t merged = p.earlier ? EarlierResult::at(p, row) * p.head_dim : 0;
    if (std::memcmp(one.row(row), other.row(row), row_bytes) != 0 ||
        std::memcmp(&lse, &other_lse, sizeof lse) != 0 ||
        (p.earlier &&
         std::memcmp(&one.earlier.o[merged], &other.earlier.o[merged], p.head_dim * sizeof(float)) != 0))
      return row;
  }
  return std::nullopt;
}

Validation judge(const Workload& w, const std::vector<ReferenceRow>& reference, Outputs outputs,
                 bool runs_sound) {
  Problem p = w.problem();
  p.lse = outputs.has_lse();  // other people's kernels may have none
  const std::vector<std::string> names = p.output_names();
  Validation v;
  v.rows_checked = int64_t(reference.size());
  if (p.lse) v.lse_max_abs = 0;

  bool sound = true;
  const std::vector<Scan> scans = scan(p, w, outputs);
  for (size_t output = 0; output < names.size(); ++output) {
    const Scan& bad = scans[output];
    v.nonfinite += bad.nonfinite();
    sound = sound && bad.nonfinite() == 0 && bad.not_zero.count == 0;
    add_line(v.message, describe(bad, int(output), w, outputs));
  }

  std::vector<Errors> all(names.size());
  std::vector<int64_t> rows_checked(names.size());
  for (Errors& errors : all) errors.gate_row = gates(p).row_nrmse;
  for (const ReferenceRow& row : reference) {
    measure(p, w, outputs, row, all[row.id.output], v);
    ++rows_checked[row.id.output];
  }
  std::vector<Distance> distances;
  bool right = true, lse_right = true;
  for (size_t output = 0; output < names.size(); ++output) {
    const Errors& errors = all[output];
    distances.push_back(distance_of(p, int(output), errors));
    add(v, names[output], errors, distances.back());
    right = right && distances.back().right();
    lse_right = lse_right && !std::ranges::any_of(errors.wrong, &WrongRow::lse_wrong);
  }
  if (p.knows_quantization())
    v.quantization_nrmse = relative(all[0].quantization_squares, all[0].reference_squares);
  const std::string damage = outputs.damage();
  sound = sound && damage.empty();
  // An lse is fp32 whatever the type, so a wrong one has no such excuse.
  const auto misses_another = [](const Distance& d) {
    return !(d.total_right && d.rows_right && d.element_right);
  };
  const bool maybe_the_type = p.inputs == Inputs::kGiven && runs_sound && sound && lse_right &&
                              std::ranges::any_of(distances, misses_another);

  const auto line = [&](const std::string& text) { add_line(v.message, text); };
  for (size_t output = 0; output < names.size(); ++output) {
    const Errors& errors = all[output];
    const Distance& d = distances[output];
    if (errors.not_rounded.count > 0)
      line(
          std::to_string(errors.not_rounded.count) +
          " row(s) of o are not what the call has left in FP32, merged with the earlier result, and rounded; "
          "the first at " +
          place(p, errors.not_rounded.first));
    if (!d.total_right)
      line("NRMSE " + format("%.2e", d.nrmse) + (p.backward ? " of " + names[output] : "") +
           " is above the gate of " + format("%.0e", d.gate_nrmse) + " for " + name(p.computed_dtype()));
    if (!d.element_right) line(describe_element(errors, d.gate_element, p));
    if (!d.bias_right && std::isfinite(*d.bias)) {
      // Truncation misses no other gate.
      const bool maybe_truncated = d.total_right && d.element_right && d.rows_right && v.nonfinite == 0;
      line(names[output] + " is too " + std::string(errors.along > 0 ? "long" : "short") + " by " +
           format("%.1e", *d.bias) + " of its length, over all rows together (gate " +
           format("%.1e", d.gate_bias) + ")" +
           (maybe_truncated
                ? "\nhint: is " + std::string(p.backward ? "P, dS or " : "P or ") + names[output] +
                      " truncated to " + name(p.computed_dtype()) + ", not rounded to nearest?"
                : ""));
    }
    if (d.rows_right) continue;
    line(describe_wrong_rows(errors, p, size_t(rows_checked[output])));
    if (p.backward || v.nonfinite > 0 || maybe_the_type) continue;
    const auto is_o_right = [](const WrongRow& row) { return row.error == 0; };
    line("hint: " +
         hint_for(p, errors.wrong, reference.size(),
                  {.o_right = d.total_right && d.element_right && d.bias_right &&
                              std::ranges::all_of(errors.wrong, is_o_right),
                   .o_small = v.nrmse <= 4 * d.gate_nrmse && v.worst_row_nrmse <= 4 * gates(p).row_nrmse,
                   .one_tile_rows_right = errors.one_tile_rows > 0 && errors.one_tile_rows_right,
                   .lse_base_two = errors.every_wrong_lse_is_base_two}));
  }
  const auto rows_right = [](const Distance& d) { return d.rows_right; };
  if (p.backward && !std::ranges::all_of(distances, rows_right) && v.nonfinite == 0 && !maybe_the_type)
    line("hint: " +
         hint_for_gradients(distances[0].rows_right, distances[1].rows_right, distances[2].rows_right));
  if (maybe_the_type) line(note_on_gates(p));
  line(damage);
  v.pass = sound && all[0].not_rounded.count == 0 && right;
  return v;
}

Validation judge_call(const AttentionCall& call, const Problem& problem) {
  const Workload workload(problem, call);
  return judge(workload, reference_rows(workload, choose_rows(problem)), Outputs(problem, call));
}

// The squares of a row's norm in `other`, and of its difference in `one`.
static std::pair<double, double> squares_of_row(const Problem& p, const Outputs& one, const Outputs& other,
                                                const RowId& id) {
  const DType type = output_type(p.dtype);
  const size_t bytes = element_bytes(type);
  double norm = 0, difference = 0;
  for (int d = 0; d < p.head_dim; ++d) {
    const float expected = load_element(type, static_cast<const char*>(other.row(id)) + d * bytes);
    const float is = load_element(type, static_cast<const char*>(one.row(id)) + d * bytes);
    norm += double(expected) * expected;
    difference += std::pow(double(is) - expected, 2);
  }
  return {norm, difference};
}

constexpr double kBoth = 2;  // each may be off by a gate, so that two outputs may differ by two

// Nothing tells of each row what its summands are, some of which cancel. So a row may be off by its gate, at
// the norm of a mean row, and by the most that a row with a reference may be off by beside its own norm.
// Where every row has a reference, that has said more.
static std::string compare_gradients(const Workload& w, const std::vector<ReferenceRow>& reference,
                                     const Outputs& outputs, const Outputs& other, const std::string& whose) {
  const Problem& p = w.problem();
  if (int64_t(reference.size()) == p.num_output_rows()) return "";
  const Gates gate = gates(p);
  const size_t num_outputs = p.output_names().size();
  std::vector<double> beside(num_outputs);  // by output
  for (const ReferenceRow& row : reference) {
    double squares = 0, rounding = 0;
    for (int d = 0; d < p.head_dim; ++d) {
      squares += row.o[d] * row.o[d];
      rounding += double(row.rounding[d]) * row.rounding[d];
    }
    const double cancelled = std::max(std::sqrt(rounding) - std::sqrt(squares), 0.0);
    keep_worst(beside[row.id.output], gate.row_nrmse * cancelled + lost_of(p, row));
  }
  using Totals = std::vector<std::array<double, 3>>;  // by output: norm, difference, rows
  const auto add_row = [&](const RowId& id, Totals& part) {
    part.resize(num_outputs);
    const auto [norm, difference] = squares_of_row(p, outputs, other, id);
    part[id.output][0] += norm;
    part[id.output][1] += difference;
    part[id.output][2] += 1;
  };
  Totals totals(num_outputs);
  for (const Totals& part : look_at_rows<Totals>(p, add_row)) {
    for (size_t output = 0; output < part.size(); ++output) {
      for (size_t i = 0; i < 3; ++i) totals[output][i] += part[output][i];
    }
  }
  const auto look = [&](const RowId& id, Finding& part) {
    const auto [norm, difference] = squares_of_row(p, outputs, other, id);
    const auto& [all_squares, all_differences, rows] = totals[id.output];
    const double allowed = gate.row_nrmse * std::sqrt(std::max(norm, all_squares / rows)) + beside[id.output];
    if (!(std::sqrt(difference) <= kBoth * allowed)) part.add(id);
  };
  std::vector<Finding> wrong(num_outputs);
  for (const Finding& part : look_at_rows<Finding>(p, look)) {
    if (part.count > 0) wrong[part.first.output].add(part);
  }
  for (size_t output = 0; output < num_outputs; ++output) {
    const auto& [squares, differences, rows] = totals[output];
    const double nrmse = relative(differences, squares);
    const double allowed = gate.nrmse * std::sqrt(squares) + beside[output] * std::sqrt(rows);
    if (std::sqrt(differences) <= kBoth * allowed && wrong[output].count == 0) continue;
    return p.output_names()[output] + " as a whole differs from " + whose + ": NRMSE " +
           format("%.2e", nrmse) +
           (wrong[output].count > 0
                ? "; " + std::to_string(wrong[output].count) + " row(s) are too far off, the first at " +
                      place(p, wrong[output].first)
                : "");
  }
  return "";
}

std::string compare_outputs(const Workload& w, const std::vector<ReferenceRow>& reference,
                            const Outputs& outputs, const Outputs& trusted, const std::string& whose) {
  const Problem& p = w.problem();
  if (p.backward) return compare_gradients(w, reference, outputs, trusted, whose);
  const Gates gate = gates(p);
  double products = 0;  // the most that the root of the sum of a score's squared products may be, as scaled
  for (size_t i = 0; i < w.q_descales().size(); ++i) {
    products = std::max(products, double(w.q_descales()[i]) * w.k_descales()[i] * kLargestE4m3 *
                                      kLargestE4m3 * std::sqrt(p.head_dim) * p.softmax_scale());
  }
  struct Compared {
    double error_squares = 0, norm_squares = 0, worst = 0;
    RowId worst_row{};
    Finding wrong_lse;
  };
  const auto look = [&](const RowId& id, Compared& part) {
    const auto [norm, error] = squares_of_row(p, outputs, trusted, id);
    part.error_squares += error;
    part.norm_squares += norm;
    if (keep_worst(part.worst, relative(error, norm))) part.worst_row = id;
    if (!outputs.has_lse()) return;
    // The mean of the scores, by weight, is lse less the entropy of the weights, from 0 to log(num_keys): so
    // one of these two is at least as large.
    const double lse = trusted.lse_at(id);
    const double score = std::max(std::abs(lse), std::abs(lse - std::log(std::max(p.seqlen_kv, 1))));
    if (!is_right_lse(outputs.lse_at(id), lse, cut_off(gate, p.head_dim, score, products), p, kBoth))
      part.wrong_lse.add(id);
  };
  double error_squares = 0, norm_squares = 0, worst = 0;
  RowId worst_row{};
  Finding wrong_lse;
  for (const Compared& part : look_at_rows<Compared>(p, look)) {
    error_squares += part.error_squares;
    norm_squares += part.norm_squares;
    if (keep_worst(worst, part.worst)) worst_row = part.worst_row;
    wrong_lse.add(part.wrong_lse);
  }
  const double nrmse = relative(error_squares, norm_squares);
  if (wrong_lse.count > 0)
    return std::to_string(wrong_lse.count) + " lse value(s) differ from " + whose + ", the first at " +
           place(p, wrong_lse.first);
  // In e4m3 a row of O may be small beside the errors of its P. measure() knows how small, and here it is not
  // known: a quarter. A row that is something else is off by more than 1.
  const double times = kBoth * (p.computed_dtype() == DType::kE4m3 ? 4 : 1);
  if (nrmse <= times * gate.nrmse && worst <= times * gate.row_nrmse) return "";
  return "the whole output differs from " + whose + ": NRMSE " + format("%.2e", nrmse) + ", worst row " +
         format("%.2e", worst) + " at " + place(p, worst_row);
}

}  // namespace flashsteps
