// What the emulator's tests share.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "common/emulator/emulator.h"
#include "common/launch.h"
#include "harness/tests/catch.h"

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
