// The broken kernels again, on a device.
#include "harness/tests/mutant_cases.h"

using namespace flashsteps;

TEST_CASE("the device's mutants are rejected") {
  std::string why;
  const auto backend = make_cuda_backend(why);
  INFO(why);
  REQUIRE(backend != nullptr);
  check_mutants(*backend);
  check_mutants_on_the_sample(*backend);
  check_workspaces(*backend);
}

TEST_CASE("a step whose calls share memory is rejected when two of them run at a time") {
  std::string why;
  const auto backend = make_cuda_backend(why);
  REQUIRE(backend != nullptr);
  Problem problem = mutant_problem({}, DType::kBf16, Inputs::kNormal), other = problem;
  ++other.seed;
  Workload workload(problem), other_workload(other);
  DeviceTensors tensors(*backend, workload), other_tensors(*backend, other_workload);
  for (const char* const name : {"split", "split_shared_by_calls"}) {
    const Step& step = *find_step(name, BackendKind::kCuda);
    tensors.prepare_for(step, AttentionCall::kChosenByStep);
    other_tensors.prepare_for(step, AttentionCall::kChosenByStep);
    const std::string found = disturbance(*backend, step, tensors, other_tensors);
    INFO(found);
    CHECK((found.find("while another call of the step runs") == 0) == (std::string(name) != "split"));
  }
}
