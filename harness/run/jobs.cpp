#include "harness/run/jobs.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <set>

#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/device/tuning.h"
#include "harness/judge/reference.h"
#include "harness/judge/validate.h"
#include "harness/problem/problem_json.h"
#include "harness/run/rounds.h"
#include "harness/run/step_choice.h"

namespace flashsteps {
namespace {

// What became of a step at which the device failed, as results files have it; in the order of Kind.
constexpr const char* kStatuses[] = {"crash", "timeout", "fail"};
const char* status_of(const DeviceError& error) { return kStatuses[int(error.kind)]; }

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

// The step of that name, with the tensors prepared for it.
const Step& prepare_step(const std::string& step_name, const Backend& backend, const Choice& choice,
                         DeviceTensors& tensors) {
  const StepChoice named = find_steps(step_name).front();
  const Step* const step = named.built_for(backend.kind());
  if (step == nullptr)
    throw std::runtime_error("step " + step_name + " is not in this program for the " + name(backend.kind()) +
                             " backend");
  AttentionCall call = tensors.call();
  choice.choose(named, *step, call);
  tensors.prepare_for(*step, call.configuration);
  return *step;
}

// Of each kernel that the step launches.
std::vector<json> resources(Backend& backend, const Step& step, const AttentionCall& call) {
  std::vector<json> kernels;
  for (const LaunchRecord& launch : backend.describe(step, call)) {
    json r = {{"grid", launch.grid}, {"block", launch.block}, {"smem_bytes", launch.smem_bytes}};
    if (backend.kind() == BackendKind::kCuda) {
      r["registers"] = launch.registers;
      r["spill_bytes"] = launch.spill_bytes;
      r["ctas_per_sm"] = launch.ctas_per_sm;
    }
    kernels.push_back(r);
  }
  return kernels;
}

int warps_of_cta(const json& kernel) {
  const auto block = kernel.at("block").get<std::array<int, 3>>();
  return (block[0] * block[1] * block[2] + 31) / 32;
}

// What is said of the step as a whole: a kernel for all of them, with the most of each resource. The grid and
// the block are those of the kernel with the most warps in a CTA: not of one that resets a counter.
json largest(const std::vector<json>& kernels) {
  json all = kernels.empty() ? json(nullptr) : *std::ranges::max_element(kernels, {}, warps_of_cta);
  for (const json& kernel : kernels) {
    for (const char* key : {"smem_bytes", "registers", "spill_bytes"}) {
      if (kernel.contains(key)) all[key] = std::max(all[key].get<int64_t>(), kernel[key].get<int64_t>());
    }
    if (kernel.contains("ctas_per_sm"))
      all["ctas_per_sm"] = std::min(all["ctas_per_sm"].get<int64_t>(), kernel["ctas_per_sm"].get<int64_t>());
  }
  return all;
}

json sum(const std::vector<json>& kernels) {
  json all = kernels.empty() ? json(nullptr) : kernels.front();
  for (size_t i = 1; i < kernels.size(); ++i) {
    for (auto& [key, value] : all.items()) value = value.get<uint64_t>() + kernels[i].at(key).get<uint64_t>();
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
                {"free_bytes", backend->free_memory()}};
  for (const auto& [text, dtype] : kDTypeNames) event["peak_tflops"][text] = backend->peak_tflops(dtype);
  event["refusals"] = json::array();
  event["resources"] = json::array();
  const Choice choice(request, *backend);
  for (const json& problem : request.at("problems")) {
    json reasons = json::array(), needs = json::array();
    const Problem asked = problem_from_json(problem);
    backend->set_num_sms(asked.num_sms);
    AttentionCall call = shape_of_call(asked);
    for (const std::string step_name : request.at("steps")) {
      const StepChoice named = find_steps(step_name).front();
      const Step* const step = named.built_for(backend->kind());
      if (step != nullptr) choice.choose(named, *step, call);
      const std::string reason =
          step ? backend->refusal(*step, call) : "is not built for the " + name(backend->kind()) + " backend";
      reasons.push_back(reason);
      needs.push_back(reason.empty() ? largest(resources(*backend, *step, call)) : json(nullptr));
    }
    event["refusals"].push_back(reasons);
    event["resources"].push_back(needs);
  }
  emit(event);
}

// A problem's tensors and truth, kept while successive tasks ask for the same problem.
struct Prepared {
  Prepared(Backend& backend, const json& problem_json)
      : key(problem_json), workload(problem_from_json(problem_json)), tensors(backend, workload) {}
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
  Workload workload(other);
  DeviceTensors tensors(backend, workload);
  tensors.prepare_for(step, prepared.tensors.call().configuration);
  return disturbance(backend, step, prepared.tensors, tensors);
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
    json entry = {{"step", step_name}, {"status", "error"}, {"message", ""}};
    bool device_lost = false, passed = false;
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
        const Step& v01 = prepare_step(kTrustedStep, *backend, choice, prepared->tensors);
        prepared->tensors.poison(Poison::kNan);
        backend->run(v01, prepared->tensors.call());
        prepared->trusted = prepared->tensors.download_outputs();
      }
      const Step& step = prepare_step(step_name, *backend, choice, prepared->tensors);
      const AttentionCall& call = prepared->tensors.call();
      entry["part"] = kPartNames[int(step.info.part)];
      if (step.info.num_configurations() > 0) {
        entry["configuration"] = step.info.configurations[configuration_of(step.info, call)];
        entry["tuned"] = call.configuration != find_steps(step_name).front().configuration;
      }
      const std::vector<json> kernels = resources(*backend, step, call);
      entry["resources"] = largest(kernels);
      std::vector<json> counters;
      const Validation v =
          validate(*backend, step, prepared->tensors, prepared->workload, *prepared->reference,
                   compare ? &*prepared->trusted : nullptr, modes, counters);
      std::string message = v.message;
      if (v.pass && backend->kind() == BackendKind::kCuda && request.at("together"))
        message = disturbance_of(*backend, step, *prepared);
      passed = v.pass && message.empty();
      entry["status"] = passed ? "pass" : "fail";
      entry["message"] = message;
      entry["validation"] = to_json(v, problem);
      if (backend->kind() == BackendKind::kEmulator) {
        std::set<std::string> names;
        for (const EmulatorMode& mode : modes) names.insert(mode.async);
        entry["validation"]["modes"] = names;
        entry["validation"]["race_detector"] = std::ranges::any_of(modes, &EmulatorMode::race_detector);
      }
      if (!counters.empty()) entry["counters"] = sum(counters);
      for (size_t i = 0; kernels.size() > 1 && i < kernels.size(); ++i) {
        entry["kernels"].push_back({{"resources", kernels[i]}});
        if (i < counters.size()) entry["kernels"].back()["counters"] = counters[i];
      }
    } catch (const DeviceError& error) {
      entry["status"] = status_of(error);
      entry["message"] = error.what();
      device_lost = error.device_lost;
    } catch (const std::exception& error) {
      entry["message"] = error.what();
    }
    entry["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    emit({{"event", "done"}, {"entry", entry}});
    if (device_lost) return;
    if (!passed) prepared.reset();  // a step that is wrong may have written to its inputs
  }
}

void bench_steps(const json& request, const EmitEvent& emit) {
  const auto backend = make_backend(request.at("backend"));
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
    auto timer = name == kReadKv ? backend->make_cold_read(size_t(prepared->workload.problem().kv_bytes()))
                                 : backend->make_ceiling(name);
    if (timer) enter(name, std::move(timer), samples);
  }
  for (const auto& [step_name, samples] : request.at("steps").items()) {
    emit({{"event", "begin"}, {"step", step_name}});
    const Step& step = prepare_step(step_name, *backend, choice, prepared->tensors);
    enter(step_name, backend->make_timer(step, prepared->tensors.call(), request.at("cold_l2")), samples);
  }
  // Everybody has a turn in every round: whatever the clocks do, they do it to every step alike.
  const int rounds = request.at("rounds");
  for (int round = 0; round < rounds; ++round) {
    for (const size_t index : order_of_round(entries.size(), round)) {
      Entry& entry = entries[index];
      if (entry.samples >= rounds) continue;
      emit({{"event", "begin"}, {"step", entry.name}});
      int clock = 0;
      const double ms = entry.timer->sample([&] { clock = backend->sm_clock_mhz(); });
      emit({{"event", "sample"}, {"step", entry.name}, {"ms", ms}, {"sm_clock_mhz", clock}});
      ++entry.samples;
    }
  }
}

void trace_step(const json& request, const EmitEvent& emit) {
  const auto backend = make_emulator_backend();
  Prepared prepared(*backend, request.at("problem"));
  const Step& step = prepare_step(request.at("step"), *backend, Choice(request, *backend), prepared.tensors);
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
    if (job == "instructions")
      emit({{"event", job}, {job, make_backend(request.at("backend"))->instruction_costs()}});
    return {};
  } catch (const DeviceError& error) {
    return {status_of(error), error.what()};
  } catch (const std::exception& error) {
    return {"error", error.what()};
  }
}

}  // namespace flashsteps
