// What common/blocks/ has of the steps is what the steps do: a step that is built of them gives the bits of
// the one that spells them out, and does the same to memory.
#include "common/interface.h"
#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

TEST_CASE("v10 built of blocks is v10") {
  const auto backend = make_emulator_backend();
  EmulatorMode mode;
  mode.count = true;
  const auto run = [&](const char* name, const Problem& problem, std::vector<nlohmann::json>& counters) {
    backend->set_mode(mode);
    Workload workload(problem);
    DeviceTensors tensors(*backend, workload);
    const Step& step = *find_step(name, BackendKind::kEmulator);
    tensors.prepare_for(step, AttentionCall::kChosenByStep);
    tensors.poison(Poison::kNan);
    backend->run(step, tensors.call());
    counters = backend->counters();
    return tensors.download_outputs();
  };
  for (const bool causal : {false, true}) {
    for (const int head_dim : {64, 128}) {
      Problem problem;
      problem.dtype = head_dim == 64 ? DType::kFp16 : DType::kBf16;
      problem.batch = 2;
      problem.num_heads_q = 2;
      problem.num_heads_kv = 1;
      problem.seqlen_q = 100;
      problem.seqlen_kv = 230;
      problem.head_dim = head_dim;
      problem.causal = causal;
      problem.kv_lengths = KvLengths::kRandom;
      INFO(problem.label());
      std::vector<nlohmann::json> spelled_out, of_blocks;
      const Outputs expected = run("v10_tma_warpspec", problem, spelled_out);
      const Outputs found = run("with_blocks", problem, of_blocks);
      CHECK(found.o == expected.o);
      CHECK(found.lse == expected.lse);
      CHECK(of_blocks == spelled_out);
    }
  }
}
