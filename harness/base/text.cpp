#include "harness/base/text.h"

#include <cstdio>
#include <sstream>

namespace flashsteps {

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string scientific(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

std::string gibibytes(double bytes, int decimals) { return fixed(bytes / (1 << 30), decimals) + " GiB"; }

std::string without_controls(const std::string& text) {
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = text[i], next = text[i + 1];
    const bool c1 = c == 0xc2 && next >= 0x80 && next < 0xa0;
    kept += c < 0x20 || c == 0x7f || c1 ? '?' : text[i];
    i += c1;
  }
  return kept;
}

bool has_controls(const std::string& text) { return without_controls(text) != text; }

std::string indented(const std::string& text, int spaces) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    out += (out.empty() ? "" : "\n") + std::string(spaces, ' ') + without_controls(line);
  return out;
}

}  // namespace flashsteps
