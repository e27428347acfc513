// What scripts ask of the harness: its problems, its judge and its timer, for kernels that are not steps as
// well. A library with a C interface, which scripts/measure/lab.py calls, so that it serves every Python. An
// answer is JSON, valid until the next call of the same thread; {"error": TEXT} where something went wrong,
// with "lost": true where nothing more can be done with the device. Things that stay are numbers: an address,
// which lab_close() ends.
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "harness/base/build_info.h"
#include "harness/base/text.h"
#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/device/gpu.h"
#include "harness/include/flashsteps.h"
#include "harness/judge/validate.h"
#include "harness/library/default_step.h"
#include "harness/problem/shapes.h"
#include "harness/program/options.h"
#include "harness/program/results.h"
#include "harness/run/jobs.h"
#include "harness/run/timing.h"

namespace flashsteps {
namespace {

// Python ends what it holds in any order, so whatever uses another thing keeps it alive.
struct Thing : std::enable_shared_from_this<Thing> {
  virtual ~Thing() = default;
  std::shared_ptr<Thing> used;
  std::shared_ptr<Thing> held;  // this one, while Python holds it. What Python still holds when the process
                                // ends is not ended: the device may be gone by then
};

struct Lab : Thing {
  std::unique_ptr<Backend> backend;
};

// A problem with its tensors on the device, what is right, and what the trusted step makes of it.
struct Case : Thing {
  Case(Lab& lab, Workload made)
      : backend(*lab.backend), workload(std::move(made)), tensors(backend, workload) {
    used = lab.shared_from_this();
  }

  bool is_given() const { return workload.problem().inputs == Inputs::kGiven; }
  const std::vector<ReferenceRow>& rows() {
    const Rows all = workload.problem().rows();
    if (!reference)
      reference = reference_rows(workload, is_given() ? std::vector<RowId>{all.begin(), all.end()}
                                                      : choose_rows(workload.problem()));
    return *reference;
  }
  // On a GPU, where it can run and is right. Not of given inputs, of which all rows have a reference.
  const Outputs* whole_output() {
    const Step* const step = find_step(trusted_step(workload.problem()), backend.kind());
    if (backend.kind() != BackendKind::kCuda || step == nullptr || workload.problem().earlier || is_given())
      return nullptr;
    if (!is_trusted) {
      tensors.prepare_for(*step, AttentionCall::kChosenByStep);
      is_trusted = backend.refusal(*step, tensors.call()).empty() &&
                   validate(backend, *step, tensors, workload, rows(), nullptr, {{}, {}}).pass;
      if (*is_trusted) trusted = tensors.download_outputs();
    }
    return trusted ? &*trusted : nullptr;
  }

  Backend& backend;
  Workload workload;
  DeviceTensors tensors;
  std::optional<std::vector<ReferenceRow>> reference;
  std::optional<bool> is_trusted;
  std::optional<Outputs> trusted;
};

struct LabTimer : Thing {
  LabTimer(Thing& owner, Backend& where, std::unique_ptr<Timer> made)
      : backend(where), timer(std::move(made)) {
    used = owner.shared_from_this();
  }
  Backend& backend;
  std::unique_ptr<Timer> timer;
};

template <typename Work>
const char* answer(Work work) {
  static thread_local std::string text;
  json said;
  try {
    said = work();
  } catch (const DeviceError& error) {
    said = {{"error", error.what()}, {"lost", error.device_lost}};
  } catch (const std::exception& error) {
    said = {{"error", error.what()}};
  }
  text = said.dump();
  return text.c_str();
}

uint64_t address(const void* memory) { return reinterpret_cast<uint64_t>(memory); }
uint64_t number_of(const std::shared_ptr<Thing>& thing) {
  thing->held = thing;
  return address(thing.get());
}

std::string name_of(const DefaultStep& of) {
  const std::string name(of.step), configuration(of.configuration);
  return configuration.empty() ? name : name + "@" + configuration;
}

// What attention() takes for a call on this device, where it has not to look for another one.
json default_of(Backend& backend, const AttentionCall& call) {
  if (backend.kind() != BackendKind::kCuda) return nullptr;
  const Gpu& gpu = current_gpu();
  const DefaultStep first = default_step(call, {gpu.num_sms, gpu.memory_bytes_per_us, gpu.l2_bytes});
  const Step* const step = find_step(first.step, backend.kind());
  if (step == nullptr || !backend.refusal(*step, call).empty()) return nullptr;
  return name_of(first);
}

json described(std::shared_ptr<Case> made) {
  const AttentionCall& call = made->tensors.call();
  const auto tensor = [](const TensorView& view, int batch, int heads, int rows, int head_dim) {
    return json{{"data", address(view.data)},
                {"shape", {batch, heads, rows, head_dim}},
                {"strides", {view.batch_stride, view.head_stride, view.row_stride, 1}}};
  };
  json said = {
      {"case", number_of(made)},
      {"problem", to_json(made->workload.problem())},
      {"default", default_of(made->backend, call)},
      {"q", tensor(call.q, call.batch, call.num_heads_q, call.seqlen_q, call.head_dim)},
      {"k", tensor(call.k, call.kv_blocks(), call.num_heads_kv, call.kv_block_rows(), call.head_dim)},
      {"v", tensor(call.v, call.kv_blocks(), call.num_heads_kv, call.kv_block_rows(), call.head_dim)}};
  for (const auto& [name, scales] :
       {std::pair("q_descale", call.q_descale), std::pair("k_descale", call.k_descale),
        std::pair("v_descale", call.v_descale)}) {
    if (scales.data == nullptr) continue;
    said[name] = {{"data", address(scales.data)},
                  {"shape", {call.batch, call.num_heads_kv}},
                  {"strides", {scales.batch_stride, scales.head_stride}}};
  }
  if (call.backward) {
    for (const auto& [name, view] : {std::pair("o", call.o), std::pair("d_o", call.d_o)})
      said[name] = tensor(view, call.batch, call.num_heads_q, call.seqlen_q, call.head_dim);
    said["lse"] = {{"data", address(call.lse)},
                   {"shape", {call.batch, call.num_heads_q, call.seqlen_q}},
                   {"strides", {int64_t(call.num_heads_q) * call.seqlen_q, call.seqlen_q, 1}}};
  }
  return said;
}

// A step by name, and the tensors prepared for it. Throws std::invalid_argument when it cannot run.
const Step& prepared(Case& made, const char* name) {
  const StepChoice choice = find_steps(name).front();
  const Step* const step = choice.built_for(made.backend.kind());
  if (step == nullptr) throw std::invalid_argument(std::string(name) + " is not built for this backend");
  made.tensors.prepare_for(*step, choice.configuration);
  if (const std::string why = made.backend.refusal(*step, made.tensors.call()); !why.empty())
    throw std::invalid_argument(why);
  return *step;
}

json verdict(const Validation& v, const Problem& problem) {
  return {{"status", v.pass ? "pass" : "fail"}, {"message", v.message}, {"validation", to_json(v, problem)}};
}

// What calls back says with anything but 0 that it has failed: it knows itself why.
std::function<void()> checked(int (*call)()) {
  return [call] {
    if (call() != 0) throw std::runtime_error("the call failed");
  };
}

json timer_of(Thing& owner, Backend& backend, std::unique_ptr<Timer> timer) {
  if (timer == nullptr) return {{"timer", 0}};
  const json method = timer->method();
  return {{"timer", number_of(std::make_shared<LabTimer>(owner, backend, std::move(timer)))},
          {"method", method}};
}

Samples samples_of(const json& record) { return {record.at("ms"), record.at("clocks"), record.at("method")}; }

}  // namespace

extern "C" {

const char* lab_open(const char* which, int device) {
  return answer([&] {
    const auto lab = std::make_shared<Lab>();
    std::string why;
    const bool is_cuda = std::string(which) == "cuda";
    if (is_cuda)
      lab->backend = make_cuda_backend(why, device);
    else
      lab->backend = make_emulator_backend();
    if (lab->backend == nullptr) throw std::runtime_error(why);
    const Backend& backend = *lab->backend;
    const BuildInfo& build = build_info();
    json said = {{"device", backend.device()},
                 {"stream", address(is_cuda ? lab->backend->gpu().stream() : nullptr)},
                 {"commit", build.commit.empty() ? json(nullptr) : json(build.commit)},
                 {"dirty", build.dirty ? json(*build.dirty) : json(nullptr)},
                 {"build", to_json(build)},
                 {"gates", gates_by_type()},
                 {"steps", json::array()}};
    for (const StepChoice& step : all_steps()) {
      if (step.built_for(backend.kind()) != nullptr) said["steps"].push_back(step.name);
    }
    said["lab"] = number_of(lab);
    return said;
  });
}

void lab_close(Thing* thing) { const std::shared_ptr<Thing> last = std::move(thing->held); }

// The problems that the words of `flashsteps run` describe: see its --help.
const char* lab_problems(const char* words) {
  return answer([&] {
    const std::vector<std::string> all = json::parse(words);
    std::vector<const char*> arguments{"flashsteps", "run"};
    for (const std::string& word : all) arguments.push_back(word.c_str());
    const Options options = parse_options(int(arguments.size()), arguments.data(), true).value();
    std::vector<Problem> problems = options.problems;
    if (problems.empty()) problems = default_problems(BackendKind::kCuda);
    json said = json::array();
    for (const Problem& problem : problems) said.push_back(to_json(problem));
    return json{{"problems", said}};
  });
}

const char* lab_order(int contenders, int round) {
  return answer([&] { return json{{"order", order_of_round(size_t(contenders), round)}}; });
}

// A problem with the inputs that it names; or, unless `q` is null, with inputs of one's own, which are
// copied: contiguous on the host, [batch, heads, rows, head_dim].
const char* lab_problem(Lab* lab, const char* problem, void* q, void* k, void* v, const int* kv_lengths) {
  return answer([&] {
    const Problem p = problem_from_json(json::parse(problem));
    if (q == nullptr) return described(std::make_shared<Case>(*lab, workload_of(*lab->backend, p)));
    if (p.backward) throw std::invalid_argument("a backward pass has no inputs of one's own here");
    AttentionCall call = shape_of_call(p);
    call.q = bhsd_view(q, p.num_heads_q, p.seqlen_q, p.head_dim);
    call.k = bhsd_view(k, p.num_heads_kv, p.seqlen_kv, p.head_dim);
    call.v = bhsd_view(v, p.num_heads_kv, p.seqlen_kv, p.head_dim);
    call.kv_lengths = kv_lengths;
    float unused;
    call.lse = p.lse ? &unused : nullptr;
    const Problem given = problem_of(call);
    return described(std::make_shared<Case>(*lab, Workload(given, call)));
  });
}

// What the rule for the default (default_step.h) knows of a problem on a card.
const char* lab_estimates(const char* problem, int num_sms, double memory_bytes_per_us, double l2_bytes) {
  return answer([&] {
    json said = json::array();
    const AttentionCall call = shape_of_call(problem_from_json(json::parse(problem)));
    for (const Estimate& e : estimates(call, {num_sms, memory_bytes_per_us, l2_bytes})) {
      const Costs& c = e.costs;
      const Work& w = e.work;
      said.push_back({{"step", name_of(e.step)},
                      {"costs", {c.launch, c.tile_and_keys, c.tile, c.sharing, c.reading}},
                      {"work", {1, w.tiles_and_keys, w.tiles, w.sharing, w.reading}}});
    }
    return json{{"estimates", said}};
  });
}

// Runs a step as `flashsteps check` does, and judges it. `modes` are the emulator's, as in a request: jobs.h.
const char* lab_check(Case* made, const char* step_name, const char* modes) {
  return answer([&]() -> json {
    const bool is_trusted = std::string(step_name) == trusted_step(made->workload.problem());
    const Outputs* const trusted = is_trusted ? nullptr : made->whole_output();
    try {
      const Step& step = prepared(*made, step_name);
      json said = verdict(validate(made->backend, step, made->tensors, made->workload, made->rows(), trusted,
                                   json::parse(modes)),
                          made->workload.problem());
      if (step.info.varies != nullptr) said["varies"] = step.info.varies;
      return said;
    } catch (const std::invalid_argument& refused) {
      return {{"status", "skip"}, {"message", refused.what()}};
    }
  });
}

// Runs a step once; o and lse, or dq, dk and dv, go to contiguous arrays on the host.
const char* lab_outputs(Case* made, const char* step_name, char* const* arrays, float* lse) {
  return answer([&] {
    const Step& step = prepared(*made, step_name);
    const Problem& p = made->workload.problem();
    if (made->backend.emulator() != nullptr) made->backend.emulator()->set_mode({});
    made->tensors.poison(Poison::kNan);
    made->backend.run(step, made->tensors.call());
    const Outputs outputs = made->tensors.download_outputs();
    const size_t bytes = p.head_dim * element_bytes(output_type(p.dtype));
    for (size_t output = 0; output < p.output_names().size(); ++output) {
      char* to = arrays[output];
      for (const RowId row : p.rows_of_output(int(output))) {
        std::memcpy(to, outputs.row(row), bytes);
        to += bytes;
      }
    }
    if (p.backward) return json::object();
    for (const RowId row : p.rows()) *lse++ = outputs.lse_at(row);
    return json::object();
  });
}

// Judges what another kernel has left for this problem: contiguous arrays on the device of the lab, of o or,
// of a backward pass, of dq, dk and dv. Without lse, it is somebody's who makes his own of rows that see no
// key: these are not judged.
const char* lab_judge(Case* made, const void* const* outputs, const void* lse, bool runs_identical) {
  return answer([&] {
    const std::string changed = made->tensors.changed_input();
    const Outputs* const trusted = made->whole_output();
    Problem p = made->workload.problem();
    if (!p.backward) p.lse = lse != nullptr;
    std::vector<std::vector<char>> host;
    for (size_t output = 0; output < p.output_names().size(); ++output) {
      const size_t elements = p.rows_of_output(int(output)).size() * p.head_dim;
      host.emplace_back(elements * element_bytes(output_type(p.dtype)));
      made->backend.download(host.back().data(), outputs[output], host.back().size());
    }
    std::vector<float> host_lse(lse != nullptr ? p.num_rows() : 0);
    if (lse != nullptr) made->backend.download(host_lse.data(), lse, host_lse.size() * sizeof(float));
    AttentionCall call = shape_of_call(p);
    if (p.backward) {
      call.dq = bhsd_view(host[0].data(), p.num_heads_q, p.seqlen_q, p.head_dim);
      call.dk = bhsd_view(host[1].data(), p.num_heads_kv, p.seqlen_kv, p.head_dim);
      call.dv = bhsd_view(host[2].data(), p.num_heads_kv, p.seqlen_kv, p.head_dim);
    } else {
      call.o = bhsd_view(host[0].data(), p.num_heads_q, p.seqlen_q, p.head_dim);
      call.lse = host_lse.data();
    }
    Outputs left(p, call);
    const std::vector<int>& lengths = made->workload.kv_lengths();
    for (const RowId row : p.rows()) {
      if (lse == nullptr && p.visible_keys(row.i, lengths[row.b]) == 0) left.zero_row(row);
    }
    const std::string difference = trusted != nullptr
                                       ? compare_outputs(made->workload, made->rows(), left, *trusted,
                                                         std::string(trusted_step(p)) + "'s")
                                       : "";
    Validation v = judge(made->workload, made->rows(), std::move(left), runs_identical && changed.empty());
    v.runs_identical = runs_identical;
    v.compared_with_v01 = trusted != nullptr;
    for (const std::string& why : {difference, changed}) {
      if (why.empty()) continue;
      v.pass = false;
      add_line(v.message, why);
    }
    return verdict(v, made->workload.problem());
  });
}

// Times what `launch` puts on the lab's stream. `record` has so many launches recorded, where it says 0, and
// `replay` puts these on the stream; both may be null.
const char* lab_timer(Lab* lab, int (*launch)(), int (*record)(int launches), int (*replay)(), bool cold_l2) {
  return answer([&] {
    TimedCall call{checked(launch), {}};
    if (record != nullptr)
      call.record = [record, replay](int launches) {
        return record(launches) == 0 ? checked(replay) : std::function<void()>{};
      };
    return timer_of(*lab, *lab->backend, lab->backend->gpu().make_timer(call, cold_l2));
  });
}

const char* lab_step_timer(Case* made, const char* step_name, bool cold_l2) {
  return answer([&] {
    const Step& step = prepared(*made, step_name);
    return timer_of(*made, made->backend,
                    made->backend.gpu().make_timer(step, made->tensors.call(), cold_l2));
  });
}

// Of one of kCeilings, or kReadKv of so many bytes. {"timer": 0} when the device does not have it.
const char* lab_ceiling(Lab* lab, const char* name, size_t bytes) {
  return answer([&] {
    return timer_of(*lab, *lab->backend,
                    std::string(name) == kReadKv ? lab->backend->gpu().make_cold_read(bytes)
                                                 : lab->backend->gpu().make_ceiling(name));
  });
}

const char* lab_sample(LabTimer* of) {
  return answer([&] {
    int clock = 0;
    const double ms = of->timer->sample([&] { clock = of->backend.gpu().sm_clock_mhz(); });
    return json{{"ms", ms}, {"sm_clock_mhz", clock}};
  });
}

// Of so many launches on any stream of this device, between two events.
const char* lab_time(Lab* lab, void* stream, int (*launch)(), int launches) {
  return answer([&] {
    return json{{"ms", lab->backend->gpu().time_launches(stream, checked(launch), launches)}};
  });
}

// What results files say of samples: {"problem", "ceilings": {name: samples}, "contenders": {name:
// samples}}, with samples as {"ms": [], "clocks": [], "method": {}}.
const char* lab_records(const char* text) {
  return answer([&] {
    const json request = json::parse(text);
    const Problem problem = problem_from_json(request.at("problem"));
    std::map<std::string, Samples> samples_of_ceilings;
    for (const auto& [name, samples] : request.at("ceilings").items())
      samples_of_ceilings[name] = samples_of(samples);
    const Ceilings ceilings = ceilings_of(samples_of_ceilings);
    json said = {{"ceilings", ceilings}, {"contenders", json::object()}};
    for (const auto& [name, samples] : request.at("contenders").items()) {
      const Step* const step = find_step(name, BackendKind::kCuda);
      said["contenders"][name] = timing_of(samples_of(samples), problem, ceilings,
                                           step == nullptr ? "" : limit_of(step->info, problem));
    }
    return said;
  });
}

}  // extern "C"
}  // namespace flashsteps
