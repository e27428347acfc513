// What tests in C++ share: Catch2, and a folder that a test may fill.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

// Whichever of Catch2's two generations is installed: 2.13 (Debian 12) or 3.x (Ubuntu 24.04). Tests use only
// what both have. 3.x holds inline assembly, which kernels must not (common/emulator/unsupported.h).
#pragma push_macro("asm")
#undef asm
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
#pragma pop_macro("asm")

// It goes with everything in it.
struct TemporaryFolder {
  TemporaryFolder() { path = mkdtemp(pattern); }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path + "/" + name; }
  char pattern[32] = "/tmp/flashsteps.XXXXXX";
  std::string path;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
