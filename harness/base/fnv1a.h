// FNV-1a with 64 bits, by Fowler, Noll and Vo: tells contents apart. It is no defence against somebody who
// wants two to look alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace flashsteps {

class Fnv1a {
 public:
  void update(const void* data, size_t bytes) {
    const auto* const at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) state_ = (state_ ^ at[i]) * 0x100000001b3ull;
  }
  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace flashsteps
