#include "harness/program/table.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "common/interface.h"
#include "harness/base/text.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

// "pass" -> "PASS", "timeout" -> "HANG", ...
std::string status_label(const std::string& status) {
  if (status == "timeout") return "HANG";
  std::string label = status;
  std::transform(label.begin(), label.end(), label.begin(), [](unsigned char c) { return std::toupper(c); });
  return label;
}

// The step that one comes from, if its registration names it. `name` may have a configuration behind an @.
std::string comes_from(const std::string& name) {
  for (const BackendKind backend : {BackendKind::kCuda, BackendKind::kEmulator}) {
    const Step* const step = find_step(name.substr(0, name.find('@')), backend);
    if (step != nullptr && step->info.after != nullptr) return step->info.after;
  }
  return "";
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

std::string format_run(const json& run, const Problem& problem, double peak_tflops) {
  const json& steps = run.at("steps");
  const json ceilings = run.value("ceilings", json::object());
  const auto any = [&](const char* key) {
    return std::ranges::any_of(steps, [&](const json& step) { return step.contains(key); });
  };
  const auto number = [](const json& value, auto&& format) {
    return value.is_number() ? format(value.get<double>()) : std::string("-");
  };
  const bool timed = any("timing"), counted = any("counters");
  std::vector<std::vector<std::string>> rows{{"step", "result", "NRMSE", "worst row"}};
  const auto add = [](std::vector<std::string>& row, std::initializer_list<std::string> cells) {
    row.insert(row.end(), cells);
  };
  const auto is_cold = [](const json& step) { return step.value("timing", json::object()).contains("l2"); };
  const bool reads = timed && is_decode(problem);
  if (timed) {
    add(rows[0], {std::ranges::any_of(steps, is_cold) ? "ms, cold L2" : "ms"});
    if (reads) add(rows[0], {"TB/s of K, V"});
    add(rows[0], {"TFLOPS", "p10-p90", "% peak", "% matmul", "% limit", "x prev"});
  }
  if (counted) {
    // Two lines: with one the table would be wider than most terminals.
    std::vector<std::string> above(rows[0].size());
    add(above, {"global", "", "shared"});
    add(rows[0], {"requests", "sectors", "requests", "wavefronts", "x ideal", "mma", "barriers", "shuffles",
                  "seconds"});
    rows.insert(rows.begin(), above);
  }
  double previous_ms = 0;               // of the row above
  std::map<std::string, double> ms_of;  // by step
  // A line for every part of the ladder, where there are several.
  std::string part;
  const auto part_of = [](const json& step) { return step.value("part", std::string()); };
  const bool several_parts =
      std::ranges::any_of(steps, [&](const json& step) { return part_of(step) != part_of(steps.front()); });
  for (const json& step : steps) {
    if (several_parts && part_of(step) != part) {
      part = part_of(step);
      rows.push_back({part.empty() ? "others" : part});
    }
    std::string name = step.at("step");
    if (step.contains("configuration") && name.find('@') == std::string::npos)
      name +=
          " (" + step["configuration"].get<std::string>() + (step.value("tuned", false) ? ", tuned)" : ")");
    const json validation = step.value("validation", json::object());
    std::vector<std::string> row{(several_parts ? "  " : "") + name, status_label(step.at("status")),
                                 number(validation.value("nrmse", json()), scientific),
                                 number(validation.value("worst_row_nrmse", json()), scientific)};
    if (timed && step.contains("timing")) {
      const json& timing = step.at("timing");
      const Rates rates = rates_of(timing, problem, peak_tflops, ceilings);
      const double ms = timing.at("median_ms");
      const auto base = ms_of.find(comes_from(step.at("step")));
      const double base_ms = base != ms_of.end() ? base->second : previous_ms;
      const auto percent = [](const std::optional<double>& share) { return share ? fixed(*share, 1) : "-"; };
      add(row, {fixed(ms, reads ? 4 : 3)});
      if (reads) add(row, {fixed(*rates.kv_bytes_per_second * 1e-12, 2)});
      add(row,
          {fixed(rates.tflops, 1), fixed(rates.tflops_p10, 1) + "-" + fixed(rates.tflops_p90, 1),
           percent(rates.percent_of_peak), percent(rates.percent_of_matmul),
           rates.percent_of_limit ? percent(rates.percent_of_limit) + " " + timing.value("limit", "") : "-",
           base_ms > 0 ? fixed(base_ms / ms, 2) : "-"});
      previous_ms = ms_of[step.at("step")] = ms;
    }
    if (counted && step.contains("counters")) {
      const json& c = step.at("counters");
      const double ideal = c.at("shared_wavefronts_ideal");
      for (const char* key : {"global_requests", "global_sectors", "shared_requests", "shared_wavefronts"})
        row.push_back(c.at(key).dump());
      row.push_back(ideal > 0 ? fixed(c.at("shared_wavefronts").get<double>() / ideal, 2) : "-");
      for (const char* key : {"mma", "barriers", "shuffles"}) row.push_back(c.at(key).dump());
      row.push_back(fixed(step.at("seconds"), 2));
    }
    rows.push_back(row);
  }
  std::string text = problem.label() + "\n" + format_table(rows);
  if (counted)
    text += "  (counts are exact; the emulator has no timing model, the seconds are its own running time)\n";
  if (!ceilings.empty()) text += "  measured ceilings:\n" + format_ceilings(ceilings);
  return text;
}

std::string format_ceilings(const json& ceilings) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, ceiling] : ceilings.items()) {
    const std::string unit = ceiling.at("unit");
    const double rate = per_second(ceiling) * 1e-12;
    rows.push_back({"  " + name, ceiling.at("what"),
                    unit == "FLOP" ? fixed(rate, 1) + " TFLOPS" : fixed(rate, 2) + " T " + unit + "/s"});
  }
  return format_table(rows);
}

std::string format_instructions(const json& instructions) {
  std::vector<std::vector<std::string>> rows{
      {"instruction", "warps", "banks", "beside", "spread", "together"}};
  for (const json& costs : instructions.at("warps")) {
    const std::string warps = std::to_string(costs.at("warps").get<int>());
    rows.push_back({"none", warps, "-", "0", fixed(costs.at("spread"), 1), fixed(costs.at("together"), 1)});
    for (const json& each : costs.at("others")) {
      for (size_t i = 0; i < each.at("beside").size(); ++i)
        rows.push_back({each.at("instruction"), warps, std::to_string(each.at("banks").get<int>()),
                        std::to_string(each.at("beside")[i].get<int>()), fixed(each.at("spread")[i], 1),
                        fixed(each.at("together")[i], 1)});
    }
  }
  return format_table(rows);
}

std::string format_entry(const json& entry, const std::string& label) {
  std::string text =
      status_label(entry.at("status")) + "  " + entry.at("step").get<std::string>() + "  " + label;
  const json validation = entry.value("validation", json::object());
  if (const json nrmse = validation.value("nrmse", json()); nrmse.is_number()) {
    const json worst_row = validation.at("worst_row_nrmse");
    text += "  NRMSE " + scientific(nrmse) + ", worst row " +
            scientific(worst_row.is_number() ? worst_row.get<double>() : NAN);
  }
  text += "\n";
  if (const std::string message = entry.at("message"); !message.empty()) text += indented(message, 6) + "\n";
  return text;
}

}  // namespace flashsteps
