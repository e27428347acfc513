#include "harness/program/table.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "harness/base/text.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

using Row = std::vector<std::string>;

// "PASS", "HANG", ...
std::string word_of(Status status) {
  if (status == Status::kTimeout) return "HANG";
  std::string word = json(status);
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::toupper(c); });
  return word;
}

// In a table, where only what is wrong says so.
std::string name_of(const StepResult& result) {
  const std::string name = result.step + (result.passed() ? "" : " " + word_of(result.status));
  if (result.configuration.empty() || result.step.find('@') != std::string::npos) return name;
  return name + " (" + result.configuration + (result.tuned ? ", tuned)" : ")");
}

// Of the validation, null where it has none.
json error_of(const StepResult& result, const char* key) {
  return result.details.value("validation", json::object()).value(key, json());
}

// What a column says of a step. Two lines of title stand above a column, and in one line beside a row.
struct Column {
  std::string title;
  bool always;  // also where there are many steps
  std::function<std::string(const StepResult&)> cell;
};

// `base_ms` is by step the time of the one that it is compared with; 0: there is none.
std::vector<Column> timing_columns(const Run& run, double peak_tflops,
                                   const std::map<std::string, double>& base_ms) {
  // Few queries read K and V at the rate that counts.
  const bool reads = is_decode(run.problem);
  const auto is_cold = [](const StepResult& result) { return result.timing && result.timing->cold_l2; };
  const auto rates = [=, &run](const StepResult& result) {
    return rates_of(*result.timing, run.problem, peak_tflops, run.ceilings);
  };
  const auto percent = [](const std::optional<double>& share) { return share ? fixed(*share, 1) : "-"; };
  std::vector<Column> columns{
      {std::ranges::any_of(run.steps, is_cold) ? "ms,\ncold L2" : "ms", true,
       [=](const StepResult& r) { return fixed(r.timing->median_ms, reads ? 4 : 3); }}};
  if (reads)
    columns.push_back({"TB/s of\nK, V", true,
                       [=](const StepResult& r) { return fixed(*rates(r).kv_bytes_per_second * 1e-12, 2); }});
  const std::vector<Column> others{
      {"TFLOPS", true, [=](const StepResult& r) { return fixed(rates(r).tflops, 1); }},
      {"p10-p90", true,
       [=](const StepResult& r) {
         return fixed(rates(r).tflops_p10, 1) + "-" + fixed(rates(r).tflops_p90, 1);
       }},
      {"% peak", !reads, [=](const StepResult& r) { return percent(rates(r).percent_of_peak); }},
      {"% matmul", false, [=](const StepResult& r) { return percent(rates(r).percent_of_matmul); }},
      {"% limit", true,
       [=](const StepResult& r) {
         const auto share = rates(r).percent_of_limit;
         return percent(share) + (share ? " " + r.timing->limit : "");
       }},
      {"x prev", true, [=, &base_ms](const StepResult& r) {
         const double base = base_ms.at(r.step);
         return base > 0 ? fixed(base / r.timing->median_ms, 2) : "-";
       }}};
  columns.insert(columns.end(), others.begin(), others.end());
  return columns;
}

// Instructions that no step has, and that most kernels have not, have no column.
std::vector<Column> counter_columns(const std::vector<const StepResult*>& steps) {
  struct Counter {
    const char *title, *key;
    bool always, also_zero;
  };
  const Counter counters[] = {{"global\nrequests", "global_requests", false, true},
                              {"global\nsectors", "global_sectors", true, true},
                              {"shared\nrequests", "shared_requests", false, true},
                              {"shared\nwavefronts", "shared_wavefronts", true, true},
                              {"x ideal", "shared_wavefronts_ideal", true, true},  // the quotient
                              {"ldmatrix", "ldmatrix", false, false},
                              {"mma", "mma", true, true},
                              {"wgmma", "wgmma", true, false},
                              {"TMA loads", "tma_loads", false, false},
                              {"TMA load bytes", "tma_load_bytes", false, false},
                              {"TMA stores", "tma_stores", false, false},
                              {"barriers", "barriers", true, true},
                              {"shuffles", "shuffles", true, true}};
  const auto count = [](const StepResult& r, const std::string& key) {
    return r.details.at("counters").at(key).get<uint64_t>();
  };
  std::vector<Column> columns;
  for (const auto& [title, key, always, also_zero] : counters) {
    const std::string name = key;
    const auto is_zero = [&](const StepResult* step) { return count(*step, name) == 0; };
    if (!also_zero && std::ranges::all_of(steps, is_zero)) continue;
    columns.push_back({title, always, [=](const StepResult& r) {
                         const uint64_t number = count(r, name);
                         if (name != "shared_wavefronts_ideal") return grouped(number);
                         return number > 0 ? fixed(double(count(r, "shared_wavefronts")) / double(number), 2)
                                           : "-";
                       }});
  }
  return columns;
}

size_t width_of(const std::string& table) {
  size_t width = 0;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) width = std::max(width, line.size());
  return width;
}

// A column for each step, in whose order they stand, and a row for each of `columns`.
std::string with_steps_beside_each_other(const std::vector<const StepResult*>& steps,
                                         const std::vector<Column>& columns) {
  std::vector<Row> rows{{""}};
  for (const StepResult* const step : steps) rows[0].push_back(name_of(*step));
  for (const Column& column : columns) {
    Row& row = rows.emplace_back(Row{column.title});
    std::ranges::replace(row[0], '\n', ' ');
    for (const StepResult* const step : steps) row.push_back(column.cell(*step));
  }
  return format_table(rows);
}

// A row for each step, below one for each part of the ladder where there are several.
std::string with_steps_below_each_other(const std::vector<const StepResult*>& steps,
                                        const std::vector<Column>& columns) {
  Row above{""}, titles{"step"};
  for (const Column& column : columns) {
    if (!column.always) continue;
    const size_t end = column.title.find('\n');
    above.push_back(end == std::string::npos ? "" : column.title.substr(0, end));
    titles.push_back(end == std::string::npos ? column.title : column.title.substr(end + 1));
  }
  std::vector<Row> rows{titles};
  if (std::ranges::any_of(above, [](const std::string& title) { return !title.empty(); }))
    rows.insert(rows.begin(), above);
  const bool several_parts =
      std::ranges::any_of(steps, [&](const StepResult* step) { return step->part != steps.front()->part; });
  std::string part;
  for (const StepResult* const step : steps) {
    if (several_parts && step->part != part) {
      part = step->part;
      rows.push_back({part.empty() ? "others" : part});
    }
    std::string name = (several_parts ? "  " : "") + name_of(*step);
    constexpr size_t kLongestName = 36;  // a longer one leaves the columns no room, and stands above them
    if (name.size() > kLongestName) rows.push_back({std::exchange(name, "")});
    Row& row = rows.emplace_back(Row{name});
    for (const Column& column : columns) {
      if (column.always) row.push_back(column.cell(*step));
    }
  }
  return format_table(rows);
}

// A terminal would break long lines between any two letters. Files and pipes get them whole.
std::string indented_message(const std::string& message) {
  if (!isatty(STDOUT_FILENO)) return indented(message, 6);
  std::istringstream lines(message);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const size_t spaces = 6 + std::min(line.find_first_not_of(' '), line.size());
    add_line(text, std::string(spaces, ' ') + wrapped(line, spaces + 2, spaces));
  }
  return text;
}

}  // namespace

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    if (row.size() == 1) continue;  // a heading reaches over the columns
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - std::min(widths[c], row[c].size()), ' ');
      text += "  " + (c == 0 ? row[c] + padding : padding + row[c]);
    }
    while (text.back() == ' ') text.pop_back();
    text += "\n";
  }
  return text;
}

std::string format_run(const Run& run, double peak_tflops) {
  std::vector<const StepResult*> timed, counted;
  double previous_ms = 0;                        // of the step before
  std::map<std::string, double> ms_of, base_ms;  // by step
  for (const StepResult& result : run.steps) {
    if (result.details.contains("counters")) counted.push_back(&result);
    if (!result.timing) continue;
    timed.push_back(&result);
    const char* const after = find_steps(result.step).front().info->after;
    const auto base = ms_of.find(after != nullptr ? after : "");
    base_ms[result.step] = base != ms_of.end() ? base->second : previous_ms;
    previous_ms = ms_of[result.step] = result.timing->median_ms;
  }
  const std::vector<const StepResult*>& steps = timed.empty() ? counted : timed;
  if (steps.empty()) return "";
  const std::vector<Column> columns =
      timed.empty() ? counter_columns(steps) : timing_columns(run, peak_tflops, base_ms);
  std::string text = with_steps_beside_each_other(steps, columns);
  if (width_of(text) > kColumns) text = with_steps_below_each_other(steps, columns);
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

std::string verdict(Status status) {
  return colored(word_of(status), status == Status::kPass   ? Color::kGreen
                                  : status == Status::kSkip ? Color::kYellow
                                                            : Color::kRed);
}

std::string format_result(const StepResult& result, const std::string& label, size_t name_width) {
  std::string text = verdict(result.status) + "  " + result.step;
  if (result.step.size() < name_width) text += std::string(name_width - result.step.size(), ' ');
  if (!label.empty()) text += "  " + label;
  if (const json nrmse = error_of(result, "nrmse"); nrmse.is_number()) {
    const json worst_row = error_of(result, "worst_row_nrmse");
    text += "  NRMSE " + scientific(nrmse) + ", worst row " +
            scientific(worst_row.is_number() ? worst_row.get<double>() : NAN);
    if (const json quantization = error_of(result, "quantization_nrmse"); quantization.is_number())
      text += ", of the quantization " + scientific(quantization);
  }
  if (result.status == Status::kSkip && label.empty()) return text + "  " + result.message + "\n";
  text += "\n";
  if (!result.message.empty()) text += indented_message(result.message) + "\n";
  return text;
}

}  // namespace flashsteps
