// The results file is whole at every moment, and NaN never reaches it as a number.
#include "harness/tests/catch.h"

#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "harness/src/results.h"
#include "harness/src/validate.h"

using namespace flashsteps;

namespace {

struct TemporaryFolder {
  TemporaryFolder() { path = mkdtemp(pattern); }
  ~TemporaryFolder() {
    unlink((path + "/r.json").c_str());
    rmdir(path.c_str());
  }
  char pattern[32] = "/tmp/flashsteps.XXXXXX";
  std::string path;
};

nlohmann::json read(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

}  // namespace

TEST_CASE("each save replaces the file as a whole") {
  TemporaryFolder folder;
  const std::string path = folder.path + "/r.json";
  ResultsFile::check_writable(path);
  CHECK(access(path.c_str(), F_OK) != 0);  // checking leaves nothing behind
  ResultsFile results(path, "run");
  results.save();
  CHECK(read(path)["complete"] == false);
  results.add_run(Problem{})["steps"].push_back({{"step", "v01_scalar"}, {"status", "pass"}, {"message", ""}});
  results.root()["complete"] = true;
  results.save();
  const nlohmann::json whole = read(path);
  CHECK(whole["complete"] == true);
  CHECK(whole["schema"] == "flashsteps-results/1");
  CHECK(whole["runs"][0]["steps"][0]["step"] == "v01_scalar");
}

TEST_CASE("a folder that went away is reported, not ignored") {
  ResultsFile results("/nonexistent/r.json", "run");
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
