#include "harness/src/results.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace flashsteps {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

std::string temporary_name(const std::string& path) { return path + "." + std::to_string(getpid()) + ".tmp"; }

}  // namespace

nlohmann::json to_json(const BuildInfo& build) {
  nlohmann::json json = {{"compiler", build.compiler}, {"flags", build.flags}, {"type", build.type}};
  if (!build.nvcc.empty()) {
    json["nvcc"] = build.nvcc;
    json["architectures"] = build.architectures;
  }
  return json;
}

ResultsFile::ResultsFile(std::string path, const std::string& command) : path_(std::move(path)) {
  const BuildInfo& build = build_info();
  using nlohmann::json;
  root_ = {{"schema", "flashsteps-results/1"},
           {"command", command},
           {"complete", false},
           {"provenance",
            {{"date", utc_now()},
             {"commit", build.commit.empty() ? json(nullptr) : json(build.commit)},
             {"dirty", build.dirty ? json(*build.dirty) : json(nullptr)},
             {"build", to_json(build)}}},
           {"runs", json::array()}};
}

nlohmann::json& ResultsFile::add_run(const Problem& problem) {
  root_["runs"].push_back({{"problem", to_json(problem)}, {"steps", nlohmann::json::array()}});
  return root_["runs"].back();
}

void ResultsFile::save() const {
  if (path_.empty()) return;
  replace(path_, root_.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void ResultsFile::replace(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_name(path);
  const auto fail = [&](const char* what) {
    const std::string reason = std::strerror(errno);
    unlink(temporary.c_str());
    throw std::runtime_error("cannot " + std::string(what) + " " + path + ": " + reason);
  };
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail("write");
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      close(fd);
      fail("write");
    }
    done += size_t(n);
  }
  if (fsync(fd) != 0 || close(fd) != 0) fail("write");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail("replace");
}

std::string ResultsFile::check_writable(const std::string& given) {
  const auto refuse = [&](const std::string& why) { throw UsageError("--json " + given + ": " + why); };
  if (given.empty()) refuse("the name is empty");
  if (given.starts_with("/dev/") || given.starts_with("/proc/")) refuse("is not a regular file");
  std::string path = given;
  struct stat status;
  if (lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
    // Replacing the link would leave what it points to as it was, or take /dev/stdout away from everybody.
    char* const target = realpath(path.c_str(), nullptr);
    if (target == nullptr) refuse(std::string("is a link that leads nowhere: ") + std::strerror(errno));
    path = target;
    std::free(target);
  }
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) refuse("is not a regular file");
  if (exists && access(path.c_str(), W_OK) != 0)
    refuse(std::string("cannot be written: ") + std::strerror(errno));
  const std::string temporary = temporary_name(path);
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) refuse(std::string("cannot be written: ") + std::strerror(errno));
  close(fd);
  unlink(temporary.c_str());
  return path;
}

}  // namespace flashsteps
