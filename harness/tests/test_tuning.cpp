// The tuning file: what flashsteps tune keeps of a run, which calls get it, and which files are ignored.
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "harness/base/build_info.h"
#include "harness/base/text.h"
#include "harness/device/device_tensors.h"
#include "harness/device/tuning.h"
#include "harness/program/commands.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

const Step& split() { return *find_step("split", BackendKind::kEmulator); }  // chooses 2splits below 100 keys

Problem few_keys() {
  return {.batch = 3,
          .num_heads_q = 4,
          .num_heads_kv = 2,
          .seqlen_q = 33,
          .seqlen_kv = 70,
          .dtype = DType::kBf16};
}

json provenance() {
  const BuildInfo& build = build_info();
  return {{"commit", build.commit.empty() ? json() : json(build.commit)},
          {"dirty", build.dirty ? json(*build.dirty) : json()},
          {"date", "2026-01-01T00:00:00Z"},
          {"device", {{"name", "A GPU"}, {"sm_count", 7}, {"driver", "1.2"}}},
          {"method", {{"rounds", 7}, {"l2", "warm"}}}};
}

// As a run of tune has it, with these medians.
Run run_of(const std::map<std::string, double>& median_ms, const Problem& problem = few_keys()) {
  Run run{problem, {}, {}};
  const auto add = [&](const std::string& step, const std::string& configuration, double ms) {
    run.steps.push_back({.step = step, .status = Status::kPass, .configuration = configuration});
    run.steps.back().timing = Timing{{ms, ms, ms, {}}, 7, 1, false, false, 1, ""};
  };
  add("split", "2splits", 2.0);
  for (const auto& [name, ms] : median_ms) add("split@" + name, name, ms);
  run.steps.push_back({.step = "split@failed", .status = Status::kFail});
  return run;
}

// Which configuration a call gets by a file; none: the step chooses.
std::optional<std::string> chosen(const std::string& path, AttentionCall call, const char* device = "A GPU",
                                  int num_sms = 7, const Step& step = split()) {
  const TuningFile file = read_tuning_file(path);
  INFO(file.ignored);
  REQUIRE(file.ignored.empty());
  const int before = call.configuration;
  const bool changed = file.tuning.choose(step, device, num_sms, call);
  CHECK(changed == (call.configuration != before));
  return changed ? std::optional(step.info.configurations[call.configuration]) : std::nullopt;
}

AttentionCall changed(const std::function<void(AttentionCall&)>& change) {
  AttentionCall call = shape_of_call(few_keys());
  change(call);
  return call;
}

}  // namespace

TEST_CASE("sizes of a kind are rounded up to powers of two") {
  const CallKind kind = kind_of(shape_of_call(few_keys()));
  CHECK(kind.seqlen_q == 64);
  CHECK(kind.seqlen_kv == 128);
  CHECK(kind.heads == 16);
  CHECK(kind.heads_per_kv_head == 2);
  CHECK(kind_of(changed([](AttentionCall& c) { c.seqlen_q = 64, c.seqlen_kv = 65; })) == kind);
  CHECK(kind_of(changed([](AttentionCall& c) { c.batch = 1 << 30, c.num_heads_q = 64; })).heads == 1LL << 36);
  CHECK(kind.page_size == 0);
  Problem paged = few_keys();
  paged.page_size = 16;
  CHECK(kind_of(shape_of_call(paged)).page_size == 16);
}

TEST_CASE("the configuration with the smallest median is kept, and calls of its kind get it") {
  const TemporaryFolder folder;
  const std::string path = folder.file("new/folder/tuning.json");
  CHECK(prepare_tuning_file(path) == path);
  const std::string said = keep_fastest(path, run_of({{"2splits", 2.1}, {"3splits", 1.6}}), provenance());
  CHECK(said ==
        "  split  B*Hq<=16 Hq/Hkv<=2 Sq<=64 Skv<=128 D=64 bf16 full: 3splits; with 2splits, which it chooses "
        "itself, it took 1.250 x as long\n");
  CHECK(chosen(path, shape_of_call(few_keys())) == "3splits");
  CHECK(chosen(path, changed([](AttentionCall& c) { c.seqlen_q = 40, c.batch = 4; })) == "3splits");

  for (const auto& other :
       {changed([](AttentionCall& c) { c.seqlen_q = 65; }),
        changed([](AttentionCall& c) { c.seqlen_q = 32; }),
        changed([](AttentionCall& c) { c.seqlen_kv = 129; }), changed([](AttentionCall& c) { c.batch = 5; }),
        changed([](AttentionCall& c) { c.num_heads_kv = 4; }),
        changed([](AttentionCall& c) { c.causal = true; }),
        changed([](AttentionCall& c) { c.head_dim = 128; }),
        changed([](AttentionCall& c) { c.dtype = DType::kFp16; }),
        changed([](AttentionCall& c) { c.configuration = 0; })})
    CHECK(chosen(path, other) == std::nullopt);
  CHECK(chosen(path, shape_of_call(few_keys()), "A GPU", 8) == std::nullopt);
  CHECK(chosen(path, shape_of_call(few_keys()), "B GPU") == std::nullopt);
  const Step& v14 = *find_step("v14_longest_first", BackendKind::kEmulator);
  CHECK(chosen(path, shape_of_call(few_keys()), "A GPU", 7, v14) == std::nullopt);
}

TEST_CASE("a link to a tuning file stays one, and where no file can be written is said before") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tuning.json"), link = folder.file("link.json");
  write_file(path, "");
  std::filesystem::create_symlink(path, link);
  keep_fastest(prepare_tuning_file(link), run_of({{"3splits", 1}}), provenance());
  CHECK(std::filesystem::is_symlink(link));
  CHECK(chosen(path, shape_of_call(few_keys())) == "3splits");
  CHECK_THROWS_AS(prepare_tuning_file("/proc/none/tuning.json"), UsageError);
  CHECK_THROWS_AS(prepare_tuning_file(path + "/tuning.json"), UsageError);
}

TEST_CASE("what was measured last replaces what was kept for the same calls, and nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tuning.json");
  Problem many = few_keys();
  many.seqlen_kv = 130;
  keep_fastest(path, run_of({{"2splits", 1}, {"3splits", 2}}, many), provenance());
  keep_fastest(path, run_of({{"2splits", 1}, {"3splits", 2}}), provenance());
  CHECK(chosen(path, shape_of_call(few_keys())) == "2splits");
  const std::string said = keep_fastest(path, run_of({{"3splits", 3}}), provenance());
  CHECK(said.find(": 3splits; ") != std::string::npos);
  CHECK(chosen(path, shape_of_call(few_keys())) == "3splits");
  CHECK(chosen(path, shape_of_call(many)) == "2splits");
  CHECK(keep_fastest(path, run_of({}), provenance()).find("nothing kept") != std::string::npos);
  CHECK(chosen(path, shape_of_call(few_keys())) == "3splits");
  CHECK(json::parse(read_tuning_file(path).text).at("entries").size() == 2);
}

TEST_CASE("a configuration that the step refuses for a call is not taken") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tuning.json");
  Problem problem = few_keys();
  problem.seqlen_kv = 500;
  keep_fastest(path, run_of({{"2splits", 1}, {"3splits", 2}}, problem), provenance());
  CHECK(chosen(path, shape_of_call(problem)) == "2splits");
  problem.seqlen_kv = 501;  // the same kind
  CHECK(chosen(path, shape_of_call(problem)) == std::nullopt);
}

TEST_CASE("files that are no good are ignored, with the reason") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tuning.json");
  keep_fastest(path, run_of({{"2splits", 1}}), provenance());
  const json good = json::parse(read_tuning_file(path).text);
  const auto ignored = [&](const std::string& text) {
    write_file(path, text);
    const TuningFile file = read_tuning_file(path);
    AttentionCall call = shape_of_call(few_keys());
    CHECK_FALSE(file.tuning.choose(split(), "A GPU", 7, call));
    CHECK(file.text.empty());
    return file.ignored;
  };
  const auto with = [&](const std::function<void(json&)>& change) {
    json file = good;
    change(file);
    return ignored(file.dump());
  };
  const auto entry_with = [&](const char* key, const json& value) {
    return with([&](json& file) { file["entries"][0][key] = value; });
  };
  const std::string is_ignored = "the tuning file " + path + " is ignored: ";
  CHECK(ignored("") == is_ignored + "it is not JSON");
  CHECK(ignored(good.dump().substr(0, good.dump().size() / 2)) == is_ignored + "it is not JSON");
  const std::string foreign = is_ignored + "its schema is not flashsteps-tuning/1";
  for (const char* const text :
       {"{}", "[]", "7", "null", R"({"schema": 1})", R"({"schema": "flashsteps-tuning/2"})"})
    CHECK(ignored(text) == foreign);
  for (const json& commit : {json("0123456789abcdef0123456789abcdef01234567"), json()}) {
    if (commit == good.at("commit")) continue;  // this build does not know its own
    const std::string said = with([&](json& file) { file["commit"] = commit; });
    INFO(said);
    CHECK(said.find(commit.is_null() ? "it is of an unknown commit" : "it is of commit 0123456789ab") !=
          std::string::npos);
    CHECK(said.find(": run flashsteps tune again") != std::string::npos);
  }
  if (good.at("dirty").is_boolean())
    CHECK(with([](json& file) { file["dirty"] = !file["dirty"].get<bool>(); }) != "");
  CHECK(entry_with("configurations", {"2splits", "4splits"}) ==
        is_ignored + "split had other configurations when it was written");
  CHECK(entry_with("configuration", "4splits") == is_ignored + "unknown configuration");
  CHECK(entry_with("dtype", "fp8") == is_ignored + "unknown dtype");
  CHECK(entry_with("seqlen_q", "many") != "");
  CHECK(entry_with("configuration", 3) != "");
  CHECK(with([](json& file) { file["entries"][0].erase("causal"); }) != "");
  CHECK(with([](json& file) { file["entries"] = 3; }) != "");
  CHECK(with([](json& file) { file["entries"][0] = "text"; }) != "");
  CHECK(with([](json& file) { file.erase("entries"); }) != "");
  CHECK(with([](json& file) { file.erase("commit"); }) != "");
  CHECK(with([](json& file) { file["entries"][0]["device"] = json::array(); }) != "");

  write_file(path, good.dump());  // what was not changed is good
  CHECK(chosen(path, shape_of_call(few_keys())) == "2splits");
}

TEST_CASE("a step that this program has not costs the others nothing") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tuning.json");
  keep_fastest(path, run_of({{"3splits", 1}}), provenance());
  json file = json::parse(read_tuning_file(path).text);
  file["entries"].insert(file["entries"].begin(), file["entries"][0]);
  file["entries"][0]["step"] = "somebody_elses";
  file["entries"][0]["configurations"] = {"3splits"};
  write_file(path, file.dump());
  CHECK(chosen(path, shape_of_call(few_keys())) == "3splits");
}

TEST_CASE("what is no file is ignored") {
  const TemporaryFolder folder;
  CHECK(read_tuning_file("/dev/zero").ignored ==
        "the tuning file /dev/zero is ignored: it is not a regular file");
  CHECK(read_tuning_file(folder.file("none")).ignored == "there is no tuning file " + folder.file("none"));
  CHECK(read_tuning_file(folder.path).ignored != "");
}

TEST_CASE("a file that is no good is replaced as a whole") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tuning.json");
  write_file(path, R"({"schema": "flashsteps-tuning/1", "commit": "x", "dirty": false, "entries": [1]})");
  keep_fastest(path, run_of({{"3splits", 1}}), provenance());
  CHECK(chosen(path, shape_of_call(few_keys())) == "3splits");
}

TEST_CASE("where the file is follows from the environment") {
  const char* const names[] = {kTuningVariable, "XDG_CACHE_HOME", "HOME"};
  std::map<std::string, std::optional<std::string>> before;
  for (const char* const name : names) {
    const char* const value = getenv(name);
    before[name] = value ? std::optional<std::string>(value) : std::nullopt;
    unsetenv(name);
  }
  CHECK(tuning_path() == "");
  setenv("HOME", "/home/somebody", 1);
  CHECK(tuning_path() == "/home/somebody/.cache/flashsteps/tuning.json");
  setenv("XDG_CACHE_HOME", "relative", 1);  // which the convention says to ignore
  CHECK(tuning_path() == "/home/somebody/.cache/flashsteps/tuning.json");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  CHECK(tuning_path() == "/cache/flashsteps/tuning.json");
  setenv(kTuningVariable, "some/file", 1);
  CHECK(tuning_path() == "some/file");
  setenv(kTuningVariable, "", 1);
  CHECK(tuning_path() == "");
  for (const auto& [name, value] : before)
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
}
