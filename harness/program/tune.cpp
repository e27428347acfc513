#include "harness/program/tune.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <vector>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/base/usage_error.h"
#include "harness/device/device_tensors.h"
#include "harness/device/tuning.h"
#include "harness/program/results.h"
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

double median_of(const json& entry) { return entry.at("timing").at("median_ms"); }

}  // namespace

std::string prepare_tuning_file(const std::string& given) {
  const std::filesystem::path folder = std::filesystem::path(given).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);  // if not, it cannot be written
  const std::string path = AtomicFile::check_writable("tune:", given);
  if (!std::filesystem::exists(path)) return path;
  if (const TuningFile old = read_tuning_file(path); !old.ignored.empty())
    std::cerr << "flashsteps: " << old.ignored << "; it will be replaced\n";
  return path;
}

std::string keep_fastest(const std::string& path, const json& run, const Problem& problem,
                         const json& provenance) {
  const json& device = provenance.at("device");
  const CallKind kind = kind_of(shape_of_call(problem));
  const TuningFile old = read_tuning_file(path);
  json file = {{"schema", kTuningSchema},
               {"commit", provenance.at("commit")},
               {"dirty", provenance.at("dirty")},
               {"entries", json::array()}};
  if (!old.text.empty()) file = json::parse(old.text);

  // By step: as it chooses itself, and in each configuration that passed and was timed.
  std::map<std::string, std::vector<json>> steps;
  for (const json& entry : run.at("steps")) {
    const std::string step = entry.at("step");
    steps[step.substr(0, step.find('@'))].push_back(entry);
  }
  std::string lines;
  for (auto& [step, entries] : steps) {
    json own;  // null when that failed
    json median_ms = json::object();
    const json* fastest = nullptr;
    for (const json& entry : entries) {
      if (!entry.contains("timing")) continue;
      if (entry.at("step") == step) {
        own = entry;
        continue;
      }
      median_ms[entry.at("configuration").get<std::string>()] = median_of(entry);
      if (fastest == nullptr || median_of(entry) < median_of(*fastest)) fastest = &entry;
    }
    lines += "  " + step + "  " + label(kind) + ": ";
    if (fastest == nullptr) {
      lines += "nothing kept, no configuration was timed\n";
      continue;
    }
    const StepInfo& info = *find_steps(step).front().info;
    const json identity = {{"device", device.at("name")},
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
      if (!std::ranges::all_of(identity.items(), is_its)) kept.push_back(other);
    }
    kept.push_back(identity);
    kept.back().update(
        {{"configurations",
          std::vector<std::string>(info.configurations, info.configurations + info.num_configurations())},
         {"configuration", fastest->at("configuration")},
         {"measured",
          {{"problem", problem.label()},
           {"median_ms", median_ms},
           {"rounds", provenance.at("method").at("rounds")},
           {"l2", provenance.at("method").at("l2")},
           {"driver", device.value("driver", json())},
           {"date", provenance.at("date")}}}});
    file["entries"] = kept;
    lines += fastest->at("configuration").get<std::string>();
    if (!own.is_null() && own.at("configuration") == fastest->at("configuration"))
      lines += ", which it chooses itself";
    else if (!own.is_null())
      lines += "; with " + own.at("configuration").get<std::string>() +
               ", which it chooses itself, it took " + fixed(median_of(own) / median_of(*fastest), 3) +
               " x as long";
    lines += "\n";
  }
  ResultsFile::replace(path, file.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  return lines;
}

}  // namespace flashsteps
