#include "common/emulator/findings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>

namespace emulator {
namespace {

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", unsigned(c));
    const bool is_control = unsigned(c) < ' ';
    json += is_control ? escaped : c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  }
  return json + "\"";
}

template <typename Items, typename Write>
std::string list(const Items& items, Write write) {
  std::string json;
  for (const auto& item : items) json += (json.empty() ? "" : ", ") + write(item);
  return "[" + json + "]";
}

// "kernel.cu:42"; a path may have a colon, too, and of code without lines there is nothing else.
std::string place_as_json(const std::string& place) {
  const size_t colon = place.rfind(':'), digits = colon + 1;
  const bool has_line = colon != place.npos && digits < place.size() &&
                        place.find_first_not_of("0123456789", digits) == place.npos;
  if (!has_line) return "{\"file\": " + quoted(place) + "}";
  return "{\"file\": " + quoted(place.substr(0, colon)) + ", \"line\": " + place.substr(digits) + "}";
}

// The keys are those of the report that harness/emulate/findings.cpp makes of it.
std::string as_json(const std::string& launch, const Report& report) {
  std::string json = "{\"rule\": " + quoted(report.rule->name) +
                     ", \"level\": " + (report.is_advice ? "\"note\"" : "\"error\"") +
                     ", \"text\": " + quoted(report.what()) + ", \"advice\": " + quoted(report.advice) +
                     ", \"places\": " + list(report.places, place_as_json);
  const auto number = [](unsigned n) { return std::to_string(n); };
  if (!report.block.empty()) json += ", \"block\": " + list(report.block, number);
  if (!report.thread.empty())
    json += ", \"thread\": " + list(report.thread, number) + ", \"warp\": " + std::to_string(report.warp) +
            ", \"lane\": " + std::to_string(report.lane);
  if (!report.address.empty()) json += ", \"address\": " + quoted(report.address);
  return json + ", \"launch\": " + place_as_json(launch) + "}\n";
}

size_t num_findings = 0;  // without advice

// A destructor of the program, and not of std::atexit: it runs after all of these and of all static objects.
[[gnu::destructor]] void let_findings_fail_the_program() {
  if (num_findings == 0) return;
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace

void flush_output() {
  std::cout.flush();
  std::fflush(stdout);
}

void print_finding(Location launch, const Report& its_report) {
  static std::mutex mutex;
  static std::vector<Report>& known = *new std::vector<Report>;
  const std::lock_guard lock(mutex);
  const std::string launched_at = describe(launch);
  Report report = its_report;
  if (report.places.empty()) report.places = {launched_at};
  const auto is_this = [&](const Report& other) { return report.is_like(other); };
  if (known.size() > kMostReports || std::ranges::any_of(known, is_this)) return;
  known.push_back(report);
  flush_output();
  if (known.size() > kMostReports) {
    std::fprintf(stderr, "flashsteps: there are more than %zu findings\n", kMostReports);
    return;
  }
  const std::string title = report.is_advice ? "advice" : "finding " + std::to_string(++num_findings);
  std::fprintf(stderr, "flashsteps: %s: kernel launched at %s: %s [%s]\n", title.c_str(), launched_at.c_str(),
               report.what(), report.rule->name);
  if (const char* const path = std::getenv("FLASHSTEPS_EMULATE_FINDINGS")) {
    if (std::FILE* const file = std::fopen(path, "a")) {
      std::fputs(as_json(launched_at, report).c_str(), file);
      std::fclose(file);
    }
  }
}

}  // namespace emulator
