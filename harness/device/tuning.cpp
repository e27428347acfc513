#include "harness/device/tuning.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "harness/base/build_info.h"
// The Python module and the C++ library can be built without this header; the program cannot.
#if __has_include(<nlohmann/json.hpp>)
#include "harness/base/json.h"
#define FLASHSTEPS_READS_JSON 1
#endif

namespace flashsteps {
namespace {

#ifdef FLASHSTEPS_READS_JSON

DType dtype_from(const std::string& text) {
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16, DType::kE4m3}) {
    if (name(dtype) == text) return dtype;
  }
  throw std::runtime_error("unknown dtype");
}

std::string commit_text(const json& commit, const json& dirty) {
  if (commit.is_null()) return "an unknown commit";
  return "commit " + commit.get<std::string>().substr(0, 12) +
         (dirty.is_null() || dirty.get<bool>() ? " with changes" : "");
}

// Of another build the configurations may have other names, or other speeds.
void check_build(const json& file) {
  const BuildInfo& build = build_info();
  const json commit = build.commit.empty() ? json(nullptr) : json(build.commit);
  const json dirty = build.dirty ? json(*build.dirty) : json(nullptr);
  if (file.at("commit") != commit || file.at("dirty") != dirty)
    throw std::runtime_error("it is of " + commit_text(file.at("commit"), file.at("dirty")) +
                             ", and this is " + commit_text(commit, dirty) +
                             ": run flashsteps tune again, or delete the file");
}

// The number of the configuration in a step's list. A step that is not in this program has any list.
int configuration_from(const json& entry) {
  const std::vector<std::string> names = entry.at("configurations");
  const std::string step = entry.at("step");
  for (const Step& known : registered_steps()) {
    const auto* const own = known.info.configurations;
    if (known.name == step &&
        !std::ranges::equal(names, std::vector<std::string>(own, own + known.info.num_configurations())))
      throw std::runtime_error(step + " had other configurations when it was written");
  }
  const auto found = std::ranges::find(names, entry.at("configuration").get<std::string>());
  if (found == names.end()) throw std::runtime_error("unknown configuration");
  return int(found - names.begin());
}

#endif

}  // namespace

CallKind kind_of(const AttentionCall& call) {
  const auto rounded = [](int64_t size) { return int64_t(std::bit_ceil(uint64_t(size))); };
  return {.dtype = call.dtype,
          .head_dim = call.head_dim,
          .causal = call.causal,
          .seqlen_q = rounded(call.seqlen_q),
          .seqlen_kv = rounded(call.seqlen_kv),
          .heads = rounded(int64_t(call.batch) * call.num_heads_q),
          .heads_per_kv_head = rounded(call.num_heads_q / call.num_heads_kv),
          .page_size = call.page_table.pages != nullptr ? call.page_table.page_size : 0};
}

#ifdef FLASHSTEPS_READS_JSON
Tuning::Tuning(const std::string& text) {
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) throw std::runtime_error("it is not JSON");
  if (!file.is_object() || file.value("schema", json()) != kTuningSchema)
    throw std::runtime_error(std::string("its schema is not ") + kTuningSchema);
  try {
    check_build(file);
    for (const json& entry : file.at("entries")) {
      entries_.push_back({.device = entry.at("device"),
                          .num_sms = entry.at("num_sms"),
                          .step = entry.at("step"),
                          .kind = {.dtype = dtype_from(entry.at("dtype")),
                                   .head_dim = entry.at("head_dim"),
                                   .causal = entry.at("causal"),
                                   .seqlen_q = entry.at("seqlen_q"),
                                   .seqlen_kv = entry.at("seqlen_kv"),
                                   .heads = entry.at("heads"),
                                   .heads_per_kv_head = entry.at("heads_per_kv_head"),
                                   .page_size = entry.at("page_size")},
                          .configuration = configuration_from(entry)});
    }
  } catch (const json::exception& error) {
    throw std::runtime_error(error.what());
  }
}
#else
Tuning::Tuning(const std::string&) {
  throw std::runtime_error("this was built without nlohmann-json, which reads it");
}
#endif

bool Tuning::choose(const Step& step, std::string_view device, int num_sms, AttentionCall& call) const {
  if (entries_.empty() || call.configuration != AttentionCall::kChosenByStep) return false;
  const CallKind kind = kind_of(call);
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.kind == kind && entry.step == step.name && entry.num_sms == num_sms &&
           entry.device == device;
  });
  if (found == entries_.end()) return false;
  call.configuration = found->configuration;
  if (refusal(step, call).empty()) return true;
  call.configuration = AttentionCall::kChosenByStep;
  return false;
}

std::string tuning_path() {
  if (const char* const given = std::getenv(kTuningVariable)) return given;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/flashsteps/tuning.json";
  const char* const home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return "";
  return std::string(home) + "/.cache/flashsteps/tuning.json";
}

TuningFile read_tuning_file(const std::string& path) {
  TuningFile file;
  std::error_code not_there;
  if (!std::filesystem::exists(path, not_there))
    return {.text = "", .ignored = "there is no tuning file " + path, .tuning = {}};
  try {
    // A device or a pipe may have no end.
    if (!std::filesystem::is_regular_file(path)) throw std::runtime_error("it is not a regular file");
    std::ifstream in(path, std::ios::binary);
    file.text.assign(std::istreambuf_iterator<char>(in), {});
    if (!in) throw std::runtime_error("it cannot be read");
    file.tuning = Tuning(file.text);
  } catch (const std::exception& error) {
    return {.text = "", .ignored = "the tuning file " + path + " is ignored: " + error.what(), .tuning = {}};
  }
  return file;
}

namespace {

TuningFile read_file_of_process() {
  const std::string path = tuning_path();
  std::error_code not_there;
  const bool wanted = std::getenv(kTuningVariable) != nullptr || std::filesystem::exists(path, not_there);
  return path.empty() || !wanted ? TuningFile{} : read_tuning_file(path);
}

// Never destroyed, as all that calls need: a thread may outlive main().
const TuningFile& file_of_process() {
  static const auto& file = *new const TuningFile(read_file_of_process());
  return file;
}

}  // namespace

const Tuning& tuning_of_process() { return file_of_process().tuning; }

std::string take_tuning_warning() {
  static std::atomic<bool> taken = false;
  return file_of_process().ignored.empty() || taken.exchange(true) ? "" : file_of_process().ignored;
}

}  // namespace flashsteps
