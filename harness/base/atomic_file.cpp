#include "harness/base/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "harness/base/text.h"

namespace flashsteps {
namespace {

namespace fs = std::filesystem;

// Writes the text beside `path`, and returns the name. 0 or what errno says goes to `error`.
std::string write_beside(const std::string& path, const std::string& text, int& error) {
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  std::remove(temporary.c_str());  // of a run that was killed and had our number; a link is not followed
  errno = 0;
  std::ofstream out(temporary, std::ios::binary);
  out << text;
  out.close();
  error = out ? 0 : errno;
  if (!out) std::remove(temporary.c_str());
  return temporary;
}

}  // namespace

void replace_file(const std::string& path, const std::string& text) {
  int error = 0;
  const std::string temporary = write_beside(path, text, error);
  if (error == 0) {
    // Those who could read the old file can read the new one.
    std::error_code none_there;
    if (const fs::file_status old = fs::status(path, none_there); fs::exists(old))
      fs::permissions(temporary, old.permissions(), none_there);
    if (std::rename(temporary.c_str(), path.c_str()) == 0) return;
    error = errno;
    std::remove(temporary.c_str());
  }
  throw std::system_error(error, std::generic_category(), "cannot write " + path);
}

std::string check_writable(const std::string& option, const std::string& given) {
  const auto refuse = [&](const std::string& why) { throw UsageError(option + " " + given + ": " + why); };
  if (given.empty()) refuse("the name is empty");
  std::string path = given;
  std::error_code error, none_there;
  if (fs::is_symlink(path, none_there)) {
    path = fs::canonical(path, error);  // replacing the link would leave what it points to as it was
    if (error) refuse("is a link that leads nowhere: " + error.message());
  }
  const bool exists = fs::exists(path, none_there);
  if (exists && !fs::is_regular_file(path, none_there)) refuse("is not a regular file");
  int why = exists && access(path.c_str(), W_OK) != 0 ? errno : 0;
  if (why == 0) std::remove(write_beside(path, "", why).c_str());
  if (why != 0) refuse(std::string("cannot be written: ") + std::strerror(why));
  return path;
}

}  // namespace flashsteps
