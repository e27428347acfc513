// The results file of docs/results-schema.md: built up as the run goes on, replaced atomically each time. It
// holds what was measured, one entry a line; what follows from that, its readers compute.
#pragma once

#include <string>

#include "harness/base/build_info.h"
#include "harness/base/json.h"
#include "harness/run/runner.h"
#include "harness/run/step_result.h"

namespace flashsteps {

class ResultsFile {
 public:
  // `path` may be empty: then nothing is written.
  ResultsFile(std::string path, const std::string& command, const Device& device);

  json& root() { return root_; }  // but for the runs
  // The run of this problem, which is added if there is none. The reference holds until the next is added.
  Run& run_of(const Problem& problem);
  void save() const;  // atomically: a killed run leaves a whole file
  void save_complete();

  // Says where the results are, and returns the program's exit status: what became of the steps.
  int finish() const;

 private:
  std::string path_;
  json root_;
  std::vector<Run> runs_;
};

json to_json(const BuildInfo& build);  // of the provenance

}  // namespace flashsteps
