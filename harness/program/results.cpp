#include "harness/program/results.h"

#include <ctime>
#include <iostream>

#include "harness/base/atomic_file.h"
#include "harness/problem/problem_json.h"
#include "harness/program/commands.h"

namespace flashsteps {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

}  // namespace

json to_json(const BuildInfo& build) {
  json record = {{"compiler", build.compiler}, {"flags", build.flags}, {"type", build.type}};
  if (!build.nvcc.empty()) {
    record["nvcc"] = build.nvcc;
    record["architectures"] = build.architectures;
  }
  return record;
}

ResultsFile::ResultsFile(std::string path, const std::string& command, const Device& device)
    : path_(std::move(path)) {
  const BuildInfo& build = build_info();
  root_ = {{"schema", "flashsteps-results/1"},
           {"command", command},
           {"complete", false},
           {"provenance",
            {{"date", utc_now()},
             {"commit", build.commit.empty() ? json(nullptr) : json(build.commit)},
             {"dirty", build.dirty ? json(*build.dirty) : json(nullptr)},
             {"build", to_json(build)},
             {"backend", name(device.backend)},
             {"device", device.description}}},
           {"runs", json::array()}};
}

json& ResultsFile::run_of(const Problem& problem) {
  const std::string label = problem.label();
  json& runs = root_["runs"];
  for (json& run : runs) {
    if (run.at("problem").at("label") == label) return run;
  }
  runs.push_back({{"problem", to_json(problem)}, {"steps", json::array()}});
  return runs.back();
}

void ResultsFile::save() const {
  if (path_.empty()) return;
  replace(path_, root_.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

void ResultsFile::save_complete() {
  root_["complete"] = true;
  save();
}

int ResultsFile::finish() const {
  if (!path_.empty()) std::cout << "\nresults: " << path_ << "\n";
  std::set<std::string> statuses;
  for (const json& run : root_.at("runs")) {
    for (const json& entry : run.at("steps")) statuses.insert(entry.at("status"));
  }
  return exit_status(statuses);
}

void ResultsFile::replace(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

int exit_status(const std::set<std::string>& statuses) {
  if (statuses.count("crash") + statuses.count("timeout") > 0) return kCrashedOrHung;
  if (statuses.count("fail") + statuses.count("error") > 0 || statuses.count("pass") == 0)
    return kSomethingFailed;
  return kAllPassed;
}

}  // namespace flashsteps
