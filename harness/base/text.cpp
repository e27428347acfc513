#include "harness/base/text.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>

namespace flashsteps {

std::string format(const char* pattern, double value) {
  char text[400];  // the largest double in full has 309 digits
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string fixed(double value, int decimals) {
  return format(("%." + std::to_string(decimals) + "f").c_str(), value);
}

std::string scientific(double value) { return format("%.1e", value); }

std::string gibibytes(double bytes, int decimals) { return fixed(bytes / (1 << 30), decimals) + " GiB"; }

std::string indented(const std::string& text, int spaces) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    out += (out.empty() ? "" : "\n") + std::string(spaces, ' ') + line;
  return out;
}

void Progress::show(const std::string& text) {
  if (!isatty(STDERR_FILENO)) return;
  // Of a line that wraps, only the last part would be rewritten: the terminal cuts it off.
  std::cerr << "\r\033[K\033[?7l" << text << "\033[?7h" << std::flush;
  shown_ = true;
}

void Progress::clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
  shown_ = false;
}

void add_line(std::string& text, const std::string& line) {
  if (!line.empty()) text += (text.empty() ? "" : "\n") + line;
}

}  // namespace flashsteps
