// The mutants' problems and the messages that must name what is wrong, for both backends.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "harness/base/element.h"
#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/judge/reference.h"
#include "harness/judge/validate.h"
#include "harness/problem/problem.h"
#include "harness/tests/kernels/mutations.h"
#include "harness/tests/support.h"

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
  Problem p{.batch = 2,
            .num_heads_q = 2,
            .num_heads_kv = 1,
            .seqlen_q = 150,
            .seqlen_kv = 200,
            .dtype = dtype,
            .causal = c.causal,
            .kv_lengths = c.kv_lengths,
            .layout = c.layout,
            .inputs = inputs,
            .given_scale = c.scale};
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
    {mutations::kOTruncated, false, KvLengths::kFull, "is P or o truncated"},
    {mutations::kScaleIgnored, false, KvLengths::kFull, "softmax_scale", Inputs::kNormal, Layout::kBhsd,
     0.05},
};

inline Validation validate_on(Backend& backend, const char* name, Workload& workload,
                              const std::vector<EmulatorMode>& modes = {{}, {}}) {
  const Step* const step = find_step(name, backend.kind());
  REQUIRE(step != nullptr);
  DeviceTensors tensors(backend, workload);
  tensors.prepare_for(*step, AttentionCall::kChosenByStep);
  return validate(backend, *step, tensors, workload,
                  reference_rows(workload, choose_rows(workload.problem())), nullptr, modes);
}

inline Validation validate_named(Backend& backend, const char* name, const Problem& problem,
                                 const std::vector<EmulatorMode>& modes = {{}, {}}) {
  Workload workload = workload_of(backend, problem);
  return validate_on(backend, name, workload, modes);
}

inline Validation validate_mutant(Backend& backend, mutations::Mutation mutation, const Problem& problem) {
  return validate_named(backend, mutations::kNames[mutation], problem);
}

// What a step does with its workspace and its counters shows nowhere else.
inline void check_workspaces(Backend& backend) {
  const Problem problem = mutant_problem({}, DType::kFp16, Inputs::kNormal);
  const EmulatorMode hostile{.async = "random", .hostile = true, .race_detector = true};
  for (const auto& [name, message] :
       {std::pair{"counting", ""},
        {"counting_not_left_zero", "the counters were not left zero"},
        {"counting_past_the_counters", "something was written beyond the counters"},
        {"counting_past_the_workspace", "something was written beyond the workspace"}}) {
    for (const std::vector<EmulatorMode>& modes :
         {std::vector{EmulatorMode{}, EmulatorMode{}}, std::vector{hostile, hostile}}) {
      const Validation v = validate_named(backend, name, problem, modes);
      INFO(name);
      CHECK(v.message == message);
      CHECK(v.pass == v.message.empty());
    }
  }

  // In a benchmark steps take turns, each with a call that was prepared once.
  Problem bf16 = problem;
  bf16.dtype = DType::kBf16;
  Workload workload(bf16);
  DeviceTensors tensors(backend, workload);
  tensors.prepare_for(*find_step("counting", backend.kind()), AttentionCall::kChosenByStep);
  const AttentionCall counting = tensors.call();
  const auto counters_are_zero = [&] {
    std::vector<unsigned> counters(kNumCounters, 1);
    backend.download(counters.data(), counting.counters, kCounterBytes);
    return counters == std::vector<unsigned>(kNumCounters);
  };
  CHECK(counters_are_zero());
  tensors.poison(Poison::kLarge);
  CHECK(counters_are_zero());
  Poison workspace{};
  backend.download(&workspace, counting.workspace, sizeof workspace);
  CHECK(workspace == Poison::kLarge);
  tensors.prepare_for(*find_step("split", backend.kind()), AttentionCall::kChosenByStep);
  CHECK(tensors.call().counters == nullptr);
  tensors.poison(Poison::kSmall);
  CHECK(counters_are_zero());
}

// Mistakes that show in few problems only: the covering sample, as `check` takes it, must have one where they
// do.
struct SampleCase {
  mutations::Mutation mutation;
  bool (*shows)(const Problem& p);  // whether it is worth a run there
  bool emulator_only = false;       // a wild address ends a GPU's context
};

inline const SampleCase kSampleCases[] = {
    {mutations::kBatchesFrom2, [](const Problem& p) { return p.batch > 2; }},
    {mutations::kHeadsFrom8, [](const Problem& p) { return p.num_heads_q > 8; }},
    {mutations::kGroupOf2, [](const Problem& p) { return p.num_heads_q == 2 * p.num_heads_kv; }},
    {mutations::kGroupAbove4,
     [](const Problem& p) { return p.num_heads_q > 4 * p.num_heads_kv && p.num_heads_kv > 1; }},
    {mutations::kRowsFrom320, [](const Problem& p) { return p.seqlen_q > 320; }},
    {mutations::kKeysFrom1024, [](const Problem& p) { return p.seqlen_kv > 1024; }},
    {mutations::kRoundBy128, [](const Problem& p) { return p.seqlen_kv % 128 == 0; }},
    {mutations::kRoundBy256, [](const Problem& p) { return p.seqlen_kv % 256 == 0; }},
    {mutations::kStaleFromTile13, [](const Problem& p) { return p.seqlen_kv > 13 * 64; }},
    {mutations::kLseStride, [](const Problem& p) { return p.batch > 2 && p.num_heads_kv < p.num_heads_q; }},
    {mutations::kLseAlways, [](const Problem& p) { return !p.lse; }, /*emulator_only=*/true},
    {mutations::k32BitOffsets, [](const Problem& p) { return p.layout == Layout::kFar; },
     /*emulator_only=*/true},
    {mutations::kMaxStartsAt300, [](const Problem& p) { return p.inputs == Inputs::kOffset; }},
    {mutations::kScoresClamped, [](const Problem& p) { return p.inputs == Inputs::kOffset; }},
    {mutations::kScoresClampedAbove, [](const Problem& p) { return p.inputs == Inputs::kOffset; }},
    {mutations::kElementOff, [](const Problem& p) { return p.dtype == DType::kFp16; }},
    {mutations::kPTruncated,
     [](const Problem& p) { return p.dtype == DType::kFp16 && p.inputs == Inputs::kNormal; }},
    {mutations::kPTruncated,
     [](const Problem& p) { return p.dtype == DType::kBf16 && p.inputs == Inputs::kNormal; }},
    {mutations::kOTruncated, [](const Problem& p) { return p.dtype == DType::kFp16; }},
    {mutations::kOTruncated, [](const Problem& p) { return p.dtype == DType::kBf16; }},
    {mutations::kScaleIgnored, [](const Problem& p) { return p.given_scale != 0; }},
    {mutations::kOutputKept, [](const Problem&) { return true; }},
    {mutations::kLseKept, [](const Problem& p) { return p.lse; }},
    {mutations::kPaddingInMaximum, [](const Problem& p) { return p.kv_lengths == KvLengths::kRandom; }},
    {mutations::kGapInMaximum, [](const Problem& p) { return p.layout == Layout::kGapped; }},
    {mutations::kMaxFromShared, [](const Problem&) { return true; }, /*emulator_only=*/true},
    {mutations::kTableOfBatch0, [](const Problem& p) { return p.page_size != 0 && p.batch > 1; },
     /*emulator_only=*/true},
    {mutations::kPagesInOrder, [](const Problem& p) { return p.page_size != 0; }},
    {mutations::kFirstPageOnly, [](const Problem& p) { return p.page_size != 0; }},
    {mutations::kTableOneBeyond,
     [](const Problem& p) { return p.page_size != 0 && p.kv_lengths != KvLengths::kFull; },
     /*emulator_only=*/true},
    {mutations::kSlotInMaximum, [](const Problem& p) { return p.page_size > 1; }},
    {mutations::kBatchesFrom32, [](const Problem& p) { return p.batch > 32; }},
    {mutations::kGroupFrom16, [](const Problem& p) { return p.num_heads_q > 16 * p.num_heads_kv; }},
    {mutations::kGroupNoPowerOf2, [](const Problem& p) { return p.num_heads_q == 3 * p.num_heads_kv; }},
    {mutations::kKeysFrom16384, [](const Problem& p) { return p.seqlen_kv > 16384; }},
    {mutations::kRowsFrom2048, [](const Problem& p) { return p.seqlen_q > 2048; }},
    {mutations::kTableAsWideAsNeeded, [](const Problem& p) { return p.page_size != 0 && p.batch > 1; },
     /*emulator_only=*/true},
    {mutations::kPagesOf2, [](const Problem& p) { return p.page_size == 2; }},
    {mutations::kPagesOf4, [](const Problem& p) { return p.page_size == 4; }},
    {mutations::kPagesOf8, [](const Problem& p) { return p.page_size == 8; }},
    {mutations::kPagesOf32, [](const Problem& p) { return p.page_size == 32; }},
    {mutations::kPagesOf512, [](const Problem& p) { return p.page_size == 512; }},
    {mutations::kGrowthOf16, [](const Problem& p) { return p.inputs == Inputs::kLeaps; }},
    {mutations::kGrowthOf99, [](const Problem& p) { return p.inputs == Inputs::kLeaps; }},
    {mutations::kGrowthOf127,
     [](const Problem& p) { return p.inputs == Inputs::kLeaps && p.dtype == DType::kBf16; }},
    {mutations::kGrowthInUpperRows,
     [](const Problem& p) { return p.inputs == Inputs::kLeaps && p.dtype == DType::kFp16; }},
    {mutations::kGrowthInUpperRows,
     [](const Problem& p) { return p.inputs == Inputs::kLeaps && p.dtype == DType::kBf16; }},
    {mutations::kGrowthInLowerRows,
     [](const Problem& p) { return p.inputs == Inputs::kLeaps && p.dtype == DType::kFp16; }},
    {mutations::kGrowthInLowerRows,
     [](const Problem& p) { return p.inputs == Inputs::kLeaps && p.dtype == DType::kBf16; }},
    {mutations::kGrowthInOtherRows, [](const Problem& p) { return p.inputs == Inputs::kLeaps; }},
    {mutations::kEarlierForgotten, [](const Problem& p) { return p.earlier; }},
    {mutations::kEarlierLseKept, [](const Problem& p) { return p.earlier; }},
    {mutations::kEarlierOfNoKey, [](const Problem& p) { return p.earlier; }},
    {mutations::kEarlierRows, [](const Problem& p) { return p.earlier && p.num_heads_q > 1; }},
    {mutations::kEarlierNotInO, [](const Problem& p) { return p.earlier; }},
    {mutations::kEarlierSpareRow, [](const Problem& p) { return p.earlier; }},
    {mutations::kScratchInVariable, [](const Problem&) { return true; }, /*emulator_only=*/true},
};

inline void check_mutants_on_the_sample(Backend& backend) {
  std::vector<Problem> sample =
      covering_sample({.title = "", .removes = "", .alignment_bytes = 16, .merges = true, .pages = true});
  const auto work = [](const Problem& p) { return double(p.num_rows()) * p.seqlen_kv * p.head_dim; };
  std::sort(sample.begin(), sample.end(), [&](const auto& a, const auto& b) { return work(a) < work(b); });
  const auto rejected = [&](mutations::Mutation mutation, const Problem& problem) {
    try {
      return !validate_mutant(backend, mutation, problem).pass;
    } catch (const DeviceError&) {
      return true;
    }
  };
  for (const SampleCase& c : kSampleCases) {
    if (c.emulator_only && backend.kind() != BackendKind::kEmulator) continue;
    INFO(mutations::kNames[c.mutation]);
    const auto where = std::find_if(sample.begin(), sample.end(),
                                    [&](const Problem& p) { return c.shows(p) && rejected(c.mutation, p); });
    REQUIRE(where != sample.end());
    INFO(where->label());
    CHECK_FALSE(rejected(mutations::kNone, *where));
  }
}

// FP8: each on inputs that show it.
inline void check_e4m3_mutants(Backend& backend) {
  const Problem few{.batch = 2,
                    .num_heads_q = 4,
                    .num_heads_kv = 2,
                    .seqlen_q = 70,
                    .seqlen_kv = 300,
                    .dtype = DType::kE4m3,
                    .kv_lengths = KvLengths::kRandom};
  Problem one_scale = few;
  one_scale.layout = Layout::kQkv;
  const Problem long_mean{.seqlen_q = 20, .seqlen_kv = 4096, .dtype = DType::kE4m3, .inputs = Inputs::kMean};
  const auto with = [](Problem p, Inputs inputs) {
    p.inputs = inputs;
    return p;
  };
  const auto without_lse = [](Problem p) {
    p.lse = false;
    return p;
  };
  const struct {
    const char* name;
    Problem problem;
    const char* message;
  } cases[] = {
      {"k_scale_of_head_0", few, "lse wrong"},
      {"scale_strides_ignored", one_scale,
       backend.kind() == BackendKind::kEmulator ? "global memory access out of bounds" : "are NaN"},
      {"q_scale_of_query", few, "lse wrong"},
      {"v_scale_forgotten", few, "every lse is right"},
      {"scale_of_p_in_lse", few, "o is right and lse is not"},
      {"keys_swapped", few, "every lse is right"},
      {"saturates", with(few, Inputs::kRamps), "every lse is right"},
      {"one_level_of_sums", long_mean, "o is too short by"},
      {"p_truncated", long_mean, "o is too short by"},
      {"padding_times_zero", few, "are NaN"},
      {"k_scale_of_head_0", without_lse(few), "hint: o is wrong"},
      {"keys_swapped", without_lse(few), "hint: o is wrong"},
      {"p_truncated", without_lse(long_mean), "o is too short by"},
  };
  // A row of O that is a third of the root of its squared summands' sum.
  const Problem small_row{.batch = 2,
                          .num_heads_q = 24,
                          .num_heads_kv = 8,
                          .seqlen_q = 233,
                          .seqlen_kv = 233,
                          .dtype = DType::kE4m3,
                          .layout = Layout::kGapped,
                          .inputs = Inputs::kChannels,
                          .given_scale = 0.0241737893,
                          .seed = 1483104245};
  CHECK(validate_named(backend, "mutant_e4m3_none", small_row).pass);
  for (const Inputs inputs : {Inputs::kNormal, Inputs::kSharp, Inputs::kRamps, Inputs::kMean,
                              Inputs::kOutliers, Inputs::kChannels, Inputs::kNeedle}) {
    for (const Problem& problem : {with(few, inputs), with(one_scale, inputs), with(long_mean, inputs)}) {
      const Validation v = validate_named(backend, "mutant_e4m3_none", problem);
      INFO(problem.label() << ": " << v.message);
      CHECK(v.pass);
    }
  }
  for (const auto& [name, problem, message] : cases) {
    std::string said;
    try {
      const Validation v = validate_named(backend, ("mutant_e4m3_" + std::string(name)).c_str(), problem);
      CHECK(!v.pass);
      said = v.message;
    } catch (const DeviceError& error) {
      said = error.what();
    }
    INFO(name << ": " << said);
    CHECK(said.find(message) != std::string::npos);
    if (!problem.lse) CHECK(said.find("lse") == std::string::npos);
  }
  CHECK(validate_named(backend, "mutant_e4m3_scale_of_p_in_lse", without_lse(few)).pass);
}

// Of the queries of the `needle` inputs, for how many the output is nearest to the V of the key that has the
// answer, which is the one with the largest score before anything is rounded.
inline int needles_found(Backend& backend, const char* name, const Problem& problem) {
  Problem before = problem;
  before.dtype = DType::kFp32;
  const Workload exact(before);
  Workload workload(problem);
  DeviceTensors tensors(backend, workload);
  const Step& step = *find_step(name, backend.kind());
  tensors.prepare_for(step, AttentionCall::kChosenByStep);
  backend.run(step, tensors.call());
  const Outputs outputs = tensors.download_outputs();
  std::vector<float> row(problem.head_dim), key(problem.head_dim);
  // The key for which `of` is largest: of its row that `load` fetches.
  const auto best_key = [&](RowId query, const Workload& from, auto load, auto of) {
    const int head = query.h / (problem.num_heads_q / problem.num_heads_kv);
    int best = -1;
    float most = 0;
    for (int j = 0; j < problem.visible_keys(query.i, from.kv_lengths()[query.b]); ++j) {
      (from.*load)({query.b, head, j}, key.data());
      float sum = 0;
      for (int d = 0; d < problem.head_dim; ++d) sum += of(row[d], key[d]);
      if (best < 0 || sum > most) most = sum, best = j;
    }
    return best;
  };
  int found = 0;
  std::set<int> needles;
  for (const RowId query : problem.rows()) {
    exact.load_q(query, row.data());
    const int needle = best_key(query, exact, &Workload::load_k, [](float q, float k) { return q * k; });
    needles.insert(needle);
    load_elements(output_type(problem.dtype), outputs.row(query), problem.head_dim, row.data());
    found += needle == best_key(query, workload, &Workload::load_v,
                                [](float o, float v) { return -(o - v) * (o - v); });
  }
  CHECK(*needles.begin() < problem.seqlen_kv / 4);
  CHECK(*needles.rbegin() > problem.seqlen_kv / 4 * 3);
  return found;
}

// In FP8 as often as in bf16.
inline void check_needles(Backend& backend, int num_keys) {
  Problem p{.num_heads_q = 4,
            .num_heads_kv = 2,
            .seqlen_q = 8,
            .seqlen_kv = num_keys,
            .head_dim = 128,
            .inputs = Inputs::kNeedle};
  p.dtype = DType::kBf16;
  CHECK(needles_found(backend, "v01_scalar", p) == p.num_rows());
  p.dtype = DType::kE4m3;
  CHECK(needles_found(backend, "v01_scalar", p) == p.num_rows());
  CHECK(needles_found(backend, "mutant_e4m3_none", p) == p.num_rows());
  CHECK(needles_found(backend, "mutant_e4m3_keys_swapped", p) < p.num_rows());
}

// The backward pass: each on a problem that shows it, which has blocks of queries and of keys, a ragged end
// of each, groups of heads, keys beyond a length and queries that see none.
inline void check_backward_mutants(Backend& backend) {
  const Problem plain{.batch = 2,
                      .num_heads_q = 2,
                      .num_heads_kv = 1,
                      .seqlen_q = 70,
                      .seqlen_kv = 140,
                      .causal = true,
                      .kv_lengths = KvLengths::kGiven,
                      .backward = true,
                      .given_lengths = {50, 130}};
  Problem gapped = plain, padded = plain, full = plain;
  gapped.layout = Layout::kGapped;
  padded.causal = false;
  full.causal = false;
  full.kv_lengths = KvLengths::kFull;
  full.given_lengths = {};
  const EmulatorMode hostile{.async = "random", .hostile = true, .race_detector = true};
  const bool is_emulator = backend.kind() == BackendKind::kEmulator;
  const auto judged = [&](const std::string& name, Problem problem, DType dtype) {
    problem.dtype = dtype;
    return validate_named(backend, ("mutant_backward_" + name).c_str(), problem, {{}, hostile});
  };
  const std::string of_ds = "dv is right, and so is P: look at dP", of_p = "dv is wrong together with others";
  const struct {
    const char* name;
    Problem problem;
    std::string message;
    bool emulator_only = false;  // a GPU need not show it in two runs
  } cases[] = {
      {"d_without_o", plain, of_ds},
      {"ds_without_scale", plain, of_ds},
      {"block_twice", plain, "dk is right, and so is dS: look at dS K"},
      {"mask_in_p_alone", plain, of_ds},
      {"lse_base_two", plain, of_p},
      {"group_not_summed", plain, "dq is right, and so is dS: look at dS^T Q"},
      {"last_block_dropped", plain, "dq is right, and so are P and dS: look at the sums over queries"},
      {"diagonal_off", plain, of_p},
      {"dv_as_dk", gapped, "dv"},
      {"padding_kept", plain, "row(s) of dk were never written"},
      {"padding_multiplied", padded, "element(s) of dq are NaN"},
      {"empty_row_kept", plain, "row(s) of dq were never written"},
      {"element_off", full, "an element is too far off: dk of batch"},
      {"ds_truncated", full, "is P, dS or d"},
      {"output_kept", plain, "memory that no step may read"},
      {"d_o_modified", plain, "d_o was modified"},
      {"lse_modified", plain, "lse was modified"},
      {"past_the_end", plain, "dk was written 1 element(s) past its end"},
      {"in_order_of_arrival", plain, "two runs on the same inputs differ, first at dk of batch", true},
      {"varies_and_drops_some", plain, "dk"},
  };
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    // In one type on the emulator, where all three take minutes.
    const bool is_brief = is_emulator && dtype != DType::kFp16;
    for (const Problem& problem : is_brief ? std::vector{plain} : std::vector{plain, gapped, padded, full}) {
      const Validation control = judged("none", problem, dtype);
      INFO("control: " << control.message);
      CHECK((control.pass && control.runs_identical));
    }
    const Validation varying = judged("says_it_varies", plain, dtype);
    INFO("varying: " << varying.message);
    CHECK(varying.pass);
    // In 16 bits the roundings of dK may hide the order.
    if (is_emulator && dtype == DType::kFp32) CHECK_FALSE(varying.runs_identical);
    for (const auto& c : cases) {
      if (c.emulator_only ? !is_emulator || dtype != DType::kFp32 : is_brief) continue;
      const std::string name = c.name;
      if (name == "ds_truncated" && dtype == DType::kFp32) continue;  // it has no such gate
      if (name == "element_off" && dtype != DType::kFp16) continue;   // nor this one, and bf16 rounds by 1 %
      const Validation v = judged(name, c.problem, dtype);
      INFO(name << ", " << flashsteps::name(dtype) << ": " << v.message);
      CHECK_FALSE(v.pass);
      CHECK(v.message.find(c.message) != std::string::npos);
    }
  }
}

inline void check_mutants(Backend& backend) {
  // Each mutation but the control has a case: a new one cannot be forgotten here.
  for (int m = mutations::kNone + 1; m < mutations::kNumMutations; ++m) {
    const auto is_it = [&](const auto& c) { return c.mutation == m; };
    INFO(mutations::kNames[m]);
    CHECK((std::any_of(std::begin(kMutantCases), std::end(kMutantCases), is_it) ||
           std::any_of(std::begin(kSampleCases), std::end(kSampleCases), is_it)));
  }
  std::set<std::string> controlled;
  for (const MutantCase& c : kMutantCases) {
    if (c.emulator_only && backend.kind() != BackendKind::kEmulator) continue;
    for (const DType dtype : {DType::kFp16, DType::kBf16}) {
      const std::vector<Inputs> all = c.only_on == Inputs::kNormal
                                          ? std::vector{Inputs::kNormal, Inputs::kSharp}
                                          : std::vector{c.only_on};
      for (const Inputs inputs : all) {
        const Problem problem = mutant_problem(c, dtype, inputs);
        INFO(mutations::kNames[c.mutation] << " on " << problem.label());
        if (controlled.insert(problem.label()).second) {  // most cases share their problem
          const Validation control = validate_mutant(backend, mutations::kNone, problem);
          INFO("control: " << control.message);
          CHECK(control.pass);
        }
        const Validation v = validate_mutant(backend, c.mutation, problem);
        INFO("message: " << v.message);
        CHECK_FALSE(v.pass);
        CHECK(v.message.find(c.message) != std::string::npos);
      }
    }
  }
}

}  // namespace flashsteps
