// Causal attention over one short sequence, and its gradients, on the GPU if there is one, else on the
// emulator. CMakeLists.txt beside this file builds it against an installed FlashSteps.
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

  // The same call asks for gradients: here those of the sum of o.
  std::vector<float> d_o(o.size(), 1.0f), dq(q.size()), dk(k.size()), dv(v.size());
  flashsteps::AttentionCall backward = call;
  backward.backward = true;
  backward.d_o = flashsteps::bhsd_view(d_o.data(), HEADS, SEQLEN, HEAD_DIM);
  backward.dq = flashsteps::bhsd_view(dq.data(), HEADS, SEQLEN, HEAD_DIM);
  backward.dk = flashsteps::bhsd_view(dk.data(), HEADS, SEQLEN, HEAD_DIM);
  backward.dv = flashsteps::bhsd_view(dv.data(), HEADS, SEQLEN, HEAD_DIM);
  gpu ? flashsteps::attention_from_host(backward) : flashsteps::attention_on_emulator(backward);

  // The weights of each query add up to 1, and so do its parts of dv.
  float sum = 0;
  for (int row = 0; row < SEQLEN; ++row) sum += dv[row * HEAD_DIM];
  std::printf("sum of dv over the keys %.2f, queries %d\n", sum, SEQLEN);
  return std::abs(o[0] - v[0]) < 1e-6f && std::abs(sum - SEQLEN) < 1e-2f ? 0 : 1;
}
