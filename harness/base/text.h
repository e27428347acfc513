// Text for people, and for terminals.
#pragma once

#include <stdexcept>
#include <string>

namespace flashsteps {

std::string format(const char* pattern, double value);  // printf's pattern
std::string fixed(double value, int decimals);
std::string scientific(double value);
std::string gibibytes(double bytes, int decimals = 1);  // "1.5 GiB"

std::string indented(const std::string& text, int spaces);
// One line more; none for "".
void add_line(std::string& text, const std::string& line);

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
