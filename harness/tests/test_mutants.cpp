// Every broken kernel is rejected, on normal and on sharp inputs, for the reason that is wrong with it; the
// unbroken one passes everywhere. On the emulator; gpu/test_cuda_backend.cpp does the same on a device.
#include "harness/tests/mutant_cases.h"

using namespace flashsteps;

TEST_CASE("the emulator's mutants are rejected", "[long]") {
  const auto backend = make_emulator_backend();
  check_mutants(*backend);
}

TEST_CASE("the covering sample rejects the emulator's mutants that show in few problems", "[long]") {
  const auto backend = make_emulator_backend();
  check_mutants_on_the_sample(*backend);
}

TEST_CASE("the emulator's mutants with FP8 are rejected") {
  const auto backend = make_emulator_backend();
  check_e4m3_mutants(*backend);
}

TEST_CASE("the emulator's mutants of the backward pass are rejected") {
  const auto backend = make_emulator_backend();
  check_backward_mutants(*backend);
}

TEST_CASE("the one key among thousands that has the answer is found in FP8 as often as in bf16") {
  const auto backend = make_emulator_backend();
  check_needles(*backend, 4096);
}

TEST_CASE("the emulator names an entry of the page table that is no sequence's") {
  const auto backend = make_emulator_backend();
  Problem p{.batch = 2, .seqlen_kv = 50, .kv_lengths = KvLengths::kSkewed, .page_size = 1};
  std::string message;
  try {
    validate_mutant(*backend, mutations::kTableOneBeyond, p);
  } catch (const DeviceError& error) {
    message = error.what();
  }
  INFO(message);
  CHECK(message.find("global memory access out of bounds") != std::string::npos);
  CHECK(message.find("entry [0][1] of the page table, which is behind the last page of sequence 0: it has 1 "
                     "keys, in pages of 1") != std::string::npos);
}

TEST_CASE("the emulator names a write to a variable that all calls share") {
  const auto backend = make_emulator_backend();
  const Problem p = mutant_problem({}, DType::kBf16, Inputs::kNormal);
  CHECK(validate_named(*backend, "split", p).message.empty());
  for (const bool race_detector : {false, true}) {
    const EmulatorMode mode{.race_detector = race_detector};
    std::string message;
    try {
      validate_named(*backend, "split_shared_by_calls", p, {mode, mode});
    } catch (const DeviceError& error) {
      message = error.what();
    }
    INFO(message);
    CHECK(message.find("a variable of the program") != std::string::npos);
  }
}

TEST_CASE("what a step does to its workspace and its counters on the emulator is seen") {
  const auto backend = make_emulator_backend();
  check_workspaces(*backend);
}

// Random problems on a GPU have shown the inputs and shapes here.
TEST_CASE("right gradients are as near to another step's, and to the reference, as their inputs allow") {
  const auto backend = make_emulator_backend();
  for (const Inputs inputs : {Inputs::kNormal, Inputs::kNeedle, Inputs::kOffset, Inputs::kStructured}) {
    const Problem p{.num_heads_q = 2,
                    .num_heads_kv = 1,
                    .seqlen_q = 70,
                    .seqlen_kv = 90,
                    .head_dim = 64,
                    .dtype = DType::kBf16,
                    .inputs = inputs,
                    .backward = true};
    Workload workload = workload_of(*backend, p);
    const auto outputs_of = [&](const char* name) {
      const Step& step = *find_step(name, backend->kind());
      DeviceTensors tensors(*backend, workload);
      tensors.prepare_for(step, AttentionCall::kChosenByStep);
      backend->run(step, tensors.call());
      return tensors.download_outputs();
    };
    const Outputs exact = outputs_of("v50_five_formulas");
    Outputs rounded = outputs_of("mutant_backward_none");
    std::vector<RowId> some;  // the others are only compared
    for (int64_t number = 0; number < p.num_output_rows(); number += 3) some.push_back(p.output_row(number));
    const std::vector<ReferenceRow> reference = reference_rows(workload, some);
    INFO(p.label());
    CHECK(compare_outputs(workload, reference, rounded, exact) == "");
    if (inputs != Inputs::kNormal) continue;
    rounded.zero_row(p.output_row(1));
    CHECK(compare_outputs(workload, reference, rounded, exact).find("dq as a whole differs") == 0);
  }

  // Keys with equal P; rows of numbers below the normal ones; rows that one summand decides.
  const struct {
    int batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_kv, head_dim;
    DType dtype;
    Layout layout;
    Inputs inputs;
    uint64_t seed;
  } found[] = {{5, 24, 3, 5, 57, 128, DType::kBf16, Layout::kBshd, Inputs::kLeaps, 56071368},
               {2, 3, 3, 101, 101, 64, DType::kFp16, Layout::kQkv, Inputs::kRising, 1192562586},
               {1, 16, 8, 11, 3679, 64, DType::kBf16, Layout::kGapped, Inputs::kOffset, 1024355287}};
  for (const auto& each : found) {
    Problem p{.batch = each.batch,
              .num_heads_q = each.num_heads_q,
              .num_heads_kv = each.num_heads_kv,
              .seqlen_q = each.seqlen_q,
              .seqlen_kv = each.seqlen_kv,
              .head_dim = each.head_dim,
              .dtype = each.dtype,
              .layout = each.layout,
              .inputs = each.inputs,
              .backward = true};
    p.seed = each.seed;
    CHECK(validate_named(*backend, "v53_backward_wgmma", p).message == "");
  }
}

// docs/measuring.md has these shares of the gates.
TEST_CASE("right gradients stay as far below the gates as the page says", "[long]") {
  const auto backend = make_emulator_backend();
  for (const char* const step : {"v50_five_formulas", "mutant_backward_none"}) {
    double nrmse = 0, row = 0, element = 0, bias = 0;
    for (const Problem& problem : covering_sample(find_step(step, BackendKind::kEmulator)->info)) {
      if (problem.num_rows() * problem.seqlen_kv > 60000) continue;  // what is dear shows no other errors
      const Validation v = validate_named(*backend, step, problem);
      INFO(step << ", " << problem.label() << ": " << v.message);
      CHECK(v.pass);
      nrmse = std::max(nrmse, v.nrmse / v.gate_nrmse);
      row = std::max(row, v.worst_row_nrmse / v.gate_row);
      element = std::max(element, v.worst_element / v.gate_element);
      if (v.bias) bias = std::max(bias, *v.bias / v.gate_bias);
    }
    INFO(step << ": " << nrmse << ", " << row << ", " << element << ", " << bias);
    CHECK((nrmse > 0.3 && nrmse <= 0.54));
    CHECK((row > 0.4 && row <= 0.68));
    CHECK((element > 0.3 && element <= 0.41));
    CHECK((bias > 0.1 && bias <= 0.32));
  }
}

// docs/measuring.md says how far v01 to v20 stay below these gates. v10 here; its emulator run is among the
// fastest.
TEST_CASE("a right kernel stays as far below the gates of element and bias as the page says", "[long]") {
  const auto backend = make_emulator_backend();
  double element = 0, bias = 0;
  for (const Problem& problem : covering_sample({.title = "", .removes = "", .alignment_bytes = 16})) {
    if (problem.num_rows() * problem.seqlen_kv > 200000) continue;  // what is dear shows no other errors
    const Validation v = validate_named(*backend, "v10_tma_warpspec", problem);
    INFO(problem.label() << ": " << v.message);
    CHECK(v.pass);
    element = std::max(element, v.worst_element / v.gate_element);
    if (v.bias) bias = std::max(bias, *v.bias / v.gate_bias);
  }
  CHECK((element > 0.3 && element <= 0.67));
  CHECK((bias > 0.1 && bias <= 0.36));
}
