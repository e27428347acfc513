// The mutants' problems and the messages that must name what is wrong, for both backends.
#pragma once

#include <algorithm>
#include <string>

#include "harness/src/backend.h"
#include "harness/src/device_tensors.h"
#include "harness/src/reference.h"
#include "harness/src/validate.h"
#include "harness/tests/catch.h"
#include "harness/tests/kernels/mutations.h"

namespace flashsteps {

struct MutantCase {
  mutations::Mutation mutation;
  bool causal;
  KvLengths kv_lengths;
  const char* message;               // a part of the message that the rejection must have
  Inputs only_on = Inputs::kNormal;  // kNormal: rejected on normal and on sharp inputs alike
  Layout layout = Layout::kBhsd;
  double scale = 0;            // 0: the default
  bool emulator_only = false;  // a GPU's shared memory cannot be filled before a kernel starts
};

// At least three tiles of keys, a ragged end, several heads and batches.
inline Problem mutant_problem(const MutantCase& c, DType dtype, Inputs inputs) {
  Problem p;
  p.batch = 2;
  p.num_heads_q = 2;
  p.num_heads_kv = 1;
  p.seqlen_q = 150;
  p.seqlen_kv = 200;
  p.dtype = dtype;
  p.inputs = inputs;
  p.causal = c.causal;
  p.kv_lengths = c.kv_lengths;
  p.layout = c.layout;
  p.given_scale = c.scale;
  return p;
}

inline const MutantCase kMutantCases[] = {
    {mutations::kQkSkipped, false, KvLengths::kFull, "rows are wrong"},
    {mutations::kKTransposed, false, KvLengths::kFull, "rows are wrong"},
    {mutations::kONotRescaled, false, KvLengths::kFull, "every lse is right"},
    {mutations::kSumNotRescaled, false, KvLengths::kFull, "rows are wrong"},
    {mutations::kMaskOffByOne, true, KvLengths::kFull, "rows are wrong"},
    {mutations::kLastTileDropped, false, KvLengths::kFull, "rows are wrong"},
    {mutations::kOneRowWrong, false, KvLengths::kFull, "1 of 600 checked rows"},
    {mutations::kTailNotMasked, false, KvLengths::kFull, "rows are wrong"},
    {mutations::kRowNeverWritten, false, KvLengths::kFull, "1 of 600 row(s) of o were never written"},
    {mutations::kWritesNan, false, KvLengths::kFull, "1 element(s) of o are NaN"},
    {mutations::kWritesInf, false, KvLengths::kFull, "1 element(s) of o are Inf"},
    {mutations::kPastTheEnd, false, KvLengths::kFull, "past its end"},
    {mutations::kBeforeTheStart, false, KvLengths::kFull, "before its first one"},
    {mutations::kInputModified, false, KvLengths::kFull, "q was modified"},
    {mutations::kPaddingRead, false, KvLengths::kRandom, "are NaN"},
    {mutations::kEmptyRowNotZero, false, KvLengths::kZeros, "must be -inf"},
    {mutations::kLseInLog2, false, KvLengths::kFull, "log2 instead of natural"},
    {mutations::kNotDeterministic, false, KvLengths::kFull, "two runs on the same inputs differ"},
    // What N(0, 1) inputs cannot show: without a maximum nothing overflows while scores are small.
    {mutations::kNoMax, false, KvLengths::kFull, "o are", Inputs::kShifted},
    {mutations::kMaxStartsAtZero, true, KvLengths::kFull, "lse", Inputs::kShifted},
    {mutations::kMaxOfFirstTileOnly, false, KvLengths::kFull, "o are", Inputs::kShifted},
    {mutations::kVUsesKStrides, false, KvLengths::kFull, "rows are wrong", Inputs::kNormal, Layout::kOdd},
    // What a NaN in memory hides.
    {mutations::kOutputKept, false, KvLengths::kFull, "memory that no step may read"},
    {mutations::kLseKept, false, KvLengths::kFull, "memory that no step may read"},
    {mutations::kPaddingInMaximum, false, KvLengths::kRandom, "memory that no step may read"},
    {mutations::kGapInMaximum, false, KvLengths::kFull, "memory that no step may read", Inputs::kNormal,
     Layout::kGapped},
    {mutations::kMaxFromShared, false, KvLengths::kFull, "memory that no step may read", Inputs::kNormal,
     Layout::kBhsd, 0, /*emulator_only=*/true},
    {mutations::kScaleIgnored, false, KvLengths::kFull, "softmax_scale", Inputs::kNormal, Layout::kBhsd,
     0.05},
};

inline Validation validate_mutant(Backend& backend, mutations::Mutation mutation, const Problem& problem) {
  const Step* step = nullptr;
  for (const Step& candidate : registered_steps()) {
    if (candidate.backend == backend.kind() && std::string(candidate.name) == mutations::kNames[mutation])
      step = &candidate;
  }
  REQUIRE(step != nullptr);
  Workload workload(problem);
  DeviceTensors tensors(backend, workload);
  std::vector<nlohmann::json> counters;
  return validate(backend, *step, tensors, workload, reference_rows(workload, choose_rows(problem)), nullptr,
                  {EmulatorMode{}, EmulatorMode{}}, counters);
}

inline void check_mutants(Backend& backend) {
  // Each mutation but the control has its case: a new one cannot be forgotten here.
  CHECK(std::size(kMutantCases) == mutations::kNumMutations - 1);
  for (const MutantCase& c : kMutantCases) {
    if (c.emulator_only && backend.kind() != BackendKind::kEmulator) continue;
    for (const DType dtype : {DType::kFp16, DType::kBf16}) {
      const std::vector<Inputs> all = c.only_on == Inputs::kNormal
                                          ? std::vector{Inputs::kNormal, Inputs::kSharp}
                                          : std::vector{c.only_on};
      for (const Inputs inputs : all) {
        const Problem problem = mutant_problem(c, dtype, inputs);
        INFO(mutations::kNames[c.mutation] << " on " << problem.label());
        const Validation control = validate_mutant(backend, mutations::kNone, problem);
        INFO("control: " << control.message);
        CHECK(control.pass);
        const Validation v = validate_mutant(backend, c.mutation, problem);
        INFO("message: " << v.message);
        CHECK_FALSE(v.pass);
        CHECK(v.message.find(c.message) != std::string::npos);
      }
    }
  }
}

}  // namespace flashsteps
