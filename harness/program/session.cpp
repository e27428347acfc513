#include "harness/program/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/base/usage_error.h"
#include "harness/problem/covering.h"
#include "harness/problem/shapes.h"
#include "harness/problem/tensors.h"
#include "harness/problem/tensors_file.h"
#include "harness/program/results.h"
#include "harness/program/table.h"
#include "harness/run/rounds.h"
#include "harness/run/worker.h"

namespace flashsteps {
namespace {

using nlohmann::json;

constexpr const char* kCeiling = "matmul";  // the ceiling's name among the bench job's steps

// Those that are wanted, or all: the ladder's, vNN_idea, in the order of their names, and then the others.
std::vector<std::string> step_names(const std::vector<std::string>& wanted) {
  std::set<std::string> names(wanted.begin(), wanted.end());
  if (names.empty())
    for (const Step& step : registered_steps()) names.insert(step.name);
  std::vector<std::string> result(names.begin(), names.end());
  std::stable_partition(result.begin(), result.end(), [](const std::string& name) {
    return name.size() > 1 && name[0] == 'v' && std::isdigit(static_cast<unsigned char>(name[1]));
  });
  return result;
}

const StepInfo& step_info(const std::string& step_name) {
  for (const Step& step : registered_steps()) {
    if (step.name == StepName(step_name).step) return step.info;
  }
  throw std::logic_error("no such step");
}

// What the kernel would give without swapping, within the limits of a container.
double available_host_memory() {
  const auto read_number = [](const char* path, const std::string& key) {
    std::ifstream in(path);
    std::string word;
    double number = 0;
    while (in >> word) {
      if (key.empty()) return std::strtod(word.c_str(), nullptr);  // "max" reads as 0: no limit
      if (word == key && in >> number) return number;
    }
    return 0.0;
  };
  const double available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
  const double limit = read_number("/sys/fs/cgroup/memory.max", "");
  if (limit <= 0) return available;
  return std::min(available, limit - read_number("/sys/fs/cgroup/memory.current", ""));
}

class Session {
 public:
  explicit Session(const Options& options)
      : options_(options), steps_(step_names(options.steps)), results_(options.json_path, options.command) {}

  int run() {
    if (steps_.empty()) throw UsageError("this program has no steps");
    if (options_.command == "count" || options_.command == "trace") options_.backend = emulator_backend();
    if (options_.command == "trace") check_trace();
    backend_ = find_backend();
    if (options_.command == "bench" && options_.backend == "emulator")
      throw UsageError("bench: times the GPU; the emulator has no timing model");
    if (options_.command == "bench" && backend_ != "cuda")
      throw std::runtime_error("bench: there is no GPU to time: " + no_cuda_reason_);
    if (options_.covering) return check_covering();
    if (options_.problems.empty())
      options_.problems = default_problems(backend_ == "cuda" ? BackendKind::kCuda : BackendKind::kEmulator);
    require_memory();
    examine_file();
    const json probed = probe(options_.problems);
    refuse_named_steps(probed);
    if (options_.command == "trace") return trace(probed["resources"][0][0]);

    std::cout << "device: " << device_line() << "\n\n" << std::flush;
    for (const Problem& problem : options_.problems) results_.add_run(problem);
    set_provenance();
    results_.save();

    if (!options_.save_path.empty()) saved_.emplace(options_.save_path);
    size_t next = 0;
    if (steps_.front() == kTrustedStep) validate_step(next++, probed);
    establish_trust(options_.problems);
    for (; next < steps_.size(); ++next) validate_step(next, probed);
    if (backend_ == "cuda" && options_.command != "check") {
      for (size_t r = 0; r < options_.problems.size(); ++r) bench_problem(r);
    }
    results_.root()["complete"] = true;
    results_.save();
    for (size_t r = 0; r < options_.problems.size(); ++r) std::cout << "\n" << format_run(results_.run(r));
    finish_saving();
    return summary();
  }

  int list() {
    backend_ = find_backend();
    std::vector<Problem> shapes;
    for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
      for (const int head_dim : {64, 128}) {
        Problem p;
        p.dtype = dtype;
        p.head_dim = head_dim;
        shapes.push_back(p);
      }
    }
    const json probed = probe(shapes);
    std::vector<std::vector<std::string>> rows{
        {"step", "16-bit D=64", "16-bit D=128", "fp32 D=64", "fp32 D=128"}};
    for (size_t s = 0; s < steps_.size(); ++s) {
      const auto bytes = [&](size_t shape) {
        const json& needs = probed["resources"][shape][s];
        return needs.is_null() ? std::string("-") : needs.at("smem_bytes").dump();
      };
      const auto either = [&](size_t fp16, size_t bf16) {
        return bytes(fp16) != "-" ? bytes(fp16) : bytes(bf16);
      };
      rows.push_back({steps_[s], either(0, 2), either(1, 3), bytes(4), bytes(5)});
    }
    for (const std::string& step : steps_) {
      const StepInfo& info = step_info(step);
      std::cout << step << "\n  " << info.title << "\n  removes " << info.removes
                << "\n  part: " << kPartNames[int(info.part)] << "; for " << kPurposeNames[int(info.purpose)]
                << "; types:";
      for (const auto& [text, dtype] : dtype_names()) {
        if (info.dtypes.has(dtype)) std::cout << " " << text;
      }
      std::cout << "; rows aligned to "
                << (info.alignment_bytes ? std::to_string(info.alignment_bytes) + " bytes" : "the element")
                << "; GPU: sm_" << info.needs_sm
                << (Architecture(info.needs_sm).exact ? " and nothing else\n" : " or newer\n");
      if (info.num_configurations() > 0) {
        std::cout << "  configurations:";
        for (int c = 0; c < info.num_configurations(); ++c)
          std::cout << (c > 0 ? "; " : " ") << info.configurations[c];
        std::cout << "\n";
      }
      if (info.spills) std::cout << "  spills registers: " << info.spills << "\n";
      // Of the shape that comes closest to what the step computes: the first with a type that it knows.
      const std::string reason =
          probed["refusals"][info.dtypes.has(DType::kFp16)   ? 0
                             : info.dtypes.has(DType::kBf16) ? 2
                                                             : 4][&step - steps_.data()];
      if (!reason.empty()) std::cout << "  not on this device: " << reason << "\n";
    }
    std::cout << "\nbytes of shared memory per CTA (device: " << device_line() << ")\n" << format_table(rows);
    return kAllPassed;
  }

  int info() {
    backend_ = find_backend();
    probe({});
    const BuildInfo& build = build_info();
    std::cout << "device    " << device_.dump(1) << "\nbuild     " << to_json(build).dump(1) << "\ncommit    "
              << (build.commit.empty() ? "unknown" : build.commit)
              << (build.dirty.value_or(false) ? " (with uncommitted changes)" : "") << "\n";
    return kAllPassed;
  }

 private:
  JobOutcome job(const json& request, const EmitEvent& on_event) {
    return options_.in_process ? run_job_in_process(request, on_event)
                               : run_job_isolated(request, options_.timeout_seconds, on_event);
  }

  std::string emulator_backend() const {
    if (options_.backend != "cuda") return "emulator";
    if (options_.command == "trace") throw UsageError("trace: what it shows is the emulator's, not CUDA's");
    throw UsageError("count: the counters are the emulator's, not CUDA's (see ncu)");
  }

  void check_trace() const {
    if (steps_.size() > 1) throw UsageError("trace: takes one step; name it");
    if (options_.problems.size() > 1)
      throw UsageError("trace: takes one problem; these are " + std::to_string(options_.problems.size()));
    if (options_.json_path.empty()) throw UsageError("trace: needs --json FILE, which receives it");
  }

  int trace(const json& resources) {
    const Problem& problem = options_.problems.front();
    uint64_t num_ctas = 1;
    for (const uint64_t extent : resources.at("grid")) num_ctas *= extent;
    const uint64_t cta = options_.cta < 0 ? num_ctas - 1 : uint64_t(options_.cta);
    if (cta >= num_ctas)
      throw UsageError("--cta is " + std::to_string(cta) + ", but " + steps_[0] + " has " +
                       std::to_string(num_ctas) + " CTAs for " + problem.label());
    json answer;
    const JobOutcome outcome =
        job({{"job", "trace"}, {"step", steps_[0]}, {"problem", to_request(problem)}, {"cta", cta}},
            [&](const json& event) { answer = event; });
    if (outcome.end != JobOutcome::End::kDone)
      answer = {{"event", "failed"}, {"status", status_of(outcome.end)}, {"message", outcome.message}};
    if (answer.at("event") == "failed") {
      const json entry = {
          {"step", steps_[0]}, {"status", answer.at("status")}, {"message", answer.at("message")}};
      note(entry);
      print_entry(entry, problem.label());
      return crashed_ ? kCrashedOrHung : kSomethingFailed;
    }
    json trace = answer.at("trace");
    trace["otherData"]["problem"] = to_json(problem);
    ResultsFile::replace(options_.json_path, trace.dump(0) + "\n");
    std::cout
        << steps_[0] << ", " << problem.label() << ", CTA " << cta << " of " << num_ctas
        << "\ntrace: " << options_.json_path
        << "\nopen it in https://ui.perfetto.dev or chrome://tracing; its times are nominal, not measured\n";
    flush_output();
    return kAllPassed;
  }

  // "cuda" or "emulator"; remembers device and free memory.
  std::string find_backend() {
    std::string found;
    const JobOutcome outcome = job({{"job", "probe"},
                                    {"backend", options_.backend},
                                    {"problems", json::array()},
                                    {"steps", json::array()}},
                                   [&](const json& event) { remember_device(event, found); });
    if (outcome.end != JobOutcome::End::kDone) {
      if (options_.backend == "cuda") throw UsageError("--backend cuda: " + outcome.message);
      throw std::runtime_error("looking for a device: " + outcome.message);
    }
    return found;
  }

  void remember_device(const json& event, std::string& backend) {
    backend = event.at("backend");
    device_ = event.at("device");
    free_bytes_ = event.at("free_bytes");
    peak_tflops_ = event.at("peak_tflops");
    no_cuda_reason_ = event.at("no_cuda");
  }

  json probe(const std::vector<Problem>& problems) { return probe(problems, steps_); }
  json probe(const std::vector<Problem>& problems, const std::vector<std::string>& steps) {
    json request = {{"job", "probe"}, {"backend", backend_}, {"steps", steps}, {"problems", json::array()}};
    for (const Problem& problem : problems) request["problems"].push_back(to_request(problem));
    json answer;
    const JobOutcome outcome = job(request, [&](const json& event) { answer = event; });
    if (outcome.end != JobOutcome::End::kDone)
      throw std::runtime_error("asking the device: " + outcome.message);
    return answer;
  }

  std::string device_line() const {
    std::string line = device_.at("name");
    if (backend_ == "emulator") {
      line += " (no GPU in use: kernels run on the CPU, " + device_.at("host_threads").dump() + " threads";
      line += no_cuda_reason_.empty() ? ")" : "; " + no_cuda_reason_ + ")";
    } else {
      line += ", driver " + device_.at("driver").get<std::string>();
    }
    return line;
  }

  // Why the device has no room for the problem's tensors; empty when it has.
  std::string lacks_memory(const Problem& problem) const {
    const double bytes = total_bytes(problem, plan_on_device(problem));
    const std::string needs = "needs " + gibibytes(bytes) + " on the device, ";
    if (const double allowed = options_.memory_gib * (1 << 30); !(bytes <= allowed))
      return needs + "of which --memory allows " + gibibytes(allowed);
    if (backend_ == "cuda" && bytes > double(free_bytes_))
      return needs + "which has " + gibibytes(double(free_bytes_)) + " free";
    return "";
  }

  void require_memory() const {
    // Checking holds the inputs and several copies of the outputs on the host; on the emulator the device's
    // tensors are there as well, and its race detector remembers 16 bytes for every 2. Measured: up to 12
    // times the tensors.
    const double copies = backend_ == "cuda" ? 6 : 13;
    const double host_bytes = available_host_memory();
    for (const Problem& problem : options_.problems) {
      const double on_host = copies * total_bytes(problem, plan_tensors(problem));
      const std::string option =
          options_.tensors_path.empty() ? "--shape" : "--tensors " + options_.tensors_path;
      if (const std::string why = lacks_memory(problem); !why.empty())
        throw UsageError(option + ": " + problem.label() + " " + why);
      if (on_host > host_bytes)
        throw UsageError(option + ": checking " + problem.label() + " needs " + gibibytes(on_host) +
                         " of host memory, of which " + gibibytes(host_bytes) + " are free");
    }
  }

  void examine_file() {
    if (options_.tensors_path.empty()) return;
    progress_.show("reading " + options_.tensors_path);
    try {
      examine_tensors(options_.problems, options_.tensors_path);
    } catch (const UsageError&) {
      progress_.clear();
      throw;
    }
    progress_.clear();
  }

  // The worker has written the outputs of a step that passed into a file that has no name yet.
  void finish_saving() {
    if (!saved_) return;
    const std::string status = results_.run(0)["steps"][0].at("status");
    if (status == "pass" && !save_error_.empty())
      throw std::runtime_error("cannot write " + options_.save_path + ": " + save_error_);
    if (status == "pass") saved_->commit();
    std::cout << "\n"
              << (status == "pass" ? "saved: " + options_.save_path
                                   : "not saved: " + steps_[0] + " did not pass")
              << "\n";
  }

  // A step that was asked for by name and cannot run any of the problems is wrong use; in a sweep it is a
  // SKIP.
  void refuse_named_steps(const json& probed) const {
    if (options_.steps.empty()) return;
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (size_t p = 0; p < options_.problems.size(); ++p) {
        const std::string reason = probed["refusals"][p][s];
        if (!reason.empty())
          throw UsageError(steps_[s] + " cannot run " + options_.problems[p].label() + ": " + reason);
      }
    }
  }

  void set_provenance() {
    json& provenance = results_.root()["provenance"];
    provenance["backend"] = backend_;
    provenance["device"] = device_;
    if (backend_ == "cuda" && options_.command != "check") {
      provenance["method"] = {
          {"timer", "CUDA events, interleaved, in another order every round"},
          {"rounds", options_.rounds},
          {"l2", "warm: no flush between launches"},
          {"flops", "4 * head_dim * unmasked (query, key) pairs over batch and query heads"}};
    }
  }

  json modes() const {
    const auto mode = [](const std::string& async, bool race, bool count, uint64_t seed) {
      return json{{"async", async},
                  {"hostile", async == "random"},
                  {"race_detector", race},
                  {"count", count},
                  {"seed", seed}};
    };
    json list = json::array();
    if (backend_ == "cuda") {
      list.push_back(mode("early", false, false, 1));
      list.push_back(list.back());
    } else if (options_.command == "check") {
      for (const std::string& async : options_.modes) {
        for (int seed = 1; seed <= (async == "random" ? options_.seeds : 1); ++seed)
          list.push_back(mode(async, options_.race_detector, false, uint64_t(seed)));
      }
      if (list.size() == 1) list.push_back(list.back());
    } else {
      list.push_back(mode("early", /*race=*/false, /*count=*/true, 1));
      list.push_back(mode("random", /*race=*/true, /*count=*/false, 1));
    }
    return list;
  }

  json make_task(size_t id, const std::string& step, const Problem& problem) const {
    const bool compare = step != kTrustedStep && trusted_.count(problem.label()) > 0;
    return {{"id", id}, {"step", step}, {"problem", to_request(problem)}, {"compare", compare}};
  }

  // On a GPU, whole outputs are compared with v01's, on the problems that v01 itself passes. Where it is not
  // among the steps, or has not come to a problem yet, it is judged here, silently; it costs nobody else if
  // it fails.
  void establish_trust(const std::vector<Problem>& problems) {
    const bool has_trusted =
        std::any_of(registered_steps().begin(), registered_steps().end(), [](const Step& step) {
          return step.backend == BackendKind::kCuda && std::string(step.name) == kTrustedStep;
        });
    if (backend_ != "cuda" || !has_trusted) return;
    json tasks = json::array();
    for (size_t p = 0; p < problems.size(); ++p) {
      if (judged_.count(problems[p].label()) == 0 && lacks_memory(problems[p]).empty())
        tasks.push_back(make_task(p, kTrustedStep, problems[p]));
    }
    progress_.show(std::string("checking ") + kTrustedStep + ", which the others are compared with");
    run_tasks(tasks, [&](int p, const json& entry) { note_trust(problems[size_t(p)], entry); });
    progress_.clear();
  }

  void note_trust(const Problem& problem, const json& entry) {
    if (entry.at("step") != kTrustedStep) return;
    judged_.insert(problem.label());
    if (entry.at("status") == "pass") trusted_.insert(problem.label());
  }

  // Runs validate tasks to their end, whatever happens to the worker on the way. Calls done(id, entry) once
  // per task.
  void run_tasks(json tasks, const std::function<void(int, const json&)>& done) {
    int hangs_in_a_row = 0;
    while (!tasks.empty()) {
      const json request = {{"job", "validate"}, {"backend", backend_}, {"tasks", tasks}, {"modes", modes()}};
      int current = -1;
      std::set<int> finished;
      const JobOutcome outcome = job(request, [&](const json& event) {
        if (event.at("event") == "begin") {
          current = event.at("id");
        } else if (event.at("event") == "not_saved") {
          save_error_ = event.at("message");
        } else if (event.at("event") == "done") {
          finished.insert(event.at("id").get<int>());
          hangs_in_a_row = 0;
          done(event.at("id"), event.at("entry"));
          current = -1;
        }
      });
      if (outcome.end == JobOutcome::End::kTimedOut) ++hangs_in_a_row;
      json left = json::array();
      for (const json& task : tasks) {
        const int id = task.at("id");
        if (finished.count(id)) continue;
        if (hangs_in_a_row >= 2 && current != id) {  // or a covering sample would wait for every single one
          done(id, {{"step", task.at("step")},
                    {"status", "skip"},
                    {"message", "not run: the step hung twice in a row"}});
          continue;
        }
        // The task at which the worker ended bears the blame; one that ended before it began anything gives
        // up on all.
        const bool to_blame = current == id || current == -1;
        if (outcome.end != JobOutcome::End::kDone && to_blame) {
          done(id,
               {{"step", task.at("step")}, {"status", status_of(outcome.end)}, {"message", outcome.message}});
        } else {
          left.push_back(task);
        }
      }
      if (!tasks.empty() && left.size() == tasks.size()) throw std::logic_error("a worker made no progress");
      tasks = left;
    }
  }

  static std::string status_of(JobOutcome::End end) {
    switch (end) {
      case JobOutcome::End::kCrashed:
        return "crash";
      case JobOutcome::End::kTimedOut:
        return "timeout";
      default:
        return "error";
    }
  }

  void note(const json& entry) {
    const std::string status = entry.at("status");
    crashed_ = crashed_ || status == "crash" || status == "timeout";
    failed_ = failed_ || status == "fail" || status == "error";
    passed_ = passed_ || status == "pass";
  }

  void print_entry(const json& entry, const std::string& label) {
    progress_.clear();
    std::cout << status_label(entry.at("status")) << "  " << entry.at("step").get<std::string>() << "  "
              << label;
    if (entry.contains("validation") && entry["validation"]["nrmse"].is_number())
      std::cout << "  NRMSE " << scientific(entry["validation"]["nrmse"]) << ", worst row "
                << scientific(entry["validation"]["worst_row_nrmse"].is_number()
                                  ? entry["validation"]["worst_row_nrmse"].get<double>()
                                  : NAN);
    std::cout << "\n";
    if (const std::string message = entry.at("message"); !message.empty())
      std::cout << indented(message, 6) << "\n";
    std::cout << std::flush;
  }

  void validate_step(size_t s, const json& probed) {
    json tasks = json::array();
    const size_t num_problems = options_.problems.size();
    for (size_t p = 0; p < num_problems; ++p) {
      const std::string reason = probed["refusals"][p][s];
      if (reason.empty()) {
        tasks.push_back(make_task(p, steps_[s], options_.problems[p]));
        if (saved_) tasks.back()["save"] = saved_->path_for_workers();
      } else {
        finish(p, {{"step", steps_[s]}, {"status", "skip"}, {"message", reason}});
      }
    }
    progress_.show("[" + std::to_string(s + 1) + "/" + std::to_string(steps_.size()) + "] checking " +
                   steps_[s]);
    run_tasks(tasks, [&](int p, const json& entry) { finish(size_t(p), entry); });
  }

  void finish(size_t p, const json& entry) {
    note(entry);
    note_trust(options_.problems[p], entry);
    print_entry(entry, options_.problems[p].label());
    results_.run(p)["steps"].push_back(entry);
    results_.save();
  }

  struct Samples {
    std::vector<double> ms, clocks;
    json method;
  };

  void bench_problem(size_t r) {
    json& run = results_.run(r);
    std::vector<std::string> racing;
    for (const json& entry : run["steps"]) {
      if (entry.at("status") == "pass") racing.push_back(entry.at("step"));
    }
    std::map<std::string, Samples> samples;
    bool ceiling = true;
    while (!racing.empty()) {
      json counts = json::object();
      for (const std::string& step : racing) counts[step] = samples[step].ms.size();
      std::string current, failed_status, failed_message;
      const JobOutcome outcome =
          job({{"job", "bench"},
               {"backend", backend_},
               {"problem", to_request(options_.problems[r])},
               {"steps", counts},
               {"rounds", options_.rounds},
               {"ceiling", ceiling}},
              [&](const json& event) {
                const std::string what = event.at("event");
                current = event.at("step");
                if (what == "begin")
                  progress_.show("timing " + options_.problems[r].label() + ": " + current);
                if (what == "method") samples[current].method = event;
                if (what == "failed") {
                  failed_status = event.at("status");
                  failed_message = event.at("message");
                }
                if (what == "sample") {
                  samples[current].ms.push_back(event.at("ms"));
                  if (event.at("sm_clock_mhz").get<int>() > 0)
                    samples[current].clocks.push_back(event.at("sm_clock_mhz"));
                }
              });
      if (outcome.end == JobOutcome::End::kDone && failed_status.empty()) break;
      // The step at hand is out of the race; what the others have measured so far stays.
      if (failed_status.empty()) {
        failed_status = status_of(outcome.end);
        failed_message = outcome.message;
      }
      if (current == kCeiling) {
        ceiling = false;
        samples.erase(kCeiling);
        continue;
      }
      const auto it = std::find(racing.begin(), racing.end(), current);
      if (it == racing.end())
        throw std::runtime_error("timing " + options_.problems[r].label() + ": " + failed_message);
      samples.erase(current);
      racing.erase(it);
      for (json& entry : run["steps"]) {
        if (entry.at("step") != current) continue;
        entry["status"] = failed_status;
        entry["message"] = "while being timed: " + failed_message;
        note(entry);
        print_entry(entry, options_.problems[r].label());
      }
    }
    progress_.clear();
    double matmul_tflops = 0;
    if (samples.count(kCeiling) && !samples[kCeiling].ms.empty()) {
      const Samples& s = samples[kCeiling];
      const double median = percentile(s.ms, 0.5);
      matmul_tflops = s.method.at("flops").get<double>() / (median * 1e9);
      run["ceilings"]["matmul"] = {{"what", "cuBLAS bf16 8192x8192x8192"},
                                   {"median_ms", median},
                                   {"p10_ms", percentile(s.ms, 0.1)},
                                   {"p90_ms", percentile(s.ms, 0.9)},
                                   {"tflops", matmul_tflops}};
    }
    for (json& entry : run["steps"]) {
      if (entry.at("status") == "pass")
        set_timing(entry, samples[entry.at("step")], options_.problems[r], matmul_tflops);
    }
    results_.save();
  }

  void set_timing(json& entry, const Samples& s, const Problem& problem, double matmul_tflops) {
    const double flops = problem.flops();
    const double median = percentile(s.ms, 0.5), fast = percentile(s.ms, 0.1), slow = percentile(s.ms, 0.9);
    const double tflops = flops / (median * 1e9);
    const double peak = peak_tflops_.at(name(problem.dtype));
    const bool comparable =
        matmul_tflops > 0 && problem.dtype != DType::kFp32;  // the matmul's inputs are 16-bit
    // Nothing is faster than the hardware: such a figure means that the step, the clock or the FLOP count is
    // wrong.
    if (peak > 0 && tflops > peak) {
      entry["status"] = "fail";
      entry["message"] = fixed(tflops, 1) + " TFLOPS is above the card's peak of " + fixed(peak, 1) +
                         ": a bug in the step or in the measurement, not recorded";
      note(entry);
      return;
    }
    entry["timing"] = {
        {"median_ms", median},
        {"p10_ms", fast},
        {"p90_ms", slow},
        {"samples", s.ms.size()},
        {"launches_per_sample", s.method.at("launches_per_sample")},
        {"graph", s.method.at("graph")},
        {"tflops", tflops},
        {"tflops_p10", flops / (slow * 1e9)},
        {"tflops_p90", flops / (fast * 1e9)},
        {"percent_of_peak", peak > 0 ? json(100 * tflops / peak) : json(nullptr)},
        {"percent_of_matmul", comparable ? json(100 * tflops / matmul_tflops) : json(nullptr)},
        {"sm_clock_mhz", s.clocks.empty() ? json(nullptr) : json(int(percentile(s.clocks, 0.5)))}};
  }

  // The step as it is, and in each of its configurations, as the command line names them.
  static std::vector<std::string> with_configurations(const std::string& step_name) {
    std::vector<std::string> names{step_name};
    const StepInfo& info = step_info(step_name);
    for (int c = 0; step_name.find('@') == std::string::npos && c < info.num_configurations(); ++c)
      names.push_back(step_name + "@" + info.configurations[c]);
    return names;
  }

  // check without a shape: every step on its covering sample.
  int check_covering() {
    set_provenance();
    std::map<std::string, size_t> run_of_label;
    for (const std::string& step_name : options_.steps) {
      const json refusals = probe(covering_sample(false, false), {step_name})["refusals"];
      if (std::all_of(refusals.begin(), refusals.end(), [](const json& reasons) { return reasons[0] != ""; }))
        throw UsageError(step_name + " cannot run here: " + refusals[0][0].get<std::string>());
    }
    std::cout << "device: " << device_line() << "\n\n" << std::flush;
    for (const std::string& step_name : steps_) {
      const StepInfo& info = step_info(step_name);
      const std::vector<Problem> sample =
          covering_sample(info.dtypes.has(DType::kFp32), info.alignment_bytes == 0);
      const std::vector<std::string> contenders = with_configurations(step_name);
      const json probed = probe(sample, contenders);
      std::map<std::string, size_t> problems_of;  // by contender
      if (step_name != kTrustedStep) establish_trust(sample);
      json tasks = json::array();
      size_t passed = 0, skipped = 0, done = 0;
      std::string skipped_because;  // the first reason
      const auto record = [&](size_t p, const json& entry) {
        note(entry);
        note_trust(sample[p], entry);
        const std::string status = entry.at("status");
        passed += status == "pass";
        if (status == "skip" && skipped++ == 0) skipped_because = entry.at("message");
        ++done;
        if (options_.verbose || (status != "pass" && status != "skip")) print_entry(entry, sample[p].label());
        progress_.show(step_name + ": " + std::to_string(done) + " of " + std::to_string(sample.size()) +
                       " problems");
        const std::string label = sample[p].label();
        if (!run_of_label.count(label)) {
          run_of_label[label] = results_.root()["runs"].size();
          results_.add_run(sample[p]);
        }
        results_.run(run_of_label[label])["steps"].push_back(entry);
        results_.save();
      };
      for (size_t p = 0; p < sample.size(); ++p) {
        // In turn: as the step chooses, and in each of its configurations, where they take the problem.
        size_t c = p % contenders.size();
        if (!probed["refusals"][p][c].get<std::string>().empty()) c = 0;
        std::string reason = probed["refusals"][p][c];
        if (reason.empty()) reason = lacks_memory(sample[p]);
        if (!reason.empty()) {
          record(p, {{"step", step_name}, {"status", "skip"}, {"message", reason}});
          continue;
        }
        ++problems_of[contenders[c]];
        tasks.push_back(make_task(p, contenders[c], sample[p]));
      }
      const auto started = std::chrono::steady_clock::now();
      run_tasks(tasks, [&](int p, const json& entry) { record(size_t(p), entry); });
      progress_.clear();
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
      std::cout << (passed + skipped == sample.size() ? (passed > 0 ? "PASS" : "SKIP") : "FAIL") << "  "
                << step_name << "  " << passed << " of " << sample.size()
                << " problems of the covering sample";
      if (skipped > 0) {
        std::cout << ", " << skipped << " skipped (" << skipped_because << ")";
      }
      if (backend_ == "emulator") {
        std::cout << ", modes";
        for (const std::string& mode : options_.modes) std::cout << " " << mode;
        std::cout << (options_.race_detector ? ", race detector on" : ", race detector off");
      }
      std::cout << ", " << fixed(seconds, 1) << " s\n";
      for (size_t c = 1; c < contenders.size(); ++c)
        std::cout << "      " << contenders[c] << ": " << problems_of[contenders[c]] << " of them\n";
      std::cout << std::flush;
    }
    results_.root()["complete"] = true;
    results_.save();
    return summary();
  }

  int summary() {
    if (!options_.json_path.empty()) std::cout << "\nresults: " << options_.json_path << "\n";
    flush_output();
    if (crashed_) return kCrashedOrHung;
    if (failed_ || !passed_) return kSomethingFailed;
    return kAllPassed;
  }

  Options options_;
  std::vector<std::string> steps_;
  ResultsFile results_;
  std::string backend_, no_cuda_reason_;
  json device_, peak_tflops_;
  size_t free_bytes_ = 0;
  std::set<std::string> judged_, trusted_;  // labels of problems on which v01 was run, and on which it passed
  std::optional<AtomicFile> saved_;         // --save
  std::string save_error_;                  // why a worker could not write it
  bool passed_ = false, failed_ = false, crashed_ = false;
  Progress progress_;
};

}  // namespace

void flush_output() {
  if (!std::cout.flush()) throw std::runtime_error("the output could not be written");
}

int run_session(const Options& options) {
  if (options.command == "problems") return show_problems(options);
  Session session(options);
  if (options.command == "list") return session.list();
  if (options.command == "info") return session.info();
  return session.run();
}

int flashsteps_main(int argc, const char* const* argv, bool isolated) {
  // Were one of the standard descriptors closed, the next file or pipe to be opened would take its number.
  for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd <= STDERR_FILENO;) fd = open("/dev/null", O_RDWR);
  // A file that grows beyond the limit (ulimit -f) is then an error of write(), as on a full disk. Workers
  // inherit this: whoever writes a step's outputs must not look like a step that crashed.
  std::signal(SIGXFSZ, SIG_IGN);
  const auto complain = [](const std::string& line, int status) {
    // An argument may hold anything; what is said about it stays one line.
    std::cerr << "flashsteps: " << without_controls(line) << "\n";
    return status;
  };
  try {
    const ParseResult parsed = parse_options(argc, argv, isolated);
    return parsed.done ? kAllPassed : run_session(parsed.options);
  } catch (const UsageError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const std::exception& error) {
    return complain(error.what(), kSomethingFailed);
  }
}

}  // namespace flashsteps
