#pragma once

#include <string>

namespace flashsteps {

// One line that is rewritten in place on a terminal, and silent elsewhere.
class Progress {
 public:
  void show(const std::string& text);
  void clear();

 private:
  bool shown_ = false;
};

}  // namespace flashsteps
