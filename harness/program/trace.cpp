// flashsteps trace: who waits for whom in one CTA of a step, on the emulator, as docs/pipeline.md shows it.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/program/commands.h"
#include "harness/program/prepare.h"
#include "harness/program/table.h"

namespace flashsteps {
namespace {

constexpr int kLabel = 16, kTimes = 64;  // columns of text, 80 together

// One bar for what a track does most of in a column's time.
struct Mark {
  const char* category;  // of events, see harness/device/trace_json.cpp
  char letter;
  const char* meaning;
};
constexpr Mark kMarks[] = {{"products", '#', "tensor cores"}, {"wgmma", '#', "tensor cores"},
                           {"work", '=', "other work"},       {"memory", 'g', "global memory"},
                           {"issue", 'c', "asks for a copy"}, {"wait", '.', "waits"}};

// A copy is shown by the last digit of its tile's number, or its group's.
char letter_of(const json& event) {
  const auto mark = std::ranges::find(kMarks, event.at("cat").get<std::string>(), &Mark::category);
  return mark != std::end(kMarks) ? mark->letter : event.at("name").get<std::string>().back();
}

std::string bars(const std::vector<json>& events, int64_t end) {
  std::string line;
  for (int64_t column = 0; column < kTimes; ++column) {
    std::map<char, int64_t> share;  // how long, in units of time divided by kTimes
    for (const json& event : events) {
      const int64_t begin = event.at("ts"), length = event.value("dur", int64_t(0));
      const int64_t shared =
          std::min((begin + length) * kTimes, (column + 1) * end) - std::max(begin * kTimes, column * end);
      if (shared > 0) share[letter_of(event)] += shared;
    }
    const auto is_less = [](const auto& one, const auto& other) { return one.second < other.second; };
    // To ask takes next to no time, and matters nonetheless.
    line += share.contains('c') ? 'c' : share.empty() ? ' ' : std::ranges::max_element(share, is_less)->first;
  }
  return line;
}

// "warps 0-3" for those that have the same bars, "wgmma 0-3", "K to 8192" for copies to that place in shared
// memory.
std::string label_of(const std::string& first, const std::string& last) {
  const auto number = [](const std::string& track) { return track.substr(track.rfind(' ') + 1); };
  if (first.starts_with("copies of "))
    return first.substr(10, first.find(" smem") - 10) + " " + number(first);
  const std::string what = first.starts_with("wgmma") ? "wgmma " : first == last ? "warp " : "warps ";
  return what + number(first) + (first == last ? "" : "-" + number(last));
}

std::string padded(const std::string& text, int width) {
  return text + std::string(size_t(std::max(1, width - int(text.size()))), ' ');
}

// Below the bars: round times, about five.
std::string ruler(int64_t end) {
  int64_t step = 1;
  for (int i = 0; step * 5 < end; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;  // 1, 2, 5, 10, 20, ...
  std::string line = padded("  nominal time", kLabel);
  for (int64_t time = 0; time < end; time += step) {
    const std::string text = grouped(uint64_t(time));
    const size_t column = kLabel + size_t(time * kTimes / end);
    if (column + text.size() <= kLabel + kTimes) line = padded(line, int(column)).substr(0, column) + text;
  }
  return line;
}

// What each warp does, and each copy: the trace in text.
std::string time_line(const json& trace) {
  std::map<int, std::string> names;
  std::map<int, std::vector<json>> tracks;
  std::set<std::string> categories;
  int64_t end = 1;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    tracks[event.at("tid")].push_back(event);
    categories.insert(event.at("cat").get<std::string>());
    end = std::max(end, event.at("ts").get<int64_t>() + event.at("dur").get<int64_t>());
  }
  std::string text;
  for (auto track = names.begin(); track != names.end();) {
    const std::string line = bars(tracks[track->first], end), first = track->second;
    std::string last = first;
    const auto is_alike = [&](const std::string& name) {
      return name.substr(0, 5) == first.substr(0, 5) && !first.starts_with("copies");
    };
    while (++track != names.end() && is_alike(track->second) && bars(tracks[track->first], end) == line)
      last = track->second;
    text +=
        padded("  " + label_of(first, last), kLabel) + line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  text += ruler(end) + "\n\n";
  std::string marks;
  for (const Mark& mark : kMarks) {
    const std::string meaning = std::string(1, mark.letter) + " " + mark.meaning;
    if (categories.contains(mark.category) && marks.find(meaning) == std::string::npos)
      marks += (marks.empty() ? "" : ", ") + meaning;
  }
  text += "  " + marks + "\n";
  if (categories.contains("wgmma"))
    text += "  wgmma N: the tensor cores work for warp N, which may go on meanwhile\n";
  if (categories.contains("copy"))
    text +=
        "  K to N: copies of K to byte N of shared memory; the digit is the last of a\n"
        "  tile's number, or with cp.async of a group's\n";
  return text;
}

}  // namespace

int trace_step(const Options& options) {
  if (options.backend == "cuda") throw UsageError("trace: only the emulator can be traced, not a GPU");
  if (options.steps.size() > 1) throw UsageError("trace: shows one step; name it");
  if (options.problems.size() > 1)
    throw UsageError("trace: shows one problem, but there are " + std::to_string(options.problems.size()));

  Runner runner("emulator", options.in_process, options.timeout_seconds);
  const StepChoice& step = options.steps.front();
  const Problem problem = prepare_problems(options, runner).front();
  const Probed probed = runner.probe({problem}, {step});
  refuse_named_steps(options, {problem}, probed);

  const auto& [x, y, z] = probed.resources[0][0].grid;
  const uint64_t num_ctas = uint64_t(x) * y * z;
  const uint64_t cta = options.cta < 0 ? num_ctas - 1 : uint64_t(options.cta);
  if (cta >= num_ctas)
    throw UsageError("--cta is " + std::to_string(cta) + ", but " + step.name + " has " +
                     std::to_string(num_ctas) + " CTAs for " + problem.label());

  json trace;
  const JobOutcome outcome =
      runner.job({{"job", "trace"}, {"step", step.name}, {"problem", to_json(problem)}, {"cta", cta}},
                 [&](const json& event) { trace = event.at("trace"); });
  if (!outcome.done()) {
    std::cout << format_result({.step = step.name, .status = outcome.status, .message = outcome.message},
                               problem.label());
    return exit_status({outcome.status});
  }
  trace["otherData"]["problem"] = to_json(problem);
  std::cout << step.name << ", " << problem.label() << ", CTA " << cta << " of " << num_ctas << "\n\n"
            << time_line(trace)
            << "  The time is nominal, not measured: who waits for whom, not how long it takes.\n";
  if (!options.json_path.empty()) {
    replace_file(options.json_path, trace.dump(0) + "\n");
    std::cout << "\ntrace: " << options.json_path
              << "\nopen it in https://ui.perfetto.dev or chrome://tracing\n";
  }
  return kAllPassed;
}

}  // namespace flashsteps
