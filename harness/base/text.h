// Text for people, and for terminals.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace flashsteps {

std::string format(const char* pattern, double value);  // printf's pattern
std::string fixed(double value, int decimals);
std::string scientific(double value);
std::string gibibytes(double bytes, int decimals = 1);  // "1.5 GiB"
std::string grouped(uint64_t number);                   // "1,052,704"

constexpr size_t kColumns = 100;  // no table is wider, nor a text that is wrapped

std::string join(const std::vector<std::string>& words, const std::string& between);
std::string indented(const std::string& text, int spaces);
// Lines of words, of at most kColumns, with these spaces before each but the first, which has `column`
// characters before it already.
std::string wrapped(const std::string& text, size_t spaces, size_t column);
// One line more; none for "".
void add_line(std::string& text, const std::string& line);

// In this colour where stdout shows colours: on a terminal, but for what NO_COLOR and CLICOLOR_FORCE say.
enum class Color { kRed = 31, kGreen = 32, kYellow = 33 };
std::string colored(const std::string& text, Color color);

// "; did you mean --shape?", or "" if none of the words is like it. The beginning of a word is like the word.
// Digits are not mistyped: v26 is not v25.
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& words);

// Wrong use of the program: one line for the user, exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One line that is rewritten in place on a terminal, and silent elsewhere.
class Progress {
 public:
  ~Progress() { clear(); }  // an error's line begins where this one did
  void show(const std::string& text);
  void clear();

 private:
  bool shown_ = false;
};

}  // namespace flashsteps
