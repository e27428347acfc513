#include "harness/base/text.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
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

std::string grouped(uint64_t number) {
  std::string digits = std::to_string(number);
  for (int at = int(digits.size()) - 3; at > 0; at -= 3) digits.insert(size_t(at), ",");
  return digits;
}

std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string indented(const std::string& text, int spaces) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    out += (out.empty() ? "" : "\n") + std::string(spaces, ' ') + line;
  return out;
}

std::string wrapped(const std::string& text, size_t spaces, size_t column) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) {
    if (out.empty()) {
      column += word.size();
    } else if (column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(spaces, ' ');
      column = spaces + word.size();
    } else {
      out += " ";
      column += 1 + word.size();
    }
    out += word;
  }
  return out;
}

namespace {

bool shows_colors() {
  const auto is_set = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && *value != '\0' && std::string(value) != "0";
  };
  if (const char* const no_color = std::getenv("NO_COLOR"); no_color != nullptr && *no_color != '\0')
    return false;
  return is_set("CLICOLOR_FORCE") || isatty(STDOUT_FILENO);
}

// How many letters must be inserted, deleted or replaced (Levenshtein), where the end of `word` may be
// missing.
int distance(const std::string& typed, const std::string& word) {
  const auto cost = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) ? 100 : 1; };
  std::vector<int> row(word.size() + 1);  // from what was typed so far to each beginning of the word
  for (size_t w = 0; w < word.size(); ++w) row[w + 1] = row[w] + cost(word[w]);
  for (const char t : typed) {
    std::vector<int> next{row[0] + cost(t)};
    for (size_t w = 0; w < word.size(); ++w) {
      const int replaced = row[w] + (t == word[w] ? 0 : std::max(cost(t), cost(word[w])));
      next.push_back(std::min({replaced, row[w + 1] + cost(t), next[w] + cost(word[w])}));
    }
    row = next;
  }
  return *std::ranges::min_element(row);
}

}  // namespace

std::string colored(const std::string& text, Color color) {
  return shows_colors() ? "\033[" + std::to_string(int(color)) + "m" + text + "\033[0m" : text;
}

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& words) {
  const int letters = int(std::ranges::count_if(typed, [](unsigned char c) { return std::isalnum(c); }));
  int least = 1 + letters / 4;  // so many may be wrong
  if (letters <= least) return "";
  std::vector<std::string> likely;
  for (const std::string& word : words) {
    const int its = distance(typed, word);
    if (its < least) likely.clear();
    if (its <= least) likely.push_back(word);
    least = std::min(least, its);
  }
  return likely.empty() || likely.size() > 3 ? "" : "; did you mean " + join(likely, " or ") + "?";
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
