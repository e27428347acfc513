// The results file is whole at every moment, and NaN never reaches it as a number.
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/judge/validate.h"
#include "harness/program/results.h"
#include "harness/tests/support.h"

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
  check_writable("--json", path);
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
  write_file(target, "{}");
  REQUIRE(symlink(target.c_str(), link.c_str()) == 0);
  const std::string resolved = check_writable("--json", link);
  ResultsFile(resolved, "run", Device{}).save();
  CHECK(read(target)["schema"] == "flashsteps-results/2");
  char buffer[16];
  CHECK(readlink(link.c_str(), buffer, sizeof buffer) > 0);
  unlink(target.c_str());
  CHECK_THROWS_AS(check_writable("--json", link), UsageError);  // it leads nowhere now
}

TEST_CASE("a file keeps its permissions when it is replaced, and nothing else stays") {
  TemporaryFolder folder;
  const std::string path = folder.file("r.json"), other = folder.file("other");
  write_file(other, "somebody's");
  const std::string planted = path + "." + std::to_string(getpid()) + ".tmp";
  for (const int wanted : {0600, 0640, 0664}) {
    write_file(path, "before");
    REQUIRE(chmod(path.c_str(), mode_t(wanted)) == 0);
    REQUIRE(symlink(other.c_str(), planted.c_str()) == 0);
    replace_file(path, "{}");
    CHECK(read(path).empty());
    struct stat status {};
    CHECK(stat(path.c_str(), &status) == 0);
    CHECK(int(status.st_mode & 07777) == wanted);
    CHECK(access(planted.c_str(), F_OK) != 0);
  }
  std::string text;
  std::getline(std::ifstream(other), text);
  CHECK(text == "somebody's");
}

TEST_CASE("what cannot be written stays as it was") {
  TemporaryFolder folder;
  const std::string path = folder.file("r.json");
  REQUIRE(mkdir(path.c_str(), 0700) == 0);
  CHECK_THROWS(replace_file(path, "{}"));
  REQUIRE(rmdir(path.c_str()) == 0);
  CHECK(rmdir(folder.path.c_str()) == 0);  // no temporary file stays
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
