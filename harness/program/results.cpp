#include "harness/program/results.h"

#include <ctime>

#include "harness/base/atomic_file.h"

namespace flashsteps {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

}  // namespace

nlohmann::json to_json(const BuildInfo& build) {
  nlohmann::json json = {{"compiler", build.compiler}, {"flags", build.flags}, {"type", build.type}};
  if (!build.nvcc.empty()) {
    json["nvcc"] = build.nvcc;
    json["architectures"] = build.architectures;
  }
  return json;
}

ResultsFile::ResultsFile(std::string path, const std::string& command) : path_(std::move(path)) {
  const BuildInfo& build = build_info();
  using nlohmann::json;
  root_ = {{"schema", "flashsteps-results/1"},
           {"command", command},
           {"complete", false},
           {"provenance",
            {{"date", utc_now()},
             {"commit", build.commit.empty() ? json(nullptr) : json(build.commit)},
             {"dirty", build.dirty ? json(*build.dirty) : json(nullptr)},
             {"build", to_json(build)}}},
           {"runs", json::array()}};
}

nlohmann::json& ResultsFile::add_run(const Problem& problem) {
  root_["runs"].push_back({{"problem", to_json(problem)}, {"steps", nlohmann::json::array()}});
  return root_["runs"].back();
}

void ResultsFile::save() const {
  if (path_.empty()) return;
  replace(path_, root_.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void ResultsFile::replace(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace flashsteps
