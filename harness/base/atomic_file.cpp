#include "harness/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "harness/base/text.h"

namespace flashsteps {
namespace {

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path() / ".";  // which may be empty, and is then this one
}

// Devices, and names for what is open, /dev/stdout for one: a file cannot take their place. Below /dev there
// are ordinary file systems, too: /dev/shm.
bool is_in_system_folder(const std::string& path) {
  std::error_code no_such_folder;
  const std::string folder = std::filesystem::canonical(folder_of(path), no_such_folder).string() + "/";
  return folder == "/dev/" || folder.starts_with("/proc/");
}

// The permissions of what has that name.
std::optional<mode_t> mode_of(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return {};
  return status.st_mode & 0777;
}

}  // namespace

bool write_fully(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = write(fd, static_cast<const char*>(data) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += size_t(n);
  }
  return true;
}

AtomicFile::AtomicFile(const std::string& path, bool unnamed)
    : path_(path), temporary_(path + "." + std::to_string(getpid()) + ".tmp") {
  // In place of a file that may be private, one that nobody else can open meanwhile: see commit().
  const mode_t mode = mode_of(path) ? 0600 : 0666;
  if (unnamed) fd_ = open(folder_of(path).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
  if (fd_ >= 0) return;
  // What has that name, of a run that was killed and had our number or planted as a link, is not written to.
  unlink(temporary_.c_str());
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd_ < 0) fail("write");
  has_name_ = true;
}

AtomicFile::~AtomicFile() {
  if (has_name_) unlink(temporary_.c_str());
  if (fd_ >= 0) close(fd_);
}

void AtomicFile::fail(const char* what) const {
  throw std::system_error(errno, std::generic_category(), "cannot " + std::string(what) + " " + path_);
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (!write_fully(fd_, data, bytes)) fail("write");
}

void AtomicFile::commit() {
  // Those who could read the old file can read the new one, and nobody else. Where a file system refuses
  // this, it stays private.
  if (const auto mode = mode_of(path_)) fchmod(fd_, *mode);
  if (fsync(fd_) != 0) fail("write");
  if (!has_name_) {
    // A link cannot replace a file, a rename can: it gets a temporary name for a moment.
    const std::string source = "/proc/self/fd/" + std::to_string(fd_);
    unlink(temporary_.c_str());  // of a run that was killed at just this moment, with our number
    if (linkat(AT_FDCWD, source.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0) fail("write");
    has_name_ = true;
  }
  if (close(std::exchange(fd_, -1)) != 0) fail("write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace");
  has_name_ = false;
}

std::string AtomicFile::check_writable(const std::string& option, const std::string& given) {
  const auto refuse = [&](const std::string& why) { throw UsageError(option + " " + given + ": " + why); };
  if (given.empty()) refuse("the name is empty");
  if (is_in_system_folder(given)) refuse("is not a regular file");
  std::string path = given;
  std::error_code error, none_there;
  if (std::filesystem::is_symlink(path, none_there)) {
    // Replacing the link would leave what it points to as it was, or take /dev/stdout away from everybody.
    path = std::filesystem::canonical(path, error);
    if (error) refuse("is a link that leads nowhere: " + error.message());
  }
  if (without_controls(given + path) != given + path) refuse("has control characters in its name");
  const bool exists = std::filesystem::exists(path, none_there);
  if (exists && !std::filesystem::is_regular_file(path, none_there)) refuse("is not a regular file");
  if (exists && access(path.c_str(), W_OK) != 0)
    refuse(std::string("cannot be written: ") + std::strerror(errno));
  try {
    AtomicFile(path, /*unnamed=*/false);
  } catch (const std::system_error& failed) {
    refuse("cannot be written: " + failed.code().message());
  }
  return path;
}

}  // namespace flashsteps
