// The findings of `flashsteps emulate` as files for other programs: JSON of our own, and SARIF 2.1.0.
#pragma once

#include <string>

#include "harness/base/json.h"

namespace flashsteps {

class Findings {
 public:
  // Of a run of the program: a line of JSON for each, as common/emulator/findings.cpp writes them. What other
  // runs have found, too, is one finding with several runs.
  void add(const std::string& lines, const json& run);

  // By the name's end, .json or .sarif.
  std::string text_for(const std::string& path) const;
  static bool is_known_format(const std::string& path);

 private:
  json sarif() const;

  json findings_ = json::array();
};

}  // namespace flashsteps
