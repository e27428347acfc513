#include "harness/run/jobs.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/device/tuning.h"
#include "harness/judge/reference.h"
#include "harness/judge/validate.h"
#include "harness/run/step_choice.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

// What became of a step at which the device failed; in the order of Kind.
constexpr Status kStatuses[] = {Status::kCrash, Status::kTimeout, Status::kFail};
Status status_of(const DeviceError& error) { return kStatuses[int(error.kind)]; }

// `no_cuda` receives why "auto" did not choose the GPU.
std::unique_ptr<Backend> make_backend(const std::string& which, std::string* no_cuda = nullptr) {
  if (which != "emulator") {
    std::string why;
    if (auto cuda = make_cuda_backend(why)) return cuda;
    if (which == "cuda") throw std::runtime_error(why);
    if (no_cuda != nullptr) *no_cuda = why;
  }
  return make_emulator_backend();
}

// Which configuration a step gets for a call on the device of a job.
class Choice {
 public:
  Choice(const json& request, const Backend& backend)
      : tuning_(request.contains("tuning") ? Tuning(request["tuning"]) : Tuning()),
        device_(backend.device()) {}
  // Fills in the one that its name says, or a tuned one. Else the step chooses.
  void choose(const StepChoice& named, const Step& step, AttentionCall& call) const {
    call.configuration = named.configuration;
    tuning_.choose(step, device_.at("name").get<std::string>(), device_.value("sm_count", 0), call);
  }

 private:
  Tuning tuning_;
  json device_;
};

// The step of that name, with the tensors prepared for it. (A pointer: g++ 13 takes a reference for one to an
// argument.)
const Step* prepare_step(const std::string& step_name, const Backend& backend, const Choice& choice,
                         DeviceTensors& tensors) {
  const StepChoice named = find_steps(step_name).front();
  const Step* const step = named.built_for(backend.kind());
  if (step == nullptr)
    throw std::runtime_error("step " + step_name + " is not in this program for the " + name(backend.kind()) +
                             " backend");
  AttentionCall call = tensors.call();
  choice.choose(named, *step, call);
  tensors.prepare_for(*step, call.configuration);
  return step;
}

std::pair<size_t, int> size_of_cta(const LaunchRecord& kernel) {
  return {kernel.smem_bytes, int(kernel.block[0] * kernel.block[1] * kernel.block[2] + 31) / 32};
}

// What is said of the step as a whole: a kernel for all of them, with the most of each resource. The grid and
// the block are those of the kernel with the most shared memory, and then warps, in a CTA: not of one that
// resets a counter, or prepares or finishes rows.
json largest(const std::vector<LaunchRecord>& kernels) {
  if (kernels.empty()) return nullptr;
  LaunchRecord all = *std::ranges::max_element(kernels, {}, size_of_cta);
  for (const LaunchRecord& kernel : kernels) {
    all.smem_bytes = std::max(all.smem_bytes, kernel.smem_bytes);
    all.registers = std::max(all.registers, kernel.registers);
    all.spill_bytes = std::max(all.spill_bytes, kernel.spill_bytes);
    all.ctas_per_sm = std::min(all.ctas_per_sm, kernel.ctas_per_sm);
  }
  return all;
}

Counters sum(const std::vector<Counters>& kernels) {
  Counters all;
  for (const Counters& kernel : kernels) {
    for (const auto& [name, count] : kernel) all[name] += count;
  }
  return all;
}

void probe(const json& request, const EmitEvent& emit) {
  std::string no_cuda;
  const auto backend = make_backend(request.at("backend"), &no_cuda);
  json event = {{"event", "probe"},
                {"backend", name(backend->kind())},
                {"no_cuda", no_cuda},
                {"device", backend->device()},
                {"free_bytes", backend->free_memory()},
                {"refusals", json::array()},
                {"resources", json::array()}};
  const Choice choice(request, *backend);
  for (const json& problem : request.at("problems")) {
    json reasons = json::array(), needs = json::array();
    const Problem asked = problem_from_json(problem);
    if (EmulatorBackend* const emulator = backend->emulator()) emulator->set_num_sms(asked.num_sms);
    AttentionCall call = shape_of_call(asked);
    for (const std::string step_name : request.at("steps")) {
      const StepChoice named = find_steps(step_name).front();
      const Step* const step = named.built_for(backend->kind());
      if (step != nullptr) choice.choose(named, *step, call);
      const std::string reason =
          step ? backend->refusal(*step, call) : "is not built for the " + name(backend->kind()) + " backend";
      reasons.push_back(reason);
      needs.push_back(reason.empty() ? largest(backend->describe(*step, call)) : json(nullptr));
    }
    event["refusals"].push_back(reasons);
    event["resources"].push_back(needs);
  }
  emit(event);
}

// A problem's tensors and truth, kept while successive tasks ask for the same problem.
struct Prepared {
  Prepared(Backend& backend, const json& problem_json)
      : key(problem_json),
        workload(workload_of(backend, problem_from_json(problem_json))),
        tensors(backend, workload) {}
  json key;
  Workload workload;
  DeviceTensors tensors;
  std::optional<std::vector<ReferenceRow>> reference;
  std::optional<Outputs> trusted;
};

// Whether the step bears another call beside it; for problems that are small, so that it costs little.
std::string disturbance_of(Backend& backend, const Step& step, Prepared& prepared) {
  constexpr double kMostBytes = 4 << 20;
  Problem other = prepared.workload.problem();
  if (other.earlier || total_bytes(other, plan_on_device(other)) > kMostBytes) return "";
  ++other.seed;
  Workload workload = workload_of(backend, other);
  DeviceTensors tensors(backend, workload);
  tensors.prepare_for(step, prepared.tensors.call().configuration);
  return disturbance(backend.gpu(), step, prepared.tensors, tensors);
}

void validate_tasks(const json& request, const EmitEvent& emit) {
  const auto backend = make_backend(request.at("backend"));
  const Choice choice(request, *backend);
  const std::vector<EmulatorMode> modes = request.at("modes");
  std::unique_ptr<Prepared> prepared;
  for (const json& task : request.at("tasks")) {
    emit({{"event", "begin"}});
    const auto started = std::chrono::steady_clock::now();
    const std::string step_name = task.at("step");
    StepResult result{.step = step_name};
    bool device_lost = false;
    try {
      if (!prepared || prepared->key != task.at("problem")) {
        prepared.reset();  // first: two large problems need not fit at once
        prepared = std::make_unique<Prepared>(*backend, task.at("problem"));
      }
      const Problem& problem = prepared->workload.problem();
      if (!prepared->reference)
        prepared->reference = reference_rows(prepared->workload, choose_rows(problem));
      // On a GPU every element is compared, also those whose rows were not sampled for the reference.
      const bool compare = task.at("compare");
      if (compare && !prepared->trusted) {
        const Step& trusted = *prepare_step(trusted_step(problem), *backend, choice, prepared->tensors);
        prepared->tensors.poison(Poison::kNan);
        backend->run(trusted, prepared->tensors.call());
        prepared->trusted = prepared->tensors.download_outputs();
      }
      const Step& step = *prepare_step(step_name, *backend, choice, prepared->tensors);
      const AttentionCall& call = prepared->tensors.call();
      result.part = kPartNames[int(step.info.part)];
      if (step.info.varies != nullptr) result.details["varies"] = step.info.varies;
      if (step.info.num_configurations() > 0) {
        result.configuration = step.info.configurations[configuration_of(step.info, call)];
        result.tuned = call.configuration != find_steps(step_name).front().configuration;
      }
      const std::vector<LaunchRecord> kernels = backend->describe(step, call);
      result.details["resources"] = largest(kernels);
      const Validation v = validate(*backend, step, prepared->tensors, prepared->workload,
                                    *prepared->reference, compare ? &*prepared->trusted : nullptr, modes);
      result.message = v.message;
      if (v.pass && backend->kind() == BackendKind::kCuda && request.at("together"))
        result.message = disturbance_of(*backend, step, *prepared);
      result.status = v.pass && result.message.empty() ? Status::kPass : Status::kFail;
      json& validation = result.details["validation"] = to_json(v, problem);
      if (backend->emulator() != nullptr) {
        std::set<std::string> names;
        for (const EmulatorMode& mode : modes) names.insert(mode.async);
        validation["modes"] = names;
        validation["race_detector"] = std::ranges::any_of(modes, &EmulatorMode::race_detector);
      }
      if (!v.counters.empty()) result.details["counters"] = sum(v.counters);
      for (size_t i = 0; kernels.size() > 1 && i < kernels.size(); ++i) {
        json& kernel = result.details["kernels"].emplace_back(json{{"resources", kernels[i]}});
        if (i < v.counters.size()) kernel["counters"] = v.counters[i];
      }
    } catch (const DeviceError& error) {
      result.status = status_of(error);
      result.message = error.what();
      device_lost = error.device_lost;
    } catch (const std::exception& error) {
      result.message = error.what();
    }
    result.details["seconds"] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    emit({{"event", "done"}, {"result", result}});
    if (device_lost) return;
    if (!result.passed()) prepared.reset();  // a step that is wrong may have written to its inputs
  }
}

void bench_steps(const json& request, const EmitEvent& emit) {
  const auto backend = make_backend(request.at("backend"));
  GpuBackend& gpu = backend->gpu();
  const Choice choice(request, *backend);
  std::optional<Prepared> prepared;
  if (!request.at("steps").empty()) prepared.emplace(*backend, request.at("problem"));
  struct Entry {
    std::string name;
    std::unique_ptr<Timer> timer;
    int samples;
  };
  std::vector<Entry> entries;
  const auto enter = [&](const std::string& name, std::unique_ptr<Timer> timer, int samples) {
    json method = timer->method();
    method.update({{"event", "method"}, {"step", name}});
    emit(method);
    entries.push_back({name, std::move(timer), samples});
  };
  for (const auto& [name, samples] : request.at("ceilings").items()) {
    emit({{"event", "begin"}, {"step", name}});
    auto timer = name == kReadKv ? gpu.make_cold_read(size_t(prepared->workload.problem().kv_bytes()))
                                 : gpu.make_ceiling(name);
    if (timer) enter(name, std::move(timer), samples);
  }
  for (const auto& [step_name, samples] : request.at("steps").items()) {
    emit({{"event", "begin"}, {"step", step_name}});
    const Step& step = *prepare_step(step_name, *backend, choice, prepared->tensors);
    enter(step_name, gpu.make_timer(step, prepared->tensors.call(), request.at("cold_l2")), samples);
  }
  // Everybody has a turn in every round: whatever the clocks do, they do it to every step alike.
  const int rounds = request.at("rounds");
  for (int round = 0; round < rounds; ++round) {
    for (const size_t index : order_of_round(entries.size(), round)) {
      Entry& entry = entries[index];
      if (entry.samples >= rounds) continue;
      emit({{"event", "begin"}, {"step", entry.name}});
      int clock = 0;
      const double ms = entry.timer->sample([&] { clock = gpu.sm_clock_mhz(); });
      emit({{"event", "sample"}, {"step", entry.name}, {"ms", ms}, {"sm_clock_mhz", clock}});
      ++entry.samples;
    }
  }
}

void trace_step(const json& request, const EmitEvent& emit) {
  const auto backend = make_emulator_backend();
  Prepared prepared(*backend, request.at("problem"));
  const Step& step = *prepare_step(request.at("step"), *backend, Choice(request, *backend), prepared.tensors);
  emit({{"event", "trace"}, {"trace", backend->trace(step, prepared.tensors.call(), request.at("cta"))}});
}

}  // namespace

JobOutcome run_job(const json& request, const EmitEvent& emit) {
  try {
    const std::string job = request.at("job");
    if (job == "probe") probe(request, emit);
    if (job == "validate") validate_tasks(request, emit);
    if (job == "bench") bench_steps(request, emit);
    if (job == "trace") trace_step(request, emit);
    return {};
  } catch (const DeviceError& error) {
    return {status_of(error), error.what()};
  } catch (const std::exception& error) {
    return {Status::kError, error.what()};
  }
}

}  // namespace flashsteps
