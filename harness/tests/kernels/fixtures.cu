// Steps that misbehave in ways that end or block a process, for the tests of isolation. Registered as fixture_<name>.
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "common/step.h"

namespace STEP_NAMESPACE {

enum Behaviour {
  kHang,         // the kernel never ends
  kCrash,        // the kernel writes to an illegal address
  kWrong,        // the kernel writes zeros
  kAbort,        // the host code that launches ends the process
  kSleep,        // the host code that launches sleeps for ever, as a driver does whose GPU hangs
  kLateCrash,    // right at first; illegal address once it has been launched often, as in a benchmark
  kLateHang,     // right at first; never ends once it has been launched often
  kNumBehaviours
};
constexpr const char* kNames[kNumBehaviours] = {"fixture_hang",  "fixture_crash",      "fixture_wrong",
                                                "fixture_abort", "fixture_sleep",      "fixture_late_crash",
                                                "fixture_late_hang"};
constexpr int kLate = 12;  // launches; validation needs fewer, a benchmark's warm-up and first samples more

// One thread per row, straight from global memory; slow and right, unless told otherwise.
template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void attention_kernel(const AttentionParams<Element> params, bool hang, bool crash, bool wrong) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  volatile int spins = 0;  // volatile: the loop must not be optimised away
  while (hang) spins = spins + 1;
  if (crash) params.lse[int64_t(1) << 46] = 0.0f;

  const Element* const q_row = params.q_head(batch, head) + row * params.q_row_stride;
  const int num_keys = params.template visible_keys<CAUSAL>(row, params.kv_length(batch));
  float acc_o[HEAD_DIM] = {};
  float row_max = -INFINITY, row_sum = 0.0f;
  for (int key = 0; key < num_keys; ++key) {
    const Element* const k_row = params.k_head(batch, head) + key * params.k_row_stride;
    const Element* const v_row = params.v_head(batch, head) + key * params.v_row_stride;
    float score = 0.0f;
    for (int d = 0; d < HEAD_DIM; ++d) score += float(q_row[d]) * float(k_row[d]);
    score *= params.softmax_scale_log2;
    const float new_max = fmaxf(row_max, score);
    const float row_scale = exp2f(row_max - new_max), p = exp2f(score - new_max);
    row_sum = row_sum * row_scale + p;
    row_max = new_max;
    for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] = acc_o[d] * row_scale + p * float(v_row[d]);
  }
  Element* const o_row = params.o_head(batch, head) + row * params.o_row_stride;
  for (int d = 0; d < HEAD_DIM; ++d) o_row[d] = Element(wrong || num_keys == 0 ? 0.0f : acc_o[d] / row_sum);
  params.lse_head(batch, head)[row] = num_keys > 0 ? row_max * kLn2 + logf(row_sum) : -INFINITY;
}

int launches[kNumBehaviours] = {};

template <int BEHAVIOUR>
struct FixtureLauncher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const AttentionParams<Element>& params, Stream stream) {
    const bool describing = launch_recorder() != nullptr;
    if (BEHAVIOUR == kAbort && !describing) std::abort();
    while (BEHAVIOUR == kSleep && !describing) pause();
    const bool late = !describing && ++launches[BEHAVIOUR] > kLate;
    const dim3 grid(ceil_div(params.seqlen_q, 64), params.num_heads_q, params.batch);
    launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(64), 0, stream, params,
           BEHAVIOUR == kHang || (BEHAVIOUR == kLateHang && late),
           BEHAVIOUR == kCrash || (BEHAVIOUR == kLateCrash && late), BEHAVIOUR == kWrong);
  }
};

template <int... BEHAVIOURS>
bool register_all(std::integer_sequence<int, BEHAVIOURS...>) {
  constexpr StepInfo info{.title = "misbehaves, for the tests", .removes = "nothing"};
  return (register_step({kNames[BEHAVIOURS], kThisBackend, info,
                         dispatch<FixtureLauncher<BEHAVIOURS>, /*SUPPORTS_FP32=*/false>}) &&
          ...);
}
const bool kRegistered = register_all(std::make_integer_sequence<int, kNumBehaviours>());

}  // namespace STEP_NAMESPACE
