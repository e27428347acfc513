#include "harness/run/runner.h"

#include <set>
#include <utility>

#include "harness/base/text.h"
#include "harness/judge/validate.h"

namespace flashsteps {

std::string Device::line() const {
  const std::string name = description.at("name");
  if (is_gpu()) return name + ", driver " + description.at("driver").get<std::string>();
  return name + " on the CPU, " + description.at("host_threads").dump() + " threads" +
         (no_cuda.empty() ? "" : " (" + no_cuda + ")");
}

double Device::peak_tflops(DType dtype) const {
  return description.value("peak_tflops", json::object()).value(name(dtype), 0.0);
}

Runner::Runner(const std::string& backend, bool in_process, double timeout_seconds)
    : in_process_(in_process), timeout_seconds_(timeout_seconds) {
  const json request = {
      {"job", "probe"}, {"backend", backend}, {"problems", json::array()}, {"steps", json::array()}};
  const JobOutcome outcome = job(request, [&](const json& event) {
    device_ = {event.at("backend") == name(BackendKind::kCuda) ? BackendKind::kCuda : BackendKind::kEmulator,
               event.at("no_cuda"), event.at("device"), event.at("free_bytes")};
  });
  if (outcome.done()) return;
  if (backend == "cuda") throw UsageError("--backend cuda: " + outcome.message);
  throw std::runtime_error("looking for a device: " + outcome.message);
}

JobOutcome Runner::job(json request, const EmitEvent& on_event) const {
  request.emplace("backend", name(device_.backend));
  if (!tuning_.empty()) request["tuning"] = tuning_;
  return in_process_ ? run_job(request, on_event) : run_job_isolated(request, timeout_seconds_, on_event);
}

Probed Runner::probe(const std::vector<Problem>& problems, const std::vector<StepChoice>& steps) const {
  json request = {{"job", "probe"}, {"problems", json::array()}, {"steps", json::array()}};
  for (const Problem& problem : problems) request["problems"].push_back(to_json(problem));
  for (const StepChoice& step : steps) request["steps"].push_back(step.name);
  json answer;
  const JobOutcome outcome = job(request, [&](const json& event) { answer = event; });
  if (!outcome.done()) throw std::runtime_error("asking the device: " + outcome.message);
  return {answer.at("refusals"), answer.at("resources")};
}

void Runner::validate(const std::vector<Task>& tasks, const std::vector<EmulatorMode>& modes,
                      const std::string& progress, const OnDone& done) {
  if (device_.is_gpu()) establish_trust(tasks, modes);
  progress_.show(progress);
  run_tasks(tasks, modes, done);
}

// A trusted step that fails costs nobody else.
void Runner::establish_trust(const std::vector<Task>& tasks, const std::vector<EmulatorMode>& modes) {
  std::vector<Task> not_judged;
  std::set<std::string> labels;
  for (const Task& task : tasks) {
    const std::string label = task.problem.label(), trusted = trusted_step(task.problem);
    if (task.step != trusted && find_step(trusted, BackendKind::kCuda) != nullptr && !task.problem.earlier &&
        !trusted_.contains(label) && labels.insert(label).second)
      not_judged.push_back({task.id, trusted, task.problem});
  }
  if (not_judged.empty()) return;
  progress_.show(std::string("checking ") + trusted_step(not_judged.front().problem) +
                 ", which the others are compared with");
  run_tasks(not_judged, modes, [](int, const StepResult&) {});
}

void Runner::run_tasks(std::vector<Task> tasks, const std::vector<EmulatorMode>& modes, const OnDone& done) {
  const auto finish = [&](const Task& task, const StepResult& result) {
    if (task.step == trusted_step(task.problem)) trusted_[task.problem.label()] = result.passed();
    done(task.id, result);
  };
  const auto give_up = [&](auto is_given_up, Status status, const std::string& message) {
    std::erase_if(tasks, [&](const Task& task) {
      if (!is_given_up(task)) return false;
      finish(task, {.step = task.step, .status = status, .message = message});
      return true;
    });
  };
  // A covering sample, or a grid of problems, would wait for every one.
  const auto hung_twice = [&](const Task& task) { return hangs_in_a_row_[task.step] == 2; };
  const auto skip_what_hung_twice = [&] {
    give_up(hung_twice, Status::kSkip, "not run: the step hung twice in a row");
  };
  skip_what_hung_twice();
  while (!tasks.empty()) {
    // A debugger, or a sanitizer, had better follow one call at a time.
    json request = {
        {"job", "validate"}, {"tasks", json::array()}, {"modes", modes}, {"together", !in_process_}};
    for (const Task& task : tasks) {
      const auto trusted = trusted_.find(task.problem.label());
      const bool compare =
          task.step != trusted_step(task.problem) && trusted != trusted_.end() && trusted->second;
      request["tasks"].push_back(
          {{"step", task.step}, {"problem", to_json(task.problem)}, {"compare", compare}});
    }
    size_t finished = 0;
    bool in_a_task = false;  // the one after those
    const JobOutcome outcome = job(request, [&](const json& event) {
      if (event.at("event") == "begin") {
        in_a_task = true;
      } else if (event.at("event") == "done") {
        in_a_task = false;
        hangs_in_a_row_[tasks[finished].step] = 0;
        finish(tasks[finished++], event.at("result"));
      }
    });
    if (outcome.done() && finished == 0) throw std::logic_error("a worker made no progress");
    tasks.erase(tasks.begin(), tasks.begin() + finished);
    if (outcome.done()) continue;
    // The task at which the worker ended bears the blame; one that ended before it began anything gives up on
    // all.
    if (in_a_task && outcome.status == Status::kTimeout) ++hangs_in_a_row_[tasks.front().step];
    bool is_first = true;
    const auto bears_the_blame = [&](const Task&) { return !in_a_task || std::exchange(is_first, false); };
    give_up(bears_the_blame, outcome.status, outcome.message);
    skip_what_hung_twice();
  }
}

}  // namespace flashsteps
