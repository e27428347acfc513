// The results file of docs/results-schema.md: built up as the run goes on, replaced atomically each time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "harness/base/build_info.h"
#include "harness/problem/problem.h"

namespace flashsteps {

class ResultsFile {
 public:
  // `path` may be empty: then nothing is written.
  ResultsFile(std::string path, const std::string& command);

  nlohmann::json& root() { return root_; }
  nlohmann::json& add_run(const Problem& problem);  // the reference holds until the next add_run
  nlohmann::json& run(size_t index) { return root_["runs"][index]; }
  void save() const;  // atomically: a killed run leaves a whole file

  // What save() does, with any text. Throws std::runtime_error when it cannot.
  static void replace(const std::string& path, const std::string& text);

 private:
  std::string path_;
  nlohmann::json root_;
};

nlohmann::json to_json(const BuildInfo& build);  // "build" of the provenance

}  // namespace flashsteps
