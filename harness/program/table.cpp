#include "harness/program/table.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "harness/base/text.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

using Row = std::vector<std::string>;

// "PASS", "HANG", ...
std::string label_of(Status status) {
  if (status == Status::kTimeout) return "HANG";
  std::string label = json(status);
  std::ranges::transform(label, label.begin(), [](unsigned char c) { return std::toupper(c); });
  return label;
}

std::string name_of(const StepResult& result) {
  if (result.configuration.empty() || result.step.find('@') != std::string::npos) return result.step;
  return result.step + " (" + result.configuration + (result.tuned ? ", tuned)" : ")");
}

// Of the validation, null where it has none.
json error_of(const StepResult& result, const char* key) {
  return result.details.value("validation", json::object()).value(key, json());
}

// Some steps ran on a GPU; few queries read K and V at the rate that counts.
Row timing_titles(const Run& run, bool reads) {
  const auto is_cold = [](const StepResult& result) { return result.timing && result.timing->cold_l2; };
  Row titles{std::ranges::any_of(run.steps, is_cold) ? "ms, cold L2" : "ms"};
  if (reads) titles.push_back("TB/s of K, V");
  titles.insert(titles.end(), {"TFLOPS", "p10-p90", "% peak", "% matmul", "% limit", "x prev"});
  return titles;
}

// `base_ms` is the time of the step that it is compared with; 0: there is none.
Row timing_cells(const Timing& timing, const Rates& rates, bool reads, double base_ms) {
  const auto percent = [](const std::optional<double>& share) { return share ? fixed(*share, 1) : "-"; };
  Row cells{fixed(timing.median_ms, reads ? 4 : 3)};
  if (reads) cells.push_back(fixed(*rates.kv_bytes_per_second * 1e-12, 2));
  cells.insert(cells.end(),
               {fixed(rates.tflops, 1), fixed(rates.tflops_p10, 1) + "-" + fixed(rates.tflops_p90, 1),
                percent(rates.percent_of_peak), percent(rates.percent_of_matmul),
                percent(rates.percent_of_limit) + (rates.percent_of_limit ? " " + timing.limit : ""),
                base_ms > 0 ? fixed(base_ms / timing.median_ms, 2) : "-"});
  return cells;
}

Row counter_cells(const json& counters, double seconds) {
  const double wavefronts = counters.at("shared_wavefronts"), ideal = counters.at("shared_wavefronts_ideal");
  Row cells;
  for (const char* key : {"global_requests", "global_sectors", "shared_requests", "shared_wavefronts"})
    cells.push_back(counters.at(key).dump());
  cells.push_back(ideal > 0 ? fixed(wavefronts / ideal, 2) : "-");
  for (const char* key : {"mma", "barriers", "shuffles"}) cells.push_back(counters.at(key).dump());
  cells.push_back(fixed(seconds, 2));
  return cells;
}

}  // namespace

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      text += "  " + (c == 0 ? row[c] + padding : padding + row[c]);
    }
    while (text.back() == ' ') text.pop_back();
    text += "\n";
  }
  return text;
}

std::string format_run(const Run& run, double peak_tflops) {
  const bool timed =
      std::ranges::any_of(run.steps, [](const auto& result) { return result.timing.has_value(); });
  const bool counted =
      std::ranges::any_of(run.steps, [](const auto& result) { return result.details.contains("counters"); });
  const bool reads = timed && is_decode(run.problem);
  std::vector<Row> rows{{"step", "result", "NRMSE", "worst row"}};
  const auto add = [](Row& row, const Row& cells) { row.insert(row.end(), cells.begin(), cells.end()); };
  if (timed) add(rows[0], timing_titles(run, reads));
  if (counted) {
    // Two lines: with one the table would be wider than most terminals.
    Row above(rows[0].size());
    add(above, {"global", "", "shared"});
    add(rows[0], {"requests", "sectors", "requests", "wavefronts", "x ideal", "mma", "barriers", "shuffles",
                  "seconds"});
    rows.insert(rows.begin(), above);
  }
  // A line for every part of the ladder, where there are several.
  const bool several_parts = std::ranges::any_of(
      run.steps, [&](const auto& result) { return result.part != run.steps.front().part; });
  std::string part;
  double previous_ms = 0;               // of the row above
  std::map<std::string, double> ms_of;  // by step
  const auto number = [](const json& value) { return value.is_number() ? scientific(value) : "-"; };
  for (const StepResult& result : run.steps) {
    if (several_parts && result.part != part) {
      part = result.part;
      rows.push_back({part.empty() ? "others" : part});
    }
    Row& row = rows.emplace_back(Row{(several_parts ? "  " : "") + name_of(result), label_of(result.status),
                                     number(error_of(result, "nrmse")),
                                     number(error_of(result, "worst_row_nrmse"))});
    if (result.timing) {
      const char* const after = find_steps(result.step).front().info->after;
      const auto base = ms_of.find(after != nullptr ? after : "");
      add(row, timing_cells(*result.timing, rates_of(*result.timing, run.problem, peak_tflops, run.ceilings),
                            reads, base != ms_of.end() ? base->second : previous_ms));
      previous_ms = ms_of[result.step] = result.timing->median_ms;
    }
    if (result.details.contains("counters"))
      add(row, counter_cells(result.details["counters"], result.details.at("seconds")));
  }
  std::string text = run.problem.label() + "\n" + format_table(rows);
  if (counted)
    text += "  (counts are exact; the emulator has no timing model, the seconds are its own running time)\n";
  if (!run.ceilings.empty()) text += "  measured ceilings:\n" + format_ceilings(run.ceilings);
  return text;
}

std::string format_ceilings(const Ceilings& ceilings) {
  std::vector<Row> rows;
  for (const auto& [name, ceiling] : ceilings) {
    const double rate = ceiling.per_second() * 1e-12;
    rows.push_back(
        {"  " + name, ceiling.what,
         ceiling.unit == "FLOP" ? fixed(rate, 1) + " TFLOPS" : fixed(rate, 2) + " T " + ceiling.unit + "/s"});
  }
  return format_table(rows);
}

std::string format_result(const StepResult& result, const std::string& label) {
  std::string text = label_of(result.status) + "  " + result.step + "  " + label;
  if (const json nrmse = error_of(result, "nrmse"); nrmse.is_number()) {
    const json worst_row = error_of(result, "worst_row_nrmse");
    text += "  NRMSE " + scientific(nrmse) + ", worst row " +
            scientific(worst_row.is_number() ? worst_row.get<double>() : NAN);
  }
  text += "\n";
  if (!result.message.empty()) text += indented(result.message, 6) + "\n";
  return text;
}

}  // namespace flashsteps
