// A folder that a test may fill; it goes with everything in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

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
