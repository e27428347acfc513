// Causal attention over one short sequence, on the GPU if there is one, else on the emulator. CMakeLists.txt
// beside this file builds it against an installed FlashSteps.
#include <flashsteps.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr int HEADS = 2, SEQLEN = 100, HEAD_DIM = 64;
  std::vector<float> q(HEADS * SEQLEN * HEAD_DIM), k(q.size()), v(q.size()), o(q.size()), lse(HEADS * SEQLEN);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (std::vector<float>* tensor : {&q, &k, &v}) {
    for (float& value : *tensor) value = normal(generator);
  }

  const flashsteps::AttentionCall call = {
      .dtype = flashsteps::DType::kFp32,
      .batch = 1,
      .num_heads_q = HEADS,
      .num_heads_kv = HEADS,
      .seqlen_q = SEQLEN,
      .seqlen_kv = SEQLEN,
      .head_dim = HEAD_DIM,
      .causal = true,
      .softmax_scale = 1.0f / std::sqrt(float(HEAD_DIM)),
      .q = flashsteps::bhsd_view(q.data(), HEADS, SEQLEN, HEAD_DIM),
      .k = flashsteps::bhsd_view(k.data(), HEADS, SEQLEN, HEAD_DIM),
      .v = flashsteps::bhsd_view(v.data(), HEADS, SEQLEN, HEAD_DIM),
      .o = flashsteps::bhsd_view(o.data(), HEADS, SEQLEN, HEAD_DIM),
      .lse = lse.data(),
      .kv_lengths = nullptr,
  };
  // With tensors on the GPU: flashsteps::attention(call, stream), which returns at once. Such a call also has
  // a workspace, of workspace_bytes(call), and counters: flashsteps.h says more. All throw when they cannot.
  const bool gpu = flashsteps::missing_gpu().empty();
  const auto step = gpu ? flashsteps::attention_from_host(call) : flashsteps::attention_on_emulator(call);
  std::printf("%.*s on the %s\n", int(step.size()), step.data(), gpu ? "GPU" : "emulator");

  // The first query sees the first key only, so its output is the first value.
  std::printf("o[0] %.4f, v[0] %.4f, lse[0] %.4f\n", o[0], v[0], lse[0]);
  return std::abs(o[0] - v[0]) < 1e-6f ? 0 : 1;
}
