#include "harness/program/results.h"

#include <algorithm>
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

// What is spread out, with a line for each of its values. scripts/records/files.py has the same, and the keys
// of other writers.
const std::set<std::string> kFrames{"provenance",   "runs",  "ceilings", "steps",
                                    "instructions", "warps", "others"};

// An entry has one line, be it a step of a run, a ceiling, a problem or one of the device's facts.
std::string to_lines(const json& value, const std::string& indent, bool is_frame) {
  if (!is_frame) return value.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string lines;
  for (const auto& [key, item] : value.items()) {
    const auto in_frames = [&](const auto& pair) { return kFrames.contains(pair.key()); };
    const bool has_frames = item.is_object() && std::ranges::any_of(item.items(), in_frames);
    const bool spread = item.is_structured() && !item.empty() && (kFrames.contains(key) || has_frames);
    lines += (lines.empty() ? "\n " : ",\n ") + indent;
    if (value.is_object()) lines += json(key).dump() + ": ";
    lines += to_lines(item, indent + " ", spread);
  }
  return (value.is_object() ? "{" : "[") + lines + "\n" + indent + (value.is_object() ? "}" : "]");
}

}  // namespace

json device_record(json description, const json& peak_tflops) {
  for (const auto& [dtype, peak] : peak_tflops.items()) {
    if (peak > 0) description["peak_tflops"][dtype] = peak;
  }
  return description;
}

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
  root_ = {{"schema", "flashsteps-results/2"},
           {"command", command},
           {"complete", false},
           {"provenance",
            {{"date", utc_now()},
             {"commit", build.commit.empty() ? json(nullptr) : json(build.commit)},
             {"dirty", build.dirty ? json(*build.dirty) : json(nullptr)},
             {"build", to_json(build)},
             {"backend", name(device.backend)},
             {"device", device_record(device.description, device.peak_tflops)}}},
           {"runs", json::array()}};
}

json& ResultsFile::run_of(const Problem& problem) {
  const json record = to_json(problem);
  json& runs = root_["runs"];
  for (json& run : runs) {
    if (run.at("problem") == record) return run;
  }
  runs.push_back({{"problem", record}, {"steps", json::array()}});
  return runs.back();
}

void ResultsFile::save() const {
  if (path_.empty()) return;
  replace(path_, to_lines(root_, "", true) + "\n");
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
