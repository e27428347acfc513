#include "harness/program/results.h"

#include <algorithm>
#include <ctime>
#include <iostream>

#include "harness/base/atomic_file.h"
#include "harness/program/commands.h"

namespace flashsteps {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

// What is spread out, with a line for each of its values. scripts/records/writing.py has the same, and the keys
// of other writers.
const std::set<std::string> kFrames{"provenance", "runs", "ceilings", "steps"};
const std::set<std::string> kFramesOfManyRuns{"provenance", "runs"};
constexpr size_t kManyRuns = 100;

// An entry has one line, be it a step of a run, a ceiling, a problem or one of the device's facts; if there
// are many runs, each of them has one.
std::string to_lines(const json& value, const std::set<std::string>& frames, const std::string& indent = "",
                     bool is_frame = true) {
  if (!is_frame) return value.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string lines;
  for (const auto& [key, item] : value.items()) {
    const auto in_frames = [&](const auto& pair) { return frames.contains(pair.key()); };
    const bool has_frames = item.is_object() && std::ranges::any_of(item.items(), in_frames);
    const bool spread = item.is_structured() && !item.empty() && (frames.contains(key) || has_frames);
    lines += (lines.empty() ? "\n " : ",\n ") + indent;
    if (value.is_object()) lines += json(key).dump() + ": ";
    lines += to_lines(item, frames, indent + " ", spread);
  }
  return (value.is_object() ? "{" : "[") + lines + "\n" + indent + (value.is_object() ? "}" : "]");
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
  root_ = {{"schema", "flashsteps-results/2"},
           {"command", command},
           {"complete", false},
           {"provenance",
            {{"date", utc_now()},
             {"commit", build.commit.empty() ? json(nullptr) : json(build.commit)},
             {"dirty", build.dirty ? json(*build.dirty) : json(nullptr)},
             {"build", to_json(build)},
             {"backend", name(device.backend)},
             {"device", device.description}}}};
}

Run& ResultsFile::run_of(const Problem& problem) {
  const auto found = std::ranges::find(runs_, problem, &Run::problem);
  return found != runs_.end() ? *found : runs_.emplace_back(Run{problem, {}, {}});
}

void ResultsFile::save() const {
  if (path_.empty()) return;
  json whole = root_;
  whole["runs"] = runs_;
  replace_file(path_, to_lines(whole, whole.at("runs").size() > kManyRuns ? kFramesOfManyRuns : kFrames) + "\n");
}

void ResultsFile::save_complete() {
  root_["complete"] = true;
  save();
}

int ResultsFile::finish() const {
  if (!path_.empty()) std::cout << "\nresults: " << path_ << "\n";
  std::set<Status> statuses;
  for (const Run& run : runs_) {
    for (const StepResult& result : run.steps) statuses.insert(result.status);
  }
  return exit_status(statuses);
}

int exit_status(const std::set<Status>& statuses) {
  const auto some = [&](Status one, Status other) {
    return statuses.contains(one) || statuses.contains(other);
  };
  if (some(Status::kCrash, Status::kTimeout)) return kCrashedOrHung;
  if (some(Status::kFail, Status::kError) || !statuses.contains(Status::kPass)) return kSomethingFailed;
  return kAllPassed;
}

}  // namespace flashsteps
