// flashsteps tune: what it keeps of a run, which is run_steps()'s.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <vector>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/device/device_tensors.h"
#include "harness/device/tuning.h"
#include "harness/program/commands.h"
#include "harness/run/step_choice.h"

namespace flashsteps {
namespace {

std::string label(const CallKind& kind) {
  const auto at_most = [](const char* what, int64_t size) {
    return what + ("<=" + std::to_string(size)) + " ";
  };
  return at_most("B*Hq", kind.heads) + at_most("Hq/Hkv", kind.heads_per_kv_head) +
         at_most("Sq", kind.seqlen_q) + at_most("Skv", kind.seqlen_kv) +
         "D=" + std::to_string(kind.head_dim) + " " + name(kind.dtype) + (kind.causal ? " causal" : " full") +
         (kind.page_size > 0 ? " pages of " + std::to_string(kind.page_size) : "");
}

// A step as it chooses itself, and in each configuration that passed and was timed; nullptr: none was.
struct Contest {
  const StepResult* own = nullptr;
  const StepResult* fastest = nullptr;
  std::map<std::string, double> median_ms;  // by configuration
};

void enter(Contest& contest, const StepResult& result) {
  if (!result.timing) return;
  if (result.step.find('@') == std::string::npos) {
    contest.own = &result;
    return;
  }
  const double ms = contest.median_ms[result.configuration] = result.timing->median_ms;
  if (contest.fastest == nullptr || ms < contest.fastest->timing->median_ms) contest.fastest = &result;
}

// Who won, for people.
std::string line_of(const Contest& contest) {
  const auto& [own, fastest, median_ms] = contest;
  if (fastest == nullptr) return "nothing kept, no configuration was timed";
  if (own == nullptr) return fastest->configuration;
  if (own->configuration == fastest->configuration) return own->configuration + ", which it chooses itself";
  return fastest->configuration + "; with " + own->configuration + ", which it chooses itself, it took " +
         fixed(own->timing->median_ms / fastest->timing->median_ms, 3) + " x as long";
}

}  // namespace

std::string prepare_tuning_file(const std::string& given) {
  const std::filesystem::path folder = std::filesystem::path(given).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);  // if not, it cannot be written
  const std::string path = check_writable("tune:", given);
  if (!std::filesystem::exists(path)) return path;
  if (const TuningFile old = read_tuning_file(path); !old.ignored.empty())
    std::cerr << "flashsteps: " << old.ignored << "; it will be replaced\n";
  return path;
}

std::string keep_fastest(const std::string& path, const Run& run, const json& provenance) {
  const json &device = provenance.at("device"), &method = provenance.at("method");
  const CallKind kind = kind_of(shape_of_call(run.problem));
  const TuningFile old = read_tuning_file(path);
  json file = {{"schema", kTuningSchema},
               {"commit", provenance.at("commit")},
               {"dirty", provenance.at("dirty")},
               {"entries", json::array()}};
  if (!old.text.empty()) file = json::parse(old.text);

  std::map<std::string, Contest> contests;  // by step
  for (const StepResult& result : run.steps)
    enter(contests[result.step.substr(0, result.step.find('@'))], result);
  std::string lines;
  for (const auto& [step, contest] : contests) {
    lines += "  " + step + "  " + label(kind) + ": " + line_of(contest) + "\n";
    if (contest.fastest == nullptr) continue;
    const StepInfo& info = *find_steps(step).front().info;
    json entry = {{"device", device.at("name")},
                  {"num_sms", device.value("sm_count", 0)},
                  {"step", step},
                  {"dtype", name(kind.dtype)},
                  {"head_dim", kind.head_dim},
                  {"causal", kind.causal},
                  {"seqlen_q", kind.seqlen_q},
                  {"seqlen_kv", kind.seqlen_kv},
                  {"heads", kind.heads},
                  {"heads_per_kv_head", kind.heads_per_kv_head},
                  {"page_size", kind.page_size}};
    json kept = json::array();
    for (const json& other : file.at("entries")) {
      const auto is_its = [&](const auto& item) { return other.at(item.key()) == item.value(); };
      if (!std::ranges::all_of(entry.items(), is_its)) kept.push_back(other);
    }
    entry.update(
        {{"configurations",
          std::vector<std::string>(info.configurations, info.configurations + info.num_configurations())},
         {"configuration", contest.fastest->configuration},
         {"measured",
          {{"problem", run.problem.label()},
           {"median_ms", contest.median_ms},
           {"rounds", method.at("rounds")},
           {"l2", method.at("l2")},
           {"driver", device.value("driver", json())},
           {"date", provenance.at("date")}}}});
    kept.push_back(entry);
    file["entries"] = kept;
  }
  replace_file(path, file.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  return lines;
}

}  // namespace flashsteps
