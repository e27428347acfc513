#include "harness/judge/validate.h"

#include <cmath>
#include <iterator>

#include "harness/base/heartbeat.h"
#include "harness/base/text.h"
#include "harness/judge/gates.h"

namespace flashsteps {
namespace {

std::string disagreement_at(const std::string& where, Poison poison, bool by_memory) {
  const std::string what = "two runs on the same inputs differ, first at " + where + "\n";
  if (!by_memory) return what + "hint: a race: the result depends on the order of CTAs, threads or copies";
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
  const Gates g = gates(problem);
  json record = {{"nrmse", number(v.nrmse)},
                 {"worst_row_nrmse", number(v.worst_row_nrmse)},
                 {"max_abs", number(v.max_abs)},
                 {"lse_max_abs", v.lse_max_abs ? number(*v.lse_max_abs) : json(nullptr)},
                 {"nonfinite", v.nonfinite},
                 {"rows_checked", v.rows_checked},
                 {"gate_nrmse", g.nrmse},
                 {"gate_row", v.gate_row},
                 {"runs_identical", v.runs_identical}};
  if (has_roundings(problem))
    record.update({{"worst_element", number(v.worst_element)}, {"gate_element", v.gate_element}});
  if (v.bias) record.update({{"bias", number(*v.bias)}, {"gate_bias", v.gate_bias}});
  if (v.quantization_nrmse) record["quantization_nrmse"] = *v.quantization_nrmse;
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
  std::string disagreement, damage, changed_input;
  for (size_t run = 0; run < modes.size(); ++run) {
    const Poison poison = kPoisons[run % std::size(kPoisons)];
    Outputs outputs = outputs_of(modes[run], poison);
    if (modes[run].count) counters = backend.emulator()->counters();
    if (changed_input.empty()) changed_input = tensors.changed_input();
    if (!first) {
      first = std::move(outputs);
      continue;
    }
    if (disagreement.empty()) {
      if (const std::optional<RowId> row = first_difference(w.problem(), outputs, *first)) {
        // What differed: what memory held, or the order of threads and copies as well?
        const bool by_memory =
            first_difference(w.problem(), outputs_of(modes[0], poison), *first).has_value();
        disagreement = disagreement_at(place(w.problem(), *row), poison, by_memory);
      }
    }
    if (damage.empty()) damage = outputs.damage();
  }
  const std::string difference = trusted != nullptr ? compare_outputs(w, *first, *trusted) : "";
  Validation v = judge(w, reference, std::move(*first), disagreement.empty() && changed_input.empty());
  const auto fail = [&](const std::string& why) {
    if (why.empty()) return;
    v.pass = false;
    add_line(v.message, why);
  };
  v.counters = std::move(counters);
  v.runs_identical = disagreement.empty();
  v.compared_with_v01 = trusted != nullptr;
  fail(difference);
  fail(disagreement);
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
    if (const auto row = first_difference(problem, both[i]->download_outputs(), alone[i]))
      found =
          "while another call of the step runs on another stream, the result differs, first at " +
          place(problem, *row) +
          "\nhint: does the step keep something for one call at a time, as in a variable that is declared "
          "__device__ or static?";
  });
  return found;
}

}  // namespace flashsteps
