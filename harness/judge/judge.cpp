#include "harness/judge/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "harness/base/element.h"
#include "harness/base/text.h"
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
// come again: the mean of two keys' V often lies halfway between two numbers of the type, for many rows.
bool has_independent_roundings(const Problem& p) {
  return has_roundings(p) && p.inputs != Inputs::kRamps && p.inputs != Inputs::kHuge &&
         p.inputs != Inputs::kStructured && p.inputs != Inputs::kGiven;
}

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

// look(row, part) at every row, in a part for each thread, or in a single one if there is little to look at.
// The parts come in the order of their rows.
template <typename Part, typename Look>
std::vector<Part> look_at_rows(const Problem& p, const Look& look) {
  std::map<int64_t, Part> parts;  // by their first rows
  std::mutex mutex;
  const Rows rows = p.rows();
  const auto look_at = [&](int64_t begin, int64_t end) {
    Part part;
    for (int64_t row = begin; row < end; ++row) look(rows[row], part);
    const std::lock_guard lock(mutex);
    parts.emplace(begin, std::move(part));
  };
  constexpr int64_t kFewElements = 1 << 20;
  p.num_rows() * p.head_dim < kFewElements ? look_at(0, p.num_rows()) : parallel_for(p.num_rows(), look_at);
  std::vector<Part> all;
  for (auto& [begin, part] : parts) all.push_back(std::move(part));
  return all;
}

struct Scan {
  Finding unwritten_rows, unwritten_elements, nans, infs, not_zero, lse;
  int64_t nonfinite() const { return unwritten_elements.count + nans.count + infs.count + lse.count; }
};

// Nor has an earlier result seen any.
bool sees_none(const Workload& w, const RowId& row) {
  const Problem& p = w.problem();
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

// Every element of o and lse, whether or not its row has a reference.
Scan scan(const Problem& p, const Workload& w, const Outputs& outputs) {
  const DType type = output_type(p.dtype);
  const size_t bytes = element_bytes(type);
  const auto look = [&](const RowId& id, Scan& s) {
    const auto* const row = static_cast<const unsigned char*>(outputs.o_row(id));
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
    const float lse = outputs.lse_at(id);
    if (p.lse && !(sees_none(w, id) ? std::isinf(lse) && lse < 0 : std::isfinite(lse))) s.lse.add(id);
  };
  Scan all;
  for (const Scan& s : look_at_rows<Scan>(p, look)) {
    for (const auto finding : {&Scan::unwritten_rows, &Scan::unwritten_elements, &Scan::nans, &Scan::infs,
                               &Scan::not_zero, &Scan::lse})
      (all.*finding).add(s.*finding);
  }
  return all;
}

std::string describe(const Scan& s, const Workload& w, const Outputs& outputs) {
  const Problem& p = w.problem();
  std::string text;
  const auto say = [&](const Finding& found, const std::string& what, const std::string& more) {
    if (found.count > 0)
      add_line(text, std::to_string(found.count) + what + ", the first at " + place(p, found.first) + more);
  };
  const std::string unwritten =
      "\nhint: does the grid cover every row, and does the last, ragged tile store all of its rows?";
  if (s.unwritten_rows.count > 0)
    say(s.unwritten_rows, " of " + std::to_string(p.num_rows()) + " row(s) of o were never written",
        unwritten);
  else
    say(s.unwritten_elements, " element(s) of o were never written", unwritten);
  say(s.nans, " element(s) of o are NaN",
      sees_none(w, s.nans.first) ? "\nhint: that row sees no key: (-inf) - (-inf) is NaN, and so is 0 / 0"
                                 : "\nhint: 0 * NaN is NaN: are K or V rows at or beyond kv_len loaded? Is "
                                   "shared memory read before it is written?");
  say(s.infs, " element(s) of o are Inf",
      "\nhint: a division by a zero row_sum, or an overflow of the element type");
  say(s.not_zero, " row(s) of o see no key and are not exactly zero", "");
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

// Within so many times its gate; -inf, of a row that sees no key, exactly. A NaN is wrong.
bool is_right_lse(double lse, double exactly, double cut_off, const Problem& p, double times = 1) {
  if (std::isinf(exactly)) return lse == exactly;
  return std::abs(lse - exactly) <= times * lse_gate(gates(p), p.head_dim, p.seqlen_kv, exactly, cut_off);
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

struct Element {
  RowId row;
  int column;
  double is, exactly;
};

// What the rows that have a reference come to.
struct Errors {
  double squares = 0, reference_squares = 0, rounding_squares = 0, quantization_squares = 0;
  double worst_row = 0;          // as a part of its gate
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
  load_elements(output_type(p.dtype), outputs.o_row(row.id), p.head_dim, o.data());
  const bool is_empty = sees_none(w, row.id);
  if (p.earlier && !is_empty && !is_rounded_merge(p, outputs, row.id, o)) errors.not_rounded.add(row.id);
  double row_error = 0, row_norm = 0, row_rounding = 0;
  for (int d = 0; d < p.head_dim; ++d) {
    const double difference = std::abs(o[d] - row.o[d]);
    row_error += difference * difference;
    row_norm += row.o[d] * row.o[d];
    keep_worst(v.max_abs, difference);
    if (is_empty || !has_roundings(p)) continue;
    const double scale = gate.unit * (std::abs(row.o[d]) + row.rounding[d] + row.excess[d]) + smallest(p);
    if (keep_worst(v.worst_element, difference / scale)) errors.worst_element = {row.id, d, o[d], row.o[d]};
    keep_worst(errors.naive_element, std::abs(row.naive[d] - row.o[d]) / scale);
    errors.along += (o[d] - row.o[d]) * row.o[d];
    errors.naive_along += (row.naive[d] - row.o[d]) * row.o[d];
    row_rounding += double(row.rounding[d]) * row.rounding[d];
  }
  errors.spread += row_norm * row_rounding;
  // In e4m3 the summands p v of a row may nearly cancel, and P's roundings are relative to them, not to O.
  const double error =
      relative(row_error, p.computed_dtype() == DType::kE4m3 ? std::max(row_norm, row_rounding) : row_norm);
  // Scores in FP16 may be off by more than what the gate has left for that, if they are large.
  const double of_scores = p.lse || p.may_approximate() ? 0 : row.cut_off;
  const double row_gate = is_empty ? 0 : gate.row_nrmse + of_scores;
  const bool o_right = error <= row_gate;
  const double lse = p.lse ? outputs.lse_at(row.id) : row.lse;
  const bool lse_right = is_right_lse(lse, row.lse, row.cut_off, p);
  if (!is_empty) {
    errors.squares += row_error;
    errors.reference_squares += row_norm;
    errors.rounding_squares += row_rounding;
    errors.quantization_squares += row.quantization;
    if (keep_worst(errors.worst_row, error / row_gate)) v.worst_row_nrmse = error, v.gate_row = row_gate;
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

std::string describe(const Element& worst, const Problem& p, const Validation& v) {
  return "an element is too far off: " + place(p, worst.row) + ", column " + std::to_string(worst.column) +
         " is " + format("%.6g", worst.is) + " and must be " + format("%.6g", worst.exactly) +
         "; the error is " + format("%.1f", v.worst_element) + " times what roundings to " +
         name(p.computed_dtype()) + " add up to there (gate " + format("%.1f", v.gate_element) +
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
  return std::to_string(errors.wrong.size()) + " of " + std::to_string(rows_checked) +
         " checked rows are wrong; worst: " + place(p, worst->id) + ", which sees " +
         std::to_string(worst->visible_keys) + " keys, error " + format("%.2e", worst->error) + " (gate " +
         format("%.0e", gates(p).row_nrmse) + ")" +
         (worst->lse_wrong ? std::string(", lse wrong") + (worst->error > 0 ? " too: " : ": ") +
                                 format("%.6g", worst->lse) + " in place of " + format("%.6g", worst->exactly)
                           : "") +
         "\nwrong rows " + ranges(rows) + " of " + std::to_string(p.seqlen_q) + "; heads " + ranges(heads) +
         " of " + std::to_string(p.num_heads_q) + "; batches " + ranges(batches) + " of " +
         std::to_string(p.batch) +
         (columns.empty() ? "" : "; columns " + ranges(columns) + " of " + std::to_string(p.head_dim));
}

// A right kernel misses the gates as well when the exact result, rounded to the type, is too far off already.
std::string note_on_gates(const Problem& p) {
  return "the gates were set for inputs like N(0, 1): very small values, or attention sinks whose other "
         "weights are tiny, lose digits in " +
         name(p.computed_dtype()) + " itself, even in a correct kernel";
}

}  // namespace

bool has_roundings(const Problem& p) { return p.dtype != DType::kFp32; }

std::string place(const Problem& p, const RowId& id) {
  return "batch " + std::to_string(id.b) + ", head " + std::to_string(id.h) + ", row " +
         std::to_string(id.i) + " (row " + std::to_string(id.i % kTile) + " of tile " +
         std::to_string(id.i / kTile) + " of " + std::to_string((p.seqlen_q + kTile - 1) / kTile) + ")";
}

std::optional<RowId> first_difference(const Problem& p, const Outputs& one, const Outputs& other) {
  const size_t row_bytes = p.head_dim * element_bytes(output_type(p.dtype));
  for (const RowId row : p.rows()) {
    const float lse = one.lse_at(row), other_lse = other.lse_at(row);
    const size_t merged = p.earlier ? EarlierResult::at(p, row) * p.head_dim : 0;
    if (std::memcmp(one.o_row(row), other.o_row(row), row_bytes) != 0 ||
        (p.lse && std::memcmp(&lse, &other_lse, sizeof lse) != 0) ||
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
  const Gates gate = gates(p);
  Validation v;
  v.rows_checked = int64_t(reference.size());
  v.gate_row = gate.row_nrmse;
  if (p.lse) v.lse_max_abs = 0;

  const Scan bad = scan(p, w, outputs);
  v.nonfinite = bad.nonfinite();
  v.message = describe(bad, w, outputs);

  Errors errors;
  for (const ReferenceRow& row : reference) measure(p, w, outputs, row, errors, v);
  v.nrmse = relative(errors.squares, p.computed_dtype() == DType::kE4m3
                                         ? std::max(errors.reference_squares, errors.rounding_squares)
                                         : errors.reference_squares);
  if (p.knows_quantization())
    v.quantization_nrmse = relative(errors.quantization_squares, errors.reference_squares);
  v.gate_element = 2 * errors.naive_element + 1;
  if (has_independent_roundings(p) && errors.reference_squares > 0) {
    v.bias = std::abs(errors.along) / errors.reference_squares;
    v.gate_bias = gate.unit * (kBias + 4 * std::sqrt(errors.spread / 3) / errors.reference_squares) +
                  bias_of_truncation(p.head_dim, p.seqlen_kv, errors.largest_lse);
    // Numbers of e4m3 with the same mantissa, times one scale, are all rounded alike in O.
    if (p.fp8_cache) v.gate_bias += std::abs(errors.naive_along) / errors.reference_squares;
  }
  const bool total_right = v.nrmse <= gate.nrmse;
  const bool element_right = v.worst_element <= v.gate_element;
  const bool bias_right = !v.bias || *v.bias <= v.gate_bias;
  const std::string damage = outputs.damage();
  const bool sound = v.nonfinite == 0 && bad.not_zero.count == 0 && damage.empty();
  // An lse is fp32 whatever the type, so a wrong one has no such excuse.
  const bool maybe_the_type = p.inputs == Inputs::kGiven && runs_sound && sound &&
                              !std::ranges::any_of(errors.wrong, &WrongRow::lse_wrong) &&
                              !(total_right && errors.wrong.empty() && element_right);

  const auto line = [&](const std::string& text) { add_line(v.message, text); };
  if (errors.not_rounded.count > 0)
    line(std::to_string(errors.not_rounded.count) +
         " row(s) of o are not what the call has left in FP32, merged with the earlier result, and rounded; "
         "the first at " +
         place(p, errors.not_rounded.first));
  if (!total_right)
    line("NRMSE " + format("%.2e", v.nrmse) + " is above the gate of " + format("%.0e", gate.nrmse) +
         " for " + name(p.computed_dtype()));
  if (!element_right) line(describe(errors.worst_element, p, v));
  if (!bias_right && std::isfinite(*v.bias)) {
    // Truncation misses no other gate.
    const bool maybe_truncated = total_right && element_right && errors.wrong.empty() && v.nonfinite == 0;
    line("o is too " + std::string(errors.along > 0 ? "long" : "short") + " by " + format("%.1e", *v.bias) +
         " of its length, over all rows together (gate " + format("%.1e", v.gate_bias) + ")" +
         (maybe_truncated
              ? "\nhint: is P or o truncated to " + name(p.computed_dtype()) + ", not rounded to nearest?"
              : ""));
  }
  if (!errors.wrong.empty()) {
    line(describe_wrong_rows(errors, p, reference.size()));
    if (v.nonfinite == 0 && !maybe_the_type) {
      const auto is_o_right = [](const WrongRow& row) { return row.error == 0; };
      line("hint: " +
           hint_for(p, errors.wrong, reference.size(),
                    {.o_right = total_right && element_right && bias_right &&
                                std::ranges::all_of(errors.wrong, is_o_right),
                     .o_small = v.nrmse <= 4 * gate.nrmse && v.worst_row_nrmse <= 4 * gate.row_nrmse,
                     .one_tile_rows_right = errors.one_tile_rows > 0 && errors.one_tile_rows_right,
                     .lse_base_two = errors.every_wrong_lse_is_base_two}));
    }
  }
  if (maybe_the_type) line(note_on_gates(p));
  line(damage);
  v.pass = sound && errors.not_rounded.count == 0 && element_right && bias_right && total_right &&
           errors.wrong.empty();
  return v;
}

Validation judge_call(const AttentionCall& call, const Problem& problem) {
  const Workload workload(problem, call);
  return judge(workload, reference_rows(workload, choose_rows(problem)), Outputs(problem, call));
}

std::string compare_outputs(const Workload& w, const Outputs& outputs, const Outputs& trusted) {
  constexpr double kBoth = 2;  // each may be off by a gate, so that they may differ by two
  const Problem& p = w.problem();
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
    std::vector<float> o, expected;
  };
  const auto look = [&](const RowId& id, Compared& part) {
    std::vector<float>&o = part.o, &expected = part.expected;
    o.resize(p.head_dim);
    expected.resize(p.head_dim);
    load_elements(output_type(p.dtype), outputs.o_row(id), p.head_dim, o.data());
    load_elements(output_type(p.dtype), trusted.o_row(id), p.head_dim, expected.data());
    double error = 0, norm = 0;
    for (int d = 0; d < p.head_dim; ++d) {
      const double difference = double(o[d]) - expected[d];
      error += difference * difference;
      norm += double(expected[d]) * expected[d];
    }
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
    return std::to_string(wrong_lse.count) + " lse value(s) differ from v01_scalar's, the first at " +
           place(p, wrong_lse.first);
  // In e4m3 a row of O may be small beside the errors of its P. measure() knows how small, and here it is not
  // known: a quarter. A row that is something else is off by more than 1.
  const double times = kBoth * (p.computed_dtype() == DType::kE4m3 ? 4 : 1);
  if (nrmse <= times * gate.nrmse && worst <= times * gate.row_nrmse) return "";
  return "the whole output differs from v01_scalar's: NRMSE " + format("%.2e", nrmse) + ", worst row " +
         format("%.2e", worst) + " at " + place(p, worst_row);
}

}  // namespace flashsteps
