// The results file is whole at every moment, and NaN never reaches it as a number.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/judge/validate.h"
#include "harness/program/results.h"
#include "harness/tests/catch.h"
#include "harness/tests/temporary_folder.h"

using namespace flashsteps;

namespace {

nlohmann::json read(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

}  // namespace

TEST_CASE("each save replaces the file as a whole") {
  TemporaryFolder folder;
  const std::string path = folder.file("r.json");
  AtomicFile::check_writable("--json", path);
  CHECK(access(path.c_str(), F_OK) != 0);  // checking leaves nothing behind
  ResultsFile results(path, "run", Device{});
  results.save();
  CHECK(read(path)["complete"] == false);
  results.run_of(Problem{}).steps.push_back({.step = "v01_scalar", .status = Status::kPass});
  results.save_complete();
  const nlohmann::json whole = read(path);
  CHECK(whole["complete"] == true);
  CHECK(whole["schema"] == "flashsteps-results/2");
  CHECK(whole["runs"][0]["steps"][0]["step"] == "v01_scalar");
}

TEST_CASE("a link is followed, not replaced") {
  TemporaryFolder folder;
  const std::string target = folder.file("r.json"), link = folder.file("link.json");
  std::ofstream(target) << "{}";
  REQUIRE(symlink(target.c_str(), link.c_str()) == 0);
  const std::string resolved = AtomicFile::check_writable("--json", link);
  ResultsFile(resolved, "run", Device{}).save();
  CHECK(read(target)["schema"] == "flashsteps-results/2");
  char buffer[16];
  CHECK(readlink(link.c_str(), buffer, sizeof buffer) > 0);
  unlink(target.c_str());
  CHECK_THROWS_AS(AtomicFile::check_writable("--json", link), UsageError);  // it leads nowhere now
}

TEST_CASE("a file appears as a whole, when it is committed, or never") {
  for (const bool unnamed : {true, false}) {
    INFO(unnamed);
    TemporaryFolder folder;
    const std::string path = folder.file("r.json");
    std::ofstream(path) << "before";
    const auto text = [&] {
      std::ifstream in(path);
      return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    };
    { AtomicFile(path, unnamed).write("half", 4); }
    CHECK(text() == "before");
    CHECK(rmdir(folder.path.c_str()) != 0);
    AtomicFile file(path, unnamed);
    file.write("whole", 5);
    CHECK(text() == "before");
    file.commit();
    CHECK(text() == "whole");
    unlink(path.c_str());
    CHECK(rmdir(folder.path.c_str()) == 0);  // no temporary file stays
  }
  // A file without a name leaves none behind when the program is killed.
  TemporaryFolder folder;
  const int probe = open(folder.path.c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (probe < 0) return;  // not on this file system
  close(probe);
  AtomicFile file(folder.file("r.json"));
  file.write("half", 4);
  CHECK(rmdir(folder.path.c_str()) == 0);
}

TEST_CASE("a link with the temporary name is not followed") {
  for (const bool unnamed : {true, false}) {
    INFO(unnamed);
    TemporaryFolder folder;
    const std::string path = folder.file("r.json"), other = folder.file("other");
    std::ofstream(other) << "somebody's";
    const std::string planted = path + "." + std::to_string(getpid()) + ".tmp";
    REQUIRE(symlink(other.c_str(), planted.c_str()) == 0);
    AtomicFile::check_writable("--json", path);
    ResultsFile::replace(path, "{}");
    AtomicFile file(path, unnamed);
    file.write("{}", 2);
    file.commit();
    CHECK(read(path).empty());
    std::string text;
    std::getline(std::ifstream(other), text);
    CHECK(text == "somebody's");
  }
}

TEST_CASE("a file keeps its permissions when it is replaced") {
  const auto mode = [](const std::string& path) {
    struct stat status {};
    CHECK(stat(path.c_str(), &status) == 0);
    return int(status.st_mode & 07777);
  };
  for (const bool unnamed : {true, false}) {
    INFO(unnamed);
    TemporaryFolder folder;
    const std::string path = folder.file("r.json");
    AtomicFile(path, unnamed).commit();
    const mode_t mask = umask(0);
    umask(mask);
    CHECK(mode(path) == int(0666 & ~mask));
    for (const int wanted : {0600, 0640, 0664}) {
      REQUIRE(chmod(path.c_str(), mode_t(wanted)) == 0);
      AtomicFile(path, unnamed).commit();
      CHECK(mode(path) == wanted);
      ResultsFile::replace(path, "{}");
      CHECK(mode(path) == wanted);
    }
  }
}

TEST_CASE("a file system below /dev is one like others, /dev itself is not") {
  char shared[] = "/dev/shm/flashsteps.XXXXXX";
  if (mkdtemp(shared) != nullptr) {
    const std::string path = std::string(shared) + "/r.json";
    CHECK(AtomicFile::check_writable("--json", path) == path);
    ResultsFile(path, "run", Device{}).save();
    CHECK(read(path)["schema"] == "flashsteps-results/2");
    unlink(path.c_str());
    rmdir(shared);
  }
  for (const char* const path : {"/dev/full", "/dev/stdout", "/dev/fd/1", "/dev/nothing.json", "//dev/stdout",
                                 "/dev/shm/../stdout", "/proc/self/fd/1"}) {
    INFO(path);
    CHECK_THROWS_WITH(AtomicFile::check_writable("--json", path),
                      "--json " + std::string(path) + ": is not a regular file");
  }
}

TEST_CASE("a folder that went away is reported, not ignored") {
  ResultsFile results("/nonexistent/r.json", "run", Device{});
  CHECK_THROWS(results.save());
}

TEST_CASE("values that are not finite become null") {
  Validation v;
  v.nrmse = NAN;
  v.max_abs = INFINITY;
  v.nonfinite = 3;
  const nlohmann::json json = to_json(v, Problem{});
  CHECK(json["nrmse"].is_null());
  CHECK(json["max_abs"].is_null());
  CHECK(json["nonfinite"] == 3);
  CHECK(json.dump().find("nan") == std::string::npos);
}
