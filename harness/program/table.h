// Text for people: aligned tables and a line of live progress.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashsteps {

// Columns as wide as their content; the first one is left-aligned, the others right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// The table of one problem's finished steps: timing where there is one, counters where there are some.
std::string format_run(const nlohmann::json& run);

std::string status_label(const std::string& status);  // "pass" -> "PASS", "timeout" -> "HANG", ...

// One line that is rewritten in place on a terminal, and silent elsewhere.
class Progress {
 public:
  void show(const std::string& text);
  void clear();

 private:
  bool shown_ = false;
};

}  // namespace flashsteps
