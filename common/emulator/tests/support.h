// What the emulator's tests share.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/emulator/emulator.h"
#include "common/launch.h"
#include "harness/tests/support.h"

// Every test starts from the defaults, on one host thread.
inline emulator::Options& fresh_options() {
  emulator::options() = {};
  emulator::options().host_threads = 1;
  return emulator::options();
}

// Global memory.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count) : data_(static_cast<T*>(emulator::allocate(count * sizeof(T)))) {}
  ~Buffer() { emulator::release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  T* data_;
};

template <typename T>
T* shared_array() {
  return reinterpret_cast<T*>(smem);
}

// What a launch reports. Fails the test if it reports nothing.
template <typename Launch>
emulator::Report report_of(Launch launch) {
  try {
    launch();
  } catch (const emulator::Report& report) {
    return report;
  }
  FAIL("no report");
  throw 0;  // not reached; FAIL throws
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Does the report name this line of the test file, and no longer number that begins with it?
inline bool names_line(const emulator::Report& report, const char* file, int line) {
  const char* name = std::strrchr(file, '/') == nullptr ? file : std::strrchr(file, '/') + 1;
  const std::string place = "common/emulator/tests/" + std::string(name) + ":" + std::to_string(line);
  const std::string text = report.what();
  for (size_t at = text.find(place); at != std::string::npos; at = text.find(place, at + 1)) {
    const size_t end = at + place.size();
    if (end == text.size() || !std::isdigit(static_cast<unsigned char>(text[end]))) return true;
  }
  return false;
}

// A kernel's faulty lines are numbered from the line of its LINES_OF, which must stand directly before it.
// Where clang-format could change them it is off.
#define LINES_OF(kernel) constexpr int kernel##_line = __LINE__

// The report is of this bug, names these lines of the test's file, counted from `first_line`, and has all of
// these words. A failure is the caller's.
inline void check_report(const emulator::Report& report, emulator::Bug bug, int first_line,
                         std::initializer_list<int> lines, std::initializer_list<std::string> words = {},
                         const char* file = __builtin_FILE(), int caller = __builtin_LINE()) {
  INFO(file << ":" << caller << ": " << report.what());
  CHECK(report.bug == bug);
  for (const int line : lines) {
    CAPTURE(line);
    CHECK(names_line(report, file, first_line + line));
  }
  for (const std::string& part : words) {
    CAPTURE(part);
    CHECK(contains(report.what(), part));
  }
}

// In order, and in `num_seeds` random orders.
template <typename Test>
void in_all_orders(uint64_t num_seeds, Test test, emulator::AsyncMode async = emulator::AsyncMode::kEarly) {
  for (uint64_t seed = 0; seed <= num_seeds; ++seed) {
    emulator::Options& options = fresh_options();
    options.async = async;
    options.shuffle = seed > 0;
    options.seed = seed;
    options.race_detector = true;
    CAPTURE(int(async), seed);
    test();
  }
}

// The same in every async mode.
template <typename Test>
void in_all_modes(uint64_t num_seeds, Test test) {
  using emulator::AsyncMode;
  for (const AsyncMode async : {AsyncMode::kEarly, AsyncMode::kLate, AsyncMode::kRandom}) {
    in_all_orders(num_seeds, test, async);
  }
}
