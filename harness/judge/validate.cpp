#include "harness/judge/validate.h"

#include <cmath>
#include <iterator>
#include <stdexcept>

#include "harness/base/element.h"
#include "harness/base/heartbeat.h"
#include "harness/base/text.h"
#include "harness/judge/gates.h"

namespace flashsteps {
namespace {

std::string disagreement_at(const std::string& where, Poison poison, bool by_memory) {
  const std::string what = "two runs on the same inputs differ, first at " + where + "\n";
  if (!by_memory)
    return what +
           "hint: a race, or sums in the order in which CTAs, threads or copies come (a step says so: "
           "StepInfo::varies)";
  return what +
         "hint: the result depends on memory that no step may read. It was filled with NaN before the "
         "first run and with " +
         name(poison) +
         " before the other: outputs, keys at or beyond kv_len, gaps between rows, shared memory or local "
         "variables that nobody wrote. fmaxf and fminf hide a NaN. If every pair of runs differs, it is a "
         "race";
}

}  // namespace

json to_json(const Validation& v, const Problem& problem) {
  const auto number = [](double x) { return std::isfinite(x) ? json(x) : json(nullptr); };
  json record = {{"nrmse", number(v.nrmse)},
                 {"worst_row_nrmse", number(v.worst_row_nrmse)},
                 {"max_abs", number(v.max_abs)},
                 {"lse_max_abs", v.lse_max_abs ? number(*v.lse_max_abs) : json(nullptr)},
                 {"nonfinite", v.nonfinite},
                 {"rows_checked", v.rows_checked},
                 {"gate_nrmse", v.gate_nrmse},
                 {"gate_row", v.gate_row},
                 {"runs_identical", v.runs_identical}};
  if (has_roundings(problem))
    record.update({{"worst_element", number(v.worst_element)}, {"gate_element", v.gate_element}});
  if (v.bias) record.update({{"bias", number(*v.bias)}, {"gate_bias", v.gate_bias}});
  if (v.quantization_nrmse) record["quantization_nrmse"] = *v.quantization_nrmse;
  for (const auto& [output, nrmse] : v.nrmse_of) {
    if (problem.backward) record["nrmse_of"][output] = number(nrmse);
  }
  if (v.compared_with_v01) record["compared_with_v01"] = true;
  return record;
}

json gates_by_type() {
  json all;
  for (const auto& [text, dtype] : kDTypeNames) {
    const Gates gate = gates(dtype);
    all[text] = {{"nrmse", gate.nrmse}, {"row", gate.row_nrmse}, {"lse", gate.lse_abs}};
  }
  return all;
}

Workload workload_of(Backend& backend, const Problem& problem) {
  Workload workload(problem);
  if (!problem.backward) return workload;
  Problem forward = problem;
  forward.backward = false;
  const Step* const step = find_step(kTrustedStep, backend.kind());
  if (backend.emulator() != nullptr || is_cheap_on_the_cpu(forward)) {
    set_forward_results(workload);
  } else if (step == nullptr) {
    throw std::runtime_error("o and lse of so large a problem come from " + std::string(kTrustedStep) +
                             " on the GPU, which is not in this program");
  } else {
    Workload inputs(forward);
    DeviceTensors tensors(backend, inputs);
    tensors.prepare_for(*step, AttentionCall::kChosenByStep);
    backend.run(*step, tensors.call());
    const Outputs outputs = tensors.download_outputs();
    std::vector<float> o(problem.head_dim);
    for (const RowId row : problem.rows()) {
      load_elements(problem.dtype, outputs.row(row), problem.head_dim, o.data());
      workload.set_forward_result(row, o.data(), outputs.lse_at(row));
    }
  }
  return workload;
}

Validation validate(Backend& backend, const Step& step, DeviceTensors& tensors, const Workload& w,
                    const std::vector<ReferenceRow>& reference, const Outputs* trusted,
                    const std::vector<EmulatorMode>& modes) {
  const auto outputs_of = [&](EmulatorMode mode, Poison poison) {
    mode.poison = poison;
    if (backend.emulator() != nullptr) backend.emulator()->set_mode(mode);
    tensors.poison(poison);
    backend.run(step, tensors.call());
    heartbeat();
    return tensors.download_outputs();
  };
  // The runs take turns at them.
  constexpr Poison kPoisons[] = {Poison::kNan, Poison::kLarge, Poison::kSmall};
  std::optional<Outputs> first;
  std::vector<Counters> counters;
  std::string disagreement, another_run, damage, changed_input;
  bool runs_identical = true;
  for (size_t run = 0; run < modes.size(); ++run) {
    const Poison poison = kPoisons[run % std::size(kPoisons)];
    Outputs outputs = outputs_of(modes[run], poison);
    if (modes[run].count) counters = backend.emulator()->counters();
    if (changed_input.empty()) changed_input = tensors.changed_input();
    if (!first) {
      first = std::move(outputs);
      continue;
    }
    const std::optional<RowId> difference = first_difference(w.problem(), outputs, *first);
    runs_identical = runs_identical && !difference;
    if (difference && step.info.varies != nullptr && another_run.empty()) {
      another_run = compare_outputs(w, reference, outputs, *first, "the first run's");
      if (another_run.empty()) another_run = judge(w, reference, outputs).message;
      if (!another_run.empty()) another_run = "in another run: " + another_run;
    } else if (difference && step.info.varies == nullptr && disagreement.empty()) {
      // What differed: what memory held, or the order of threads and copies as well?
      const bool by_memory = first_difference(w.problem(), outputs_of(modes[0], poison), *first).has_value();
      disagreement = disagreement_at(place(w.problem(), *difference), poison, by_memory);
    }
    if (damage.empty()) damage = outputs.damage();
  }
  const std::string difference =
      trusted != nullptr
          ? compare_outputs(w, reference, *first, *trusted, trusted_step(w.problem()) + std::string("'s"))
          : "";
  Validation v = judge(w, reference, std::move(*first), disagreement.empty() && changed_input.empty());
  const auto fail = [&](const std::string& why) {
    if (why.empty()) return;
    v.pass = false;
    add_line(v.message, why);
  };
  v.counters = std::move(counters);
  v.runs_identical = runs_identical;
  v.compared_with_v01 = trusted != nullptr;
  fail(difference);
  fail(disagreement);
  fail(another_run);
  // The judge has said it of the first run.
  if (v.message.find(damage) == std::string::npos) fail(damage);
  fail(changed_input);
  return v;
}

std::string disturbance(GpuBackend& gpu, const Step& step, DeviceTensors& tensors, DeviceTensors& others) {
  DeviceTensors* const both[] = {&tensors, &others};
  std::vector<AttentionCall> calls;
  std::vector<Outputs> alone;
  for (DeviceTensors* const each : both) {
    each->poison(Poison::kNan);
    calls.push_back(each->call());
    gpu.run(step, calls.back());
    alone.push_back(each->download_outputs());
  }
  std::string found;
  gpu.run_together(step, calls, [&](size_t i) {
    if (!found.empty()) return;
    const Problem& problem = both[i]->problem();
    const Outputs now = both[i]->download_outputs();
    const auto row = first_difference(problem, now, alone[i]);
    if (!row) return;
    if (step.info.varies != nullptr &&
        compare_outputs(both[i]->workload(), {}, now, alone[i], "that of the call alone").empty())
      return;
    found = "while another call of the step runs on another stream, the result differs, first at " +
            place(problem, *row) +
            "\nhint: does the step keep something for one call at a time, as in a variable that is declared "
            "__device__ or static?";
  });
  return found;
}

}  // namespace flashsteps
