// Steps that misbehave in ways that end or block a process, for the tests of isolation. Registered as
// fixture_<name>.
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "harness/tests/kernels/scalar_attention.h"

namespace STEP_NAMESPACE {

enum Behaviour {
  kHang,       // the kernel never ends
  kCrash,      // the kernel writes to an illegal address
  kWrong,      // the kernel writes zeros
  kAlter,      // the kernel writes to its input Q
  kAbort,      // the host code that launches ends the process
  kExit,       // the same, as if all were well
  kSleep,      // the host code that launches sleeps for ever, as a driver does whose GPU hangs
  kLateCrash,  // right at first; illegal address once it has been launched often, as in a benchmark
  kLateHang,   // right at first; never ends once it has been launched often
  kIdle,       // nothing is launched
  kNumBehaviours
};
constexpr const char* kNames[kNumBehaviours] = {
    "fixture_hang", "fixture_crash", "fixture_wrong",      "fixture_alter",     "fixture_abort",
    "fixture_exit", "fixture_sleep", "fixture_late_crash", "fixture_late_hang", "fixture_idle"};
constexpr int kLate = 12;  // launches; validation needs fewer, a benchmark's warm-up and first samples more

// One thread per row, straight from global memory; slow and right, unless told otherwise.
template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void attention_kernel(const AttentionParams<Element> params, bool hang, bool crash, bool wrong,
                                 bool alter) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  volatile int spins = 0;  // volatile: the loop must not be optimised away
  while (hang) spins = spins + 1;
  if (crash) params.lse[int64_t(1) << 46] = 0.0f;

  const int num_keys = params.template visible_keys<CAUSAL>(row, params.kv_length(batch));
  RowState<HEAD_DIM> state;
  attend(state, params, batch, head, row, 0, num_keys);
  if (wrong)
    for (int d = 0; d < HEAD_DIM; ++d) state.acc_o[d] = 0.0f;
  store(state, params, batch, head, row);
  if (alter) *const_cast<Element*>(params.q.head(batch, head) + row * params.q.row_stride) = Element(100.0f);
}

int launches[kNumBehaviours] = {};

template <int BEHAVIOUR>
struct FixtureLauncher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const AttentionParams<Element>& params, Stream stream) {
    if (BEHAVIOUR == kIdle) return;
    const bool describing = launch_recorder() != nullptr;
    if (BEHAVIOUR == kAbort && !describing) std::abort();
    if (BEHAVIOUR == kExit && !describing) std::exit(0);
    while (BEHAVIOUR == kSleep && !describing) pause();
    const bool late = !describing && ++launches[BEHAVIOUR] > kLate;
    const dim3 grid(ceil_div(params.seqlen_q, 64), params.num_heads_q, params.batch);
    launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(64), 0, stream, params,
           BEHAVIOUR == kHang || (BEHAVIOUR == kLateHang && late),
           BEHAVIOUR == kCrash || (BEHAVIOUR == kLateCrash && late), BEHAVIOUR == kWrong,
           BEHAVIOUR == kAlter);
  }
};

constexpr StepInfo kStepInfo{.title = "misbehaves, for the tests", .removes = "nothing"};

template <int... BEHAVIOURS>
bool register_all(std::integer_sequence<int, BEHAVIOURS...>) {
  return (register_step({kNames[BEHAVIOURS], kThisBackend, kStepInfo,
                         dispatch<FixtureLauncher<BEHAVIOURS>, kStepInfo>}) &&
          ...);
}
const bool kRegistered = register_all(std::make_integer_sequence<int, kNumBehaviours>());

}  // namespace STEP_NAMESPACE
