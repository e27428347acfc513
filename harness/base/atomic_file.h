// A file that appears under its name as a whole, or not at all: whatever ends the program before.
#pragma once

#include <cstddef>
#include <string>

namespace flashsteps {

class AtomicFile {
 public:
  // Opens a file in `path`'s folder that has no name yet; one with a temporary name where the file system (or
  // the caller) wants that. Throws std::runtime_error when it cannot, as do all the functions below.
  explicit AtomicFile(const std::string& path, bool unnamed = true);
  ~AtomicFile();  // of a file that was not committed, nothing stays
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  // To the disk, and then under its name: what had that name is replaced.
  void commit();

  // Throws UsageError, which begins with the option, when no file can be written at `path`; leaves nothing
  // behind. Returns where it will be written: links are followed.
  static std::string check_writable(const std::string& option, const std::string& path);

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int fd_ = -1;
  bool has_name_ = false;  // the temporary one
};

// All of it, or false and errno.
bool write_fully(int fd, const void* data, size_t bytes);

}  // namespace flashsteps
