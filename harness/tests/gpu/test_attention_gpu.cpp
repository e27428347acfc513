// The functions of flashsteps.h on a real device: asynchronous, on the caller's stream, with tensor maps that
// are remembered only for what they describe.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "common/cuda/check.h"
#include "harness/base/element.h"
#include "harness/base/random.h"
#include "harness/device/gpu.h"
#include "harness/include/flashsteps.h"
#include "harness/library/attention.h"
#include "harness/tests/gpu/launch_kernels.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes), memory_(gpu_allocate(bytes)) {}
  explicit DeviceMemory(const std::vector<uint16_t>& data) : DeviceMemory(data.size() * 2) {
    gpu_upload(memory_, data.data(), bytes_);
  }
  ~DeviceMemory() { gpu_release(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* get() const { return memory_; }
  std::vector<uint16_t> download() const {
    std::vector<uint16_t> data(bytes_ / 2);
    CUDA_CHECK(cudaDeviceSynchronize());
    gpu_download(data.data(), memory_, bytes_);
    return data;
  }

 private:
  size_t bytes_;
  void* memory_;
};

std::vector<uint16_t> normal_halves(size_t count, uint64_t seed) {
  std::vector<uint16_t> halves(count);
  for (size_t i = 0; i < count; i += 2) {
    float a, b;
    random_normal_pair(seed, 0, i, a, b);
    halves[i] = float_to_half(a);
    if (i + 1 < count) halves[i + 1] = float_to_half(b);
  }
  return halves;
}

// fp16, D = 64, [1, heads, rows, 64] at these addresses. One tensor is q, k and v: what matters here is which
// memory is read.
AttentionCall self_attention(void* qkv, void* o, void* lse, int heads, int rows) {
  const TensorView view = bhsd_view(qkv, heads, rows, 64);
  return {.dtype = DType::kFp16,
          .batch = 1,
          .num_heads_q = heads,
          .num_heads_kv = heads,
          .seqlen_q = rows,
          .seqlen_kv = rows,
          .head_dim = 64,
          .causal = true,
          .softmax_scale = 0.125f,
          .q = view,
          .k = view,
          .v = view,
          .o = bhsd_view(o, heads, rows, 64),
          .lse = static_cast<float*>(lse),
          .kv_lengths = nullptr};
}

// What v01, which knows no tensor maps, makes of the same call.
std::vector<uint16_t> expected(AttentionCall call, size_t elements) {
  const DeviceMemory o(std::vector<uint16_t>(elements, 0xffff));
  call.o.data = o.get();
  attention(call, nullptr, "v01_scalar");
  return o.download();
}

double largest_difference(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(half_to_float(a[i]) - half_to_float(b[i]));
    largest = difference <= largest ? largest : difference;  // NaN comes through
  }
  return largest;
}

// Calls use(call, step) for each step of the ladder in this program that the GPU runs. The call has the
// counters and the workspace that the step needs.
template <typename Use>
void for_each_step(AttentionCall call, Use use) {
  const DeviceMemory counters(std::vector<uint16_t>(kCounterBytes / 2));
  call.counters = static_cast<unsigned*>(counters.get());
  const int gpu = current_gpu().compute_capability;
  for (const StepDescription& step : steps()) {
    if (step.name.substr(0, 1) != "v" || !step.dtypes.has(call.dtype)) continue;
    if (step.backward != call.backward) continue;
    if (step.needs_sm_exactly ? gpu != step.needs_sm : gpu < step.needs_sm) continue;
    INFO(step.name);
    call.workspace_bytes = workspace_bytes(call, step.name);
    const DeviceMemory workspace(call.workspace_bytes + 1);
    call.workspace = workspace.get();
    use(call, step.name);
  }
}

bool has_tma() { return current_gpu().compute_capability >= 90; }

struct Stream {
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  cudaStream_t stream;
};

// What is queued on the stream meanwhile, as a graph.
cudaGraph_t capture(cudaStream_t stream, const std::function<void()>& queue) {
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  queue();
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

// What is queued on the stream meanwhile, to be replayed.
class Replay {
 public:
  Replay(cudaStream_t stream, const std::function<void()>& queue) {
    const cudaGraph_t graph = capture(stream, queue);
    CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  ~Replay() { cudaGraphExecDestroy(executable_); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void launch(cudaStream_t stream) const { CUDA_CHECK(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

constexpr int kHeads = 4, kRows = 300;
constexpr size_t kElements = size_t(kHeads) * kRows * 64;

}  // namespace

TEST_CASE("attention() takes the fastest step that can run the call") {
  REQUIRE(missing_gpu() == "");
  const DeviceMemory x(normal_halves(kElements + 64, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  if (has_tma()) CHECK(attention(call) == "v10_tma_warpspec");
  CHECK(largest_difference(o.download(), expected(call, kElements)) < 4e-3);
  call.q.data = static_cast<char*>(call.q.data) + 2;  // not aligned to 16 bytes any more
  CHECK(attention(call) == "v05_padded_smem");        // of those in this program (v01, v02, v05, v10)
  CHECK(largest_difference(o.download(), expected(call, kElements)) < 4e-3);
}

TEST_CASE("attention() returns while the stream is still busy with what came before") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const Stream side;
  AttentionCall busy{};
  busy.seqlen_q = 200000;  // x 1000 clocks: about 0.1 s
  const auto check = [&](const AttentionCall& call, std::string_view step) {
    attention(call, side.stream, step);  // whatever is done once is done
    CUDA_CHECK(cudaStreamSynchronize(side.stream));
    CUDA_CHECK(cudaMemsetAsync(o.get(), 0xff, kElements * 2, side.stream));
    kSpin.run(busy, side.stream);
    attention(call, side.stream, step);
    CHECK(cudaStreamQuery(side.stream) == cudaErrorNotReady);
    cudaGetLastError();  // not ready is no error
    CUDA_CHECK(cudaStreamSynchronize(side.stream));
    CHECK(largest_difference(o.download(), expected(call, kElements)) < 4e-3);
  };
  for_each_step(self_attention(x.get(), o.get(), lse.get(), kHeads, kRows), check);
}

TEST_CASE("attention() can be captured, also by a thread that has never called it") {
  DeviceMemory x(normal_halves(kElements, 1));
  const DeviceMemory o(kElements * 2), lse(kHeads * kRows * 4);
  const AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  std::optional<Replay> replay;
  std::thread([&] {
    const Stream side;
    replay.emplace(side.stream, [&] { attention(call, side.stream); });
  }).join();
  for (const uint64_t seed : {2, 3}) {
    const std::vector<uint16_t> fresh = normal_halves(kElements, seed);
    gpu_upload(x.get(), fresh.data(), kElements * 2);
    replay->launch(nullptr);
    CHECK(largest_difference(o.download(), expected(call, kElements)) < 4e-3);
  }
}

TEST_CASE("the stride of an axis of extent 1 may be anything, also in a graph") {
  constexpr size_t kRow = 64;
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const Stream side;
  for (const int keys : {1, kRows}) {
    AttentionCall plain = self_attention(x.get(), o.get(), lse.get(), 1, 1);
    plain.seqlen_kv = keys;
    for_each_step(plain, [&](AttentionCall call, std::string_view step) {
      const auto result_of = [&](const std::function<void()>& run) {
        CUDA_CHECK(cudaMemset(o.get(), 0xff, kElements * 2));
        CUDA_CHECK(cudaMemset(lse.get(), 0xff, kHeads * kRows * 4));
        CUDA_CHECK(cudaDeviceSynchronize());
        run();
        return std::pair(o.download(), lse.download());
      };
      const auto wanted = result_of([&] { attention(call, side.stream, step); });
      REQUIRE(largest_difference({wanted.first.begin(), wanted.first.begin() + kRow}, expected(call, kRow)) <
              4e-3);
      for (const int64_t anything : {1, -1}) {
        for (TensorView* const view : {&call.q, &call.k, &call.v, &call.o}) {
          view->batch_stride = view->head_stride = anything;
          if (keys == 1 || view == &call.q || view == &call.o) view->row_stride = anything;
        }
        CHECK((result_of([&] { attention(call, side.stream, step); }) == wanted));
        const Replay replay(side.stream, [&] { attention(call, side.stream, step); });
        CHECK((result_of([&] { replay.launch(side.stream); }) == wanted));
      }
    });
  }
}

TEST_CASE("without queries nothing is launched") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const Stream side;
  for (int AttentionCall::*const size :
       {&AttentionCall::batch, &AttentionCall::num_heads_q, &AttentionCall::seqlen_q}) {
    AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
    call.*size = 0;
    const cudaGraph_t graph = capture(side.stream, [&] {
      CHECK(attention(call, side.stream) == "");
      CHECK(attention(call, side.stream, "v05_padded_smem") == "");
    });
    size_t nodes = 1;
    CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 0);
    CUDA_CHECK(cudaGraphDestroy(graph));
    CHECK(workspace_bytes(call, "split") == 0);
    CHECK(attention_from_host(call) == "");
  }
}

TEST_CASE("a remembered tensor map is used for its own tensor only") {
  if (!has_tma()) return;
  const DeviceMemory x(normal_halves(kElements, 1)), y(normal_halves(kElements, 2));
  const DeviceMemory o(kElements * 2), lse(kHeads * kRows * 4);
  const auto check = [&](const AttentionCall& call) {
    CUDA_CHECK(cudaMemset(o.get(), 0xff, kElements * 2));
    attention(call, nullptr, "v10_tma_warpspec");
    std::vector<uint16_t> got = o.download(), want = expected(call, kElements);
    // What a smaller tensor leaves out is 0xffff in both.
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i] == 0xffff && got[i] == 0xffff) got[i] = want[i] = 0;
    }
    CHECK(largest_difference(got, want) < 4e-3);
  };
  const AttentionCall first = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  check(first);
  AttentionCall other = first;  // same shape, other addresses
  other.q.data = other.k.data = other.v.data = y.get();
  check(other);
  check(first);
  check(self_attention(x.get(), o.get(), lse.get(), 2, kRows));               // same address, fewer heads
  check(self_attention(x.get(), o.get(), lse.get(), kHeads * 2, kRows / 2));  // same address, other strides
  AttentionCall one_head = first;  // every head reads the first one's keys: stride 0
  one_head.k.head_stride = one_head.v.head_stride = 0;
  check(one_head);
  AttentionCall transposed = first;  // rows and heads change places
  for (TensorView* view : {&transposed.q, &transposed.k, &transposed.v})
    *view = bshd_view(x.get(), kHeads, kRows, 64);
  check(transposed);
  check(first);
}

TEST_CASE("1000 calls neither take memory nor time that they should not") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const AttentionCall call = self_attention(x.get(), o.get(), lse.get(), 1, 64);
  attention(call);
  CUDA_CHECK(cudaDeviceSynchronize());
  size_t free_before = 0, free_after = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_before, &total));
  std::vector<double> us;
  for (int batch = 0; batch < 10; ++batch) {
    const double start = thread_seconds();
    for (int i = 0; i < 100; ++i) attention(call);
    us.push_back((thread_seconds() - start) / 100 * 1e6);
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  CUDA_CHECK(cudaMemGetInfo(&free_after, &total));
  CHECK(free_after == free_before);
  const double fastest = std::ranges::min(us);  // the host's clocks come and go
  WARN("attention() takes " << fastest << " us of the host's time");
  CHECK(fastest < 10);
}

TEST_CASE("attention_from_host() copies there and back, whatever the strides") {
  const std::vector<uint16_t> host = normal_halves(kElements, 1);
  std::vector<uint16_t> o(kElements), o_emulated(kElements);
  std::vector<float> lse(kHeads * kRows), lse_emulated(kHeads * kRows);
  AttentionCall call =
      self_attention(const_cast<uint16_t*>(host.data()), o.data(), lse.data(), kHeads, kRows);
  for (TensorView* view : {&call.q, &call.k, &call.v, &call.o})
    *view = bshd_view(view->data, kHeads, kRows, 64);
  const int lengths[] = {211};
  call.kv_lengths = lengths;
  const std::string_view step = attention_from_host(call);
  call.o.data = o_emulated.data();
  call.lse = lse_emulated.data();
  attention_on_emulator(call, step);
  CHECK(largest_difference(o, o_emulated) < 4e-3);
  for (size_t i = 0; i < lse.size(); ++i) {
    INFO(i);
    REQUIRE((lse[i] == lse_emulated[i] || std::abs(lse[i] - lse_emulated[i]) < 1e-4));
  }
}

TEST_CASE("gradients: on the GPU, from the host, and on the emulator") {
  const std::vector<uint16_t> x = normal_halves(kElements, 1), d_o = normal_halves(kElements, 2);
  std::vector<uint16_t> o(kElements);
  std::vector<float> lse(kHeads * kRows);
  AttentionCall host = self_attention(const_cast<uint16_t*>(x.data()), o.data(), lse.data(), kHeads, kRows);
  attention_on_emulator(host, "v01_scalar");
  host.backward = true;
  struct Gradients {
    std::vector<uint16_t> dq, dk, dv;
  };
  const auto place = [](AttentionCall& call, const void* given, void* dq, void* dk, void* dv) {
    call.d_o = bhsd_view(given, kHeads, kRows, 64);
    call.dq = bhsd_view(dq, kHeads, kRows, 64);
    call.dk = bhsd_view(dk, kHeads, kRows, 64);
    call.dv = bhsd_view(dv, kHeads, kRows, 64);
  };
  const auto from_host = [&](auto run) {
    Gradients found;
    for (std::vector<uint16_t>* each : {&found.dq, &found.dk, &found.dv}) each->assign(kElements, 0xffff);
    AttentionCall call = host;
    place(call, d_o.data(), found.dq.data(), found.dk.data(), found.dv.data());
    run(call);
    return found;
  };
  const Gradients emulated =
      from_host([](const AttentionCall& call) { attention_on_emulator(call, "v50_five_formulas"); });
  const auto check = [&](const Gradients& found) {
    CHECK(largest_difference(found.dq, emulated.dq) < 2e-2);
    CHECK(largest_difference(found.dk, emulated.dk) < 2e-2);
    CHECK(largest_difference(found.dv, emulated.dv) < 2e-2);
  };
  check(from_host([](const AttentionCall& call) { attention_from_host(call); }));

  const DeviceMemory on_gpu(x), d_o_on_gpu(d_o), o_on_gpu(o), lse_on_gpu(lse.size() * 4);
  gpu_upload(lse_on_gpu.get(), lse.data(), lse.size() * 4);
  AttentionCall call = self_attention(on_gpu.get(), o_on_gpu.get(), lse_on_gpu.get(), kHeads, kRows);
  call.backward = true;
  const std::vector<uint16_t> poison(kElements, 0xffff);
  const DeviceMemory dq(poison), dk(poison), dv(poison);
  place(call, d_o_on_gpu.get(), dq.get(), dk.get(), dv.get());
  CHECK(workspace_bytes(call, "v50_five_formulas") > 0);
  CHECK_THROWS_AS(attention(call, nullptr, "v50_five_formulas"), std::invalid_argument);  // it has none
  const Stream side;
  for_each_step(call, [&](const AttentionCall& complete, std::string_view step) {
    const Replay graph(side.stream, [&] { attention(complete, side.stream, step); });
    graph.launch(side.stream);
    CUDA_CHECK(cudaStreamSynchronize(side.stream));
    check({dq.download(), dk.download(), dv.download()});
  });
  call.seqlen_q = 0;  // keys that no query sees
  CHECK(attention(call) == "");
  CHECK(dk.download() == std::vector<uint16_t>(kElements, 0));
  CHECK(dv.download() == std::vector<uint16_t>(kElements, 0));
}

TEST_CASE("attention_with_kvcache() in pages: on the GPU, from the host, and on the emulator") {
  constexpr int BATCH = 3, HEADS_Q = 8, HEADS_KV = 2, ROWS = 2, MAX_PAGES = 4, PAGE_SIZE = 16, PAGES = 11;
  const std::vector<uint16_t> q = normal_halves(BATCH * ROWS * HEADS_Q * 64, 1);
  const std::vector<uint16_t> k = normal_halves(PAGES * PAGE_SIZE * HEADS_KV * 64, 2);
  const std::vector<uint16_t> v = normal_halves(k.size(), 3);
  const int lengths[BATCH] = {33, 0, 64};
  const int table[BATCH * MAX_PAGES] = {7, 0, 9, 1 << 30, -1, -1, -1, -1, 2, 10, 1, 5};
  std::vector<uint16_t> emulated(q.size()), copied(q.size());
  KvCacheCall call{.dtype = DType::kFp16,
                   .batch = BATCH,
                   .num_heads_q = HEADS_Q,
                   .num_heads_kv = HEADS_KV,
                   .seqlen_q = ROWS,
                   .head_dim = 64,
                   .q = q.data(),
                   .o = emulated.data(),
                   .k_cache = k.data(),
                   .v_cache = v.data(),
                   .cache_seqlens = lengths,
                   .page_table = {table, MAX_PAGES, PAGE_SIZE, PAGES}};
  attention_on_emulator(as_attention(call), "v36_stream_k");
  call.o = copied.data();
  attention_from_host(as_attention(call), "v36_stream_k");
  CHECK(largest_difference(copied, emulated) < 4e-3);

  const DeviceMemory q_there(q), k_there(k), v_there(v), o_there(std::vector<uint16_t>(q.size(), 0xffff));
  const DeviceMemory lengths_there(sizeof lengths), table_there(sizeof table), counters(kCounterBytes);
  gpu_upload(lengths_there.get(), lengths, sizeof lengths);
  gpu_upload(table_there.get(), table, sizeof table);
  CUDA_CHECK(cudaMemset(counters.get(), 0, kCounterBytes));
  call.q = q_there.get(), call.k_cache = k_there.get(), call.v_cache = v_there.get();
  call.o = o_there.get();
  call.cache_seqlens = static_cast<const int*>(lengths_there.get());
  call.page_table.pages = static_cast<const int*>(table_there.get());
  call.counters = static_cast<unsigned*>(counters.get());
  call.workspace_bytes = workspace_bytes(as_attention(call));
  const DeviceMemory workspace(call.workspace_bytes + 1);
  call.workspace = workspace.get();
  CHECK(attention_with_kvcache(call) == "v36_stream_k");
  CHECK(o_there.download() == copied);
}

TEST_CASE("an error that an earlier call left is not blamed on the launch") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  void* too_much = nullptr;
  REQUIRE(cudaMalloc(&too_much, size_t(1) << 60) == cudaErrorMemoryAllocation);
  CHECK_NOTHROW(attention(call));
  CHECK(largest_difference(o.download(), expected(call, kElements)) < 4e-3);
}

TEST_CASE("a step that the device or the call forbids is refused and nothing is launched") {
  const DeviceMemory x(normal_halves(kElements, 1)), lse(kHeads * kRows * 4);
  const DeviceMemory o(std::vector<uint16_t>(kElements, 0x1234));
  AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  CHECK_THROWS_AS(attention(call, nullptr, "v99"), std::invalid_argument);
  call.q.data = static_cast<char*>(call.q.data) + 2;
  CHECK_THROWS_AS(attention(call, nullptr, "v10_tma_warpspec"), std::invalid_argument);
  CHECK_THROWS_AS(attention(call, nullptr, "split"), std::invalid_argument);  // supports bf16 only
  call.dtype = DType::kBf16;
  CHECK_THROWS_AS(attention(call, nullptr, "split"), std::invalid_argument);  // it has no workspace
  CHECK(o.download() == std::vector<uint16_t>(kElements, 0x1234));
}

TEST_CASE("LSE may be null") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const auto check = [&](AttentionCall call, std::string_view step) {
    attention(call, nullptr, step);
    const std::vector<uint16_t> with_lse = o.download();
    CUDA_CHECK(cudaMemset(o.get(), 0xff, kElements * 2));
    call.lse = nullptr;
    attention(call, nullptr, step);
    CHECK(o.download() == with_lse);
  };
  for_each_step(self_attention(x.get(), o.get(), lse.get(), kHeads, kRows), check);
}

TEST_CASE("two kernels, with the workspace that the caller gives") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  call.dtype = DType::kBf16;  // other numbers, of another size: attention all the same
  call.softmax_scale = 1e-3f;
  const std::vector<uint16_t> reference = expected(call, kElements);
  CHECK(workspace_bytes(call, "v01_scalar") == 0);
  for (const int configuration : {0, 1, AttentionCall::kChosenByStep}) {
    INFO(configuration);
    call.configuration = configuration;
    const DeviceMemory workspace(workspace_bytes(call, "split"));
    call.workspace = workspace.get();
    call.workspace_bytes = workspace_bytes(call, "split");
    REQUIRE(call.workspace_bytes > 0);
    CUDA_CHECK(cudaMemset(o.get(), 0xff, kElements * 2));
    CHECK(attention(call, nullptr, "split") == "split");
    const std::vector<uint16_t> found = o.download();
    double norm = 0, error = 0;
    for (size_t i = 0; i < kElements; ++i) {
      const double expected_value = bfloat16_to_float(reference[i]);
      norm += expected_value * expected_value;
      error += std::pow(bfloat16_to_float(found[i]) - expected_value, 2);
    }
    CHECK(error <= 1e-4 * norm);
    call.workspace_bytes = 1;
    CHECK_THROWS_AS(attention(call, nullptr, "split"), std::invalid_argument);
  }
}

TEST_CASE("counters start zero and are left zero, and the workspace may hold anything") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  const std::vector<uint16_t> reference = expected(call, kElements);
  CHECK_THROWS_AS(workspace_bytes(call, "counting"), std::invalid_argument);  // it has no counters
  const std::vector<uint16_t> zeros(kCounterBytes / 2), anything(8, 0x7e01);
  const DeviceMemory counters(zeros), workspace(anything);
  const auto give = [&](MemoryFor use, size_t bytes) {
    CHECK((use == MemoryFor::kWorkspace && bytes == 16));  // the counters are the stream's
    return workspace.get();
  };
  for (const bool find : {false, true}) {
    call.counters = find ? nullptr : static_cast<unsigned*>(counters.get());
    call.workspace = find ? nullptr : workspace.get();
    call.workspace_bytes = find ? 0 : workspace_bytes(call, "counting");
    CUDA_CHECK(cudaMemset(o.get(), 0xff, kElements * 2));
    queue_attention(call, nullptr, "counting", give);
    CHECK(largest_difference(o.download(), reference) < 4e-3);
    CHECK(counters.download() == zeros);
  }
  std::vector<uint16_t> found(zeros.size(), 1);
  gpu_download(found.data(), gpu_counters(nullptr), kCounterBytes);
  CHECK(found == zeros);
}

TEST_CASE("a captured call's counters are its graph's, which has no other node than the kernels") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  const std::vector<uint16_t> reference = expected(call, kElements);
  const DeviceMemory workspace(16);
  const Stream s;
  unsigned* counters = nullptr;
  const cudaGraph_t graph = capture(s.stream, [&] {
    queue_attention(call, s.stream, "counting", [&](MemoryFor use, size_t) {
      CHECK(use == MemoryFor::kWorkspace);
      return workspace.get();
    });
    counters = gpu_counters(s.stream);
  });
  size_t num_nodes = 0;
  CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &num_nodes));
  CHECK(num_nodes == 1);
  CHECK(counters != gpu_counters(s.stream));
  cudaGraphExec_t executable;
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  for (int replay = 0; replay < 2; ++replay) {
    CUDA_CHECK(cudaMemset(o.get(), 0xff, kElements * 2));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaGraphLaunch(executable, s.stream));
    CHECK(largest_difference(o.download(), reference) < 4e-3);
    std::vector<unsigned> found(kNumCounters, 1);
    gpu_download(found.data(), counters, kCounterBytes, s.stream);
    CHECK(found == std::vector<unsigned>(kNumCounters));
  }
  CUDA_CHECK(cudaGraphExecDestroy(executable));
}

TEST_CASE("counters are one stream's or one graph's") {
  cudaStream_t a, b, c;
  for (cudaStream_t* const stream : {&a, &b, &c})
    CUDA_CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  unsigned* const of_a = gpu_counters(a);
  unsigned* const of_b = gpu_counters(b);
  REQUIRE((of_a != nullptr && of_b != nullptr && gpu_counters(nullptr) != nullptr));
  CHECK((of_a != of_b && gpu_counters(nullptr) != of_a && gpu_counters(nullptr) != of_b));
  CHECK(gpu_counters(a) == of_a);
  CHECK(gpu_counters(cudaStreamPerThread) == nullptr);
  std::vector<unsigned> found(kNumCounters, 1);
  gpu_download(found.data(), of_a, kCounterBytes, a);
  CHECK(found == std::vector<unsigned>(kNumCounters));

  const auto captured = [&](unsigned*& counters) {
    return capture(a, [&] {
      counters = gpu_counters(a);
      CHECK(gpu_counters(a) == counters);
      CHECK((gpu_counters(c) != counters || counters == nullptr));
    });
  };
  unsigned *of_first, *of_second;
  const cudaGraph_t first = captured(of_first), second = captured(of_second);
  CHECK((of_first != nullptr && of_second != nullptr));
  CHECK((of_first != of_second && of_first != of_a && of_second != of_a));
  CUDA_CHECK(cudaGraphDestroy(first));
  // More graphs than there are counters; a thread of CUDA's gives them back.
  for (int i = 0, without = 0; i < 1000 && without < 100; ++i) {
    unsigned* of_another;
    CUDA_CHECK(cudaGraphDestroy(captured(of_another)));
    CHECK((of_another != of_second && of_another != of_a));
    if (of_another != nullptr) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(++without < 100);
  }
  CUDA_CHECK(cudaGraphDestroy(second));
  CHECK(gpu_counters(a) == of_a);

  // Whether or not its handle is that of a stream that is gone.
  CUDA_CHECK(cudaStreamDestroy(b));
  CUDA_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  CHECK(gpu_counters(b) != of_b);
  for (cudaStream_t const stream : {a, b, c}) CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST_CASE("code of sm_90a runs on that GPU, and is refused on every other") {
  const DeviceMemory x(normal_halves(kElements, 1)), o(kElements * 2), lse(kHeads * kRows * 4);
  const AttentionCall call = self_attention(x.get(), o.get(), lse.get(), kHeads, kRows);
  if (current_gpu().compute_capability == 90) {
    CHECK(attention(call, nullptr, "wgmma_only") == "wgmma_only");
    CHECK(largest_difference(o.download(), expected(call, kElements)) < 4e-3);
  } else {
    CHECK_THROWS_AS(attention(call, nullptr, "wgmma_only"), std::invalid_argument);
  }
}

TEST_CASE("more batches than a grid has") {
  constexpr int kBatch = 70000, kKeys = 2;
  const size_t elements = size_t(kBatch) * 64;
  const DeviceMemory kv(normal_halves(elements * kKeys, 1)), o(elements * 2), lse(kBatch * 4);
  AttentionCall call = self_attention(kv.get(), o.get(), lse.get(), 1, 1);
  call.batch = kBatch;
  call.seqlen_kv = kKeys;
  call.causal = false;
  call.k = call.v = bhsd_view(kv.get(), 1, kKeys, 64);
  CUDA_CHECK(cudaMemset(o.get(), 0xff, elements * 2));
  CHECK_NOTHROW(attention(call));
  CHECK(largest_difference(o.download(), expected(call, elements)) < 4e-3);
}
