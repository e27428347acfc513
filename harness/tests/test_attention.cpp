// The functions of flashsteps.h, without a GPU: which step is chosen, what is refused, and that the result is
// right.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "common/emulator/emulator.h"
#include "common/interface.h"
#include "harness/base/build_info.h"
#include "harness/base/element.h"
#include "harness/base/json.h"
#include "harness/device/tuning.h"
#include "harness/include/flashsteps.h"
#include "harness/judge/judge.h"
#include "harness/library/default_step.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

// Tensors of a call, in host memory. Rows may be padded, and the order of the heads may be reversed.
struct Example {
  explicit Example(DType dtype, int head_dim = 64, bool causal = true)
      : Example(dtype, head_dim, causal, head_dim) {}
  Example(DType dtype, int head_dim, bool causal, int row_stride)
      : q(fill(2 * 4 * 70 * row_stride, dtype, 1)),
        k(fill(2 * 2 * 90 * row_stride, dtype, 2)),
        v(fill(2 * 2 * 90 * row_stride, dtype, 3)),
        o(q.size() / element_bytes(dtype) * element_bytes(output_type(dtype)), 0xa5),
        lse(2 * 4 * 70, 7.0f) {
    const auto view = [&](std::vector<unsigned char>& data, int heads, int rows) {
      return TensorView{data.data(), int64_t(heads) * rows * row_stride, int64_t(rows) * row_stride,
                        row_stride};
    };
    call = {.dtype = dtype,
            .batch = 2,
            .num_heads_q = 4,
            .num_heads_kv = 2,
            .seqlen_q = 70,
            .seqlen_kv = 90,
            .head_dim = head_dim,
            .causal = causal,
            .softmax_scale = 0.125f,
            .q = view(q, 4, 70),
            .k = view(k, 2, 90),
            .v = view(v, 2, 90),
            .o = view(o, 4, 70),
            .lse = lse.data(),
            .kv_lengths = nullptr};
  }

  static std::vector<unsigned char> fill(size_t elements, DType dtype, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<unsigned char> bytes(elements * element_bytes(dtype));
    for (size_t i = 0; i < elements; ++i)
      store_element(dtype, &bytes[i * element_bytes(dtype)], normal(generator));
    return bytes;
  }

  // What is wrong with o and lse.
  std::string wrong() const { return judge_call(call, problem_of(call)).message; }

  std::vector<unsigned char> q, k, v, o;
  std::vector<float> lse;
  AttentionCall call;
};

// The call for the gradients of an example, whose forward call has been made.
struct Gradients {
  explicit Gradients(Example& of)
      : d_o(Example::fill(of.o.size() / element_bytes(of.call.dtype), of.call.dtype, 4)),
        dq(of.q.size(), 0xa5),
        dk(of.k.size(), 0xa5),
        dv(of.v.size(), 0xa5),
        call(of.call) {
    const auto like = [](TensorView view, std::vector<unsigned char>& data) {
      view.data = data.data();
      return view;
    };
    call.backward = true;
    call.d_o = like(call.o, d_o);
    call.dq = like(call.q, dq);
    call.dk = like(call.k, dk);
    call.dv = like(call.v, dv);
  }

  std::vector<unsigned char> d_o, dq, dk, dv;
  AttentionCall call;
};

std::string refused(const AttentionCall& call, std::string_view step = {}) {
  try {
    attention_on_emulator(call, step);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

// Of the steps in this program (v01, v02, v05, v10, v14, v16, v50, and two of the tests).
TEST_CASE("without a name the fastest step that can run the call is taken") {
  Example fp16(DType::kFp16), bf16(DType::kBf16, 128, false), fp32(DType::kFp32);
  CHECK(attention_on_emulator(fp16.call) == "v16_producer_warpgroup");
  CHECK(fp16.wrong() == "");
  CHECK(attention_on_emulator(bf16.call) == "v16_producer_warpgroup");
  CHECK(bf16.wrong() == "");
  CHECK(attention_on_emulator(fp32.call) == "v02_smem_tiles");  // v16 and v05 do not know the type
  CHECK(fp32.wrong() == "");
  Example odd(DType::kFp16, 64, true, 65);  // v16 and v14 want 16-byte rows
  CHECK(attention_on_emulator(odd.call) == "v05_padded_smem");
  CHECK(odd.wrong() == "");
}

TEST_CASE("FP8 has scales, of each head or one for all") {
  const float scales[] = {0.5f, 3, 1.25f, 0.01f};
  const Descale of_heads{scales, 2, 1}, of_sequences{scales, 1, 0}, one_for_all{scales + 1};
  for (const Descale& each : {Descale{}, of_heads, of_sequences, one_for_all}) {
    Example example(DType::kE4m3);
    example.call.q_descale = example.call.v_descale = each;
    CHECK(attention_on_emulator(example.call) == "v01_scalar");
    CHECK(example.wrong() == "");
    example.call.v_descale = {scales + 2};  // for what another one was taken
    CHECK(example.wrong() != "");
  }
  Example example(DType::kE4m3);
  example.call.k_descale = {scales, -1, 0};
  CHECK(refused(example.call) == "a scale has a negative stride");
  example.call.k_descale = {reinterpret_cast<const float*>(reinterpret_cast<const char*>(scales) + 2)};
  CHECK(refused(example.call) == "k_descale is not aligned to its elements of 4 bytes");
}

TEST_CASE("a named step is the one that runs") {
  Example example(DType::kFp16);
  CHECK(attention_on_emulator(example.call, "v01_scalar") == "v01_scalar");
  CHECK(example.wrong() == "");
}

TEST_CASE("TMA's own limits lead to another step, too") {
  Example example(DType::kFp16);
  // Heads in reverse order: TMA has no negative strides, everybody else does.
  TensorView& q = example.call.q;
  q.data = static_cast<char*>(q.data) + 3 * q.head_stride * 2;
  q.head_stride = -q.head_stride;
  CHECK(attention_on_emulator(example.call) == "v14_longest_first");
  CHECK(example.wrong() == "");
  CHECK(refused(example.call, "v16_producer_warpgroup").find("v16_producer_warpgroup ") == 0);
}

TEST_CASE("the stride of an axis of extent 1 may be anything") {
  for (const std::string_view step :
       {"v01_scalar", "v05_padded_smem", "v10_tma_warpspec", "v14_longest_first", "v16_producer_warpgroup"}) {
    for (const int keys : {1, 90}) {
      INFO(step << " " << keys);
      const auto run = [&](std::optional<int64_t> anything) {
        Example example(DType::kFp16);
        AttentionCall& call = example.call;
        call.batch = call.num_heads_q = call.num_heads_kv = call.seqlen_q = 1;
        call.seqlen_kv = keys;
        for (TensorView* const view : {&call.q, &call.k, &call.v, &call.o}) {
          if (!anything) continue;
          view->batch_stride = view->head_stride = *anything;
          if (keys == 1 || view == &call.q || view == &call.o) view->row_stride = *anything;
        }
        attention_on_emulator(call, step);
        return std::pair(example.o, example.lse);
      };
      const auto expected = run(std::nullopt);
      for (const int64_t anything :
           {int64_t(1), int64_t(0), int64_t(-1), std::numeric_limits<int64_t>::max()})
        CHECK(run(anything) == expected);
    }
  }
}

TEST_CASE("without queries the result is empty, and no step runs") {
  const auto is_nothing = [](const AttentionCall& call) {
    CHECK(attention_on_emulator(call) == "");
    CHECK(attention_on_emulator(call, "v10_tma_warpspec") == "");
    CHECK(attention_from_host(call) == "");
    CHECK(attention(call) == "");
    CHECK(workspace_bytes(call) == 0);
    CHECK(refused(call, "v99_none").find("unknown step 'v99_none'; there are ") == 0);
  };
  for (int AttentionCall::*const size :
       {&AttentionCall::batch, &AttentionCall::num_heads_q, &AttentionCall::seqlen_q}) {
    Example example(DType::kFp16);
    AttentionCall call = example.call;
    call.*size = 0;
    is_nothing(call);
    call.q.data = call.k.data = call.v.data = call.o.data = call.lse = nullptr;  // as of what has no elements
    is_nothing(call);
    call.num_heads_kv = call.seqlen_kv = 0;
    is_nothing(call);
    call.seqlen_kv = -3;
    CHECK(refused(call) == "seqlen_kv is -3, it must be at least 0");
    for (const unsigned char byte : example.o) REQUIRE(byte == 0xa5);
    for (const float value : example.lse) REQUIRE(value == 7.0f);
  }
  is_nothing(as_attention({.dtype = DType::kBf16,
                           .batch = 0,
                           .num_heads_q = 8,
                           .num_heads_kv = 2,
                           .seqlen_q = 1,
                           .head_dim = 128,
                           .seqlen_kv = 64}));
}

TEST_CASE("a call that is cancelled ends, and the next one is right") {
  for (const std::string_view step : {"v01_scalar", "v05_padded_smem", "v16_producer_warpgroup"}) {
    INFO(step);
    Example example(DType::kFp16);
    std::atomic<bool> cancel = false;
    std::jthread impatient([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      cancel = true;
    });
    std::error_code error;
    try {
      while (true) attention_on_emulator(example.call, step, &cancel);
    } catch (const std::system_error& ended) {
      error = ended.code();
    }
    CHECK(error == std::errc::operation_canceled);
    attention_on_emulator(example.call, step);
    CHECK(example.wrong() == "");
  }
}

TEST_CASE("the caller's floating-point environment does not matter, and stays") {
  Example plain(DType::kFp16), odd(DType::kFp16);
  attention_on_emulator(plain.call, "v05_padded_smem");
  std::fesetround(FE_UPWARD);
  attention_on_emulator(odd.call, "v05_padded_smem");
  const int rounding = std::fegetround();
  std::fesetround(FE_TONEAREST);
  CHECK(rounding == FE_UPWARD);
  CHECK(odd.o == plain.o);
}

TEST_CASE("lengths per batch, one of them zero") {
  Example example(DType::kFp32);
  const int lengths[] = {0, 33};
  example.call.kv_lengths = lengths;
  attention_on_emulator(example.call);
  CHECK(example.wrong() == "");
}

TEST_CASE("LSE may be null: it is not written, and the output is the same") {
  for (const std::string_view step :
       {"v01_scalar", "v02_smem_tiles", "v05_padded_smem", "v16_producer_warpgroup", "split"}) {
    INFO(step);
    Example with_lse(DType::kBf16), without(DType::kBf16);
    without.call.lse = nullptr;
    attention_on_emulator(with_lse.call, step);
    attention_on_emulator(without.call, step);
    CHECK(without.o == with_lse.o);
    for (const float value : without.lse) REQUIRE(value == 7.0f);
  }
}

TEST_CASE("v14 takes eight warps per CTA where an SM has no room for two CTAs of four") {
  const StepInfo& info = find_step("v14_longest_first", BackendKind::kEmulator)->info;
  const auto chosen = [&](int smem_kib, int head_dim) {
    emulator::options().smem_bytes_per_sm = smem_kib << 10;
    AttentionCall call = Example(DType::kFp16).call;
    call.head_dim = head_dim;
    const int configuration = configuration_of(info, call);
    emulator::options() = {};
    return std::string_view(info.configurations[configuration]);
  };
  for (const int smem_kib : {100, 164, 228}) {  // sm_86, 89 and 120; sm_80; sm_90
    INFO(smem_kib);
    CHECK(chosen(smem_kib, 64) == "128x64");
    CHECK(chosen(smem_kib, 128) == (smem_kib < 228 ? "256x32" : "128x64"));
  }
}

TEST_CASE("several kernels, a workspace, a limit and configurations of the step's own") {
  Example example(DType::kBf16);
  attention_on_emulator(example.call, "split");
  CHECK(example.wrong() == "");
  for (const int configuration : {0, 1}) {
    Example forced(DType::kBf16);
    forced.call.configuration = configuration;
    attention_on_emulator(forced.call, "split");
    CHECK(forced.wrong() == "");
    CHECK((forced.lse == example.lse) == (configuration == 0));  // its choice; other splits round otherwise
  }
  example.call.configuration = 2;
  CHECK(refused(example.call, "split") == "split has no configuration 2");
  example.call.configuration = 1;
  CHECK(refused(example.call, "v05_padded_smem") == "v05_padded_smem has no configuration 1");
  CHECK(refused(Example(DType::kFp16).call, "split") == "split supports bf16, not fp16");

  const Step& step = *find_step("split", BackendKind::kEmulator);
  AttentionCall call = Example(DType::kBf16).call;
  call.seqlen_kv = 501;
  call.configuration = 0;
  CHECK(refusal(step, call) == "needs three splits beyond 500 keys");
  call.configuration = AttentionCall::kChosenByStep;
  CHECK(refusal(step, call) == "");
  const size_t needed = needed_workspace(step.info, call);
  CHECK(needed == (64 + 2) * sizeof(float) * 3 * 2 * 4 * 70);
  CHECK(memory_refusal(step.info, call) ==
        "needs a workspace of " + std::to_string(needed) + " bytes, this call has none");
  alignas(kWorkspaceAlignment) static unsigned char memory[8];
  call.workspace = memory;
  call.workspace_bytes = needed - 1;
  CHECK(memory_refusal(step.info, call) == "needs a workspace of " + std::to_string(needed) +
                                               " bytes, this call has " + std::to_string(needed - 1));
  call.workspace_bytes = needed;
  CHECK(memory_refusal(step.info, call) == "");
  call.workspace = memory + 4;
  CHECK(memory_refusal(step.info, call) == "needs a workspace aligned to 256 bytes");
  call.workspace = nullptr;
  CHECK(memory_refusal(find_step("v05_padded_smem", BackendKind::kEmulator)->info, call) == "");
}

// In a process of its own: the file is read once.
TEST_CASE("a call gets what flashsteps tune has kept") {
  const TemporaryFolder folder;
  const std::string file = folder.file("tuning.json");
  const BuildInfo& build = build_info();
  write_file(file, json{{"schema", kTuningSchema},
                        {"commit", build.commit.empty() ? json() : json(build.commit)},
                        {"dirty", build.dirty ? json(*build.dirty) : json()},
                        {"entries",
                         {{{"device", "emulator"},
                           {"num_sms", 0},
                           {"step", "split"},
                           {"dtype", "bf16"},
                           {"head_dim", 64},
                           {"causal", true},
                           {"seqlen_q", 128},
                           {"seqlen_kv", 128},
                           {"heads", 8},
                           {"heads_per_kv_head", 2},
                           {"page_size", 0},
                           {"configurations", {"2splits", "3splits"}},
                           {"configuration", "3splits"}}}}}
                       .dump());
  // Its exit status, and what it says on standard error.
  const auto outcome = [&](const std::string& tuning) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe"), said = folder.file("said");
    const int status = std::system(
        (kTuningVariable + ("='" + tuning + "' '") + self + "' '[tuned]' 2> '" + said + "' > /dev/null")
            .c_str());
    std::ifstream in(said);
    return std::pair(status == 0, std::string(std::istreambuf_iterator<char>(in), {}));
  };
  CHECK(outcome(file) == std::pair(true, std::string()));
  CHECK(outcome("") == std::pair(false, std::string()));
  CHECK(outcome(folder.path) == std::pair(false, "flashsteps: the tuning file " + folder.path +
                                                     " is ignored: it is not a regular file\n"));
}

TEST_CASE("of the test above: this call is tuned", "[.][tuned]") {
  Example tuned(DType::kBf16), forced(DType::kBf16);
  attention_on_emulator(tuned.call, "split");
  forced.call.configuration = 1;  // not its own choice, with 90 keys; other splits round otherwise
  attention_on_emulator(forced.call, "split");
  CHECK((tuned.lse == forced.lse));
}

TEST_CASE("a step that uses counters finds them zero") {
  const StepInfo& info = find_step("counting", BackendKind::kEmulator)->info;
  alignas(kWorkspaceAlignment) static unsigned char memory[16];
  AttentionCall call = Example(DType::kBf16).call;
  call.workspace = memory;
  call.workspace_bytes = sizeof memory;
  CHECK(memory_refusal(info, call) == "needs counters, this call has none");
  static unsigned counters[kNumCounters];
  call.counters = counters;
  CHECK(memory_refusal(info, call) == "");
  Example example(DType::kBf16);
  for (int repeat = 0; repeat < 2; ++repeat) {
    attention_on_emulator(example.call, "counting");
    CHECK(example.wrong() == "");
  }
}

TEST_CASE("steps for decode come first for a few queries, and last for many") {
  Example many(DType::kBf16), few(DType::kBf16);
  CHECK(attention_on_emulator(many.call) == "v16_producer_warpgroup");
  few.call.seqlen_q = 16;
  CHECK(attention_on_emulator(few.call) == "split");
}

// What a grid of 65,535 CTAs in y and z leaves out.
TEST_CASE("more batches or heads than a grid has are several launches", "[long]") {
  const auto check = [](int batch, int heads_q, int heads_kv, size_t launches) {
    INFO(batch << " " << heads_q << " " << heads_kv);
    constexpr int HEAD_DIM = 64, KEYS = 3;
    const auto halves = [](size_t rows) {
      return Example::fill(rows * HEAD_DIM, DType::kFp16, unsigned(rows));
    };
    std::vector<unsigned char> q = halves(size_t(batch) * heads_q),
                               k = halves(size_t(batch) * heads_kv * KEYS);
    std::vector<unsigned char> v = halves(k.size() / HEAD_DIM / 2 + 1), o(q.size(), 0xa5);
    std::vector<float> lse(size_t(batch) * heads_q, 7.0f);
    std::vector<int> lengths(batch);
    for (int b = 0; b < batch; ++b) lengths[b] = b % (KEYS + 1);
    const AttentionCall call = {.dtype = DType::kFp16,
                                .batch = batch,
                                .num_heads_q = heads_q,
                                .num_heads_kv = heads_kv,
                                .seqlen_q = 1,
                                .seqlen_kv = KEYS,
                                .head_dim = HEAD_DIM,
                                .causal = false,
                                .softmax_scale = 0.125f,
                                .q = bhsd_view(q.data(), heads_q, 1, HEAD_DIM),
                                .k = bhsd_view(k.data(), heads_kv, KEYS, HEAD_DIM),
                                .v = bhsd_view(v.data(), heads_kv, KEYS, HEAD_DIM),
                                .o = bhsd_view(o.data(), heads_q, 1, HEAD_DIM),
                                .lse = lse.data(),
                                .kv_lengths = lengths.data()};
    CHECK(split_for_grid(call).size() == launches);
    attention_on_emulator(call, "v01_scalar");
    std::vector<RowId> rows;
    for (const int b : {0, 1, batch / 2, batch - 2, batch - 1}) {
      for (const int h : {0, 1, heads_q / 2, heads_q - 2, heads_q - 1}) {
        if (b >= 0 && b < batch && h >= 0 && h < heads_q) rows.push_back({b, h, 0});
      }
    }
    const Workload workload(problem_of(call), call);
    const Outputs outputs(workload.problem(), call);
    CHECK(judge(workload, reference_rows(workload, rows), outputs).message == "");
    CHECK(std::count(lse.begin(), lse.end(), 7.0f) == 0);
  };
  check(65535, 1, 1, 1);
  check(65537, 1, 1, 2);
  check(2, 65538, 2, 4);  // groups of 32,769: one a launch
  check(1, 65540, 10, 2);
  check(3, 65536, 1, 6);
}

TEST_CASE("parts of a call have their rows of an earlier result") {
  Example example(DType::kFp16);
  AttentionCall call = example.call;
  call.batch = 65537;
  const int64_t rows = int64_t(65535) * call.num_heads_q * 7;  // of the first part
  std::vector<float> o(rows * call.head_dim), lse(rows);
  call.earlier = {o.data(), lse.data(), 7};
  const std::vector<AttentionCall> parts = split_for_grid(call);
  REQUIRE(parts.size() == 2);
  CHECK((parts[0].earlier.o == o.data() && parts[0].earlier.lse == lse.data()));
  CHECK((parts[1].earlier.o == o.data() + o.size() && parts[1].earlier.lse == lse.data() + rows));
}

TEST_CASE("parts of a call have their sequences' pages, and one pool") {
  Example example(DType::kFp16);
  AttentionCall call = example.call;
  call.batch = 65537;
  const int table[1] = {};
  call.page_table = {.pages = table, .max_pages = 7, .page_size = 16, .num_pages = 5};
  const std::vector<AttentionCall> parts = split_for_grid(call);
  REQUIRE(parts.size() == 2);
  CHECK(parts[1].page_table.pages == table + int64_t(65535) * 7);
  CHECK((parts[1].k.data == call.k.data && parts[1].v.data == call.v.data));
  CHECK(parts[1].q.data != call.q.data);
}

TEST_CASE("attention_with_kvcache() of pages is that of the same keys in one piece, and right") {
  constexpr int BATCH = 3, HEADS_Q = 8, HEADS_KV = 2, ROWS = 2, HEAD_DIM = 64, PAGES = 11, PAGE_SIZE = 16;
  constexpr int MAX_PAGES = 4, ROW = HEADS_KV * HEAD_DIM;
  const auto q = Example::fill(BATCH * ROWS * HEADS_Q * HEAD_DIM, DType::kFp16, 1);
  auto k = Example::fill(PAGES * PAGE_SIZE * ROW, DType::kFp16, 2);
  auto v = Example::fill(PAGES * PAGE_SIZE * ROW, DType::kFp16, 3);
  std::vector<unsigned char> o(q.size(), 0xa5), expected = o;
  std::vector<float> lse(BATCH * HEADS_Q * ROWS), expected_lse = lse;
  const int lengths[BATCH] = {33, 0, 64};
  const int table[BATCH][MAX_PAGES] = {{7, 0, 9, -1}, {99, 99, 99, 99}, {2, 10, 1, 5}};
  std::vector<unsigned char> k_whole(BATCH * MAX_PAGES * PAGE_SIZE * ROW * 2), v_whole = k_whole;
  for (int b = 0; b < BATCH; ++b) {
    for (int i = 0; i * PAGE_SIZE < lengths[b]; ++i) {
      const size_t bytes = PAGE_SIZE * ROW * 2, from = table[b][i] * bytes, to = (b * MAX_PAGES + i) * bytes;
      std::copy_n(&k[from], bytes, &k_whole[to]);
      std::copy_n(&v[from], bytes, &v_whole[to]);
    }
  }
  KvCacheCall cache{.dtype = DType::kFp16,
                    .batch = BATCH,
                    .num_heads_q = HEADS_Q,
                    .num_heads_kv = HEADS_KV,
                    .seqlen_q = ROWS,
                    .head_dim = HEAD_DIM,
                    .q = q.data(),
                    .o = o.data(),
                    .k_cache = k.data(),
                    .v_cache = v.data(),
                    .cache_seqlens = lengths,
                    .page_table = {&table[0][0], MAX_PAGES, PAGE_SIZE, PAGES},
                    .lse = lse.data()};
  CHECK(as_attention(cache).softmax_scale == 0.125f);
  attention_on_emulator(as_attention(cache), "mutant_none");
  cache.page_table = {};
  cache.seqlen_kv = MAX_PAGES * PAGE_SIZE;
  cache.k_cache = k_whole.data(), cache.v_cache = v_whole.data();
  cache.o = expected.data(), cache.lse = expected_lse.data();
  attention_on_emulator(as_attention(cache), "v01_scalar");
  for (size_t i = 0; i < o.size(); i += 2) {
    INFO(i);
    REQUIRE(std::abs(load_element(DType::kFp16, &o[i]) - load_element(DType::kFp16, &expected[i])) < 4e-3);
  }
  for (size_t i = 0; i < lse.size(); ++i)
    REQUIRE((lse[i] == expected_lse[i] || std::abs(lse[i] - expected_lse[i]) < 1e-4));
  cache.seqlen_kv = 0;
  CHECK(refused(as_attention(cache)) == "seqlen_kv is 0, it must be at least 1");
  cache.dtype = DType::kE4m3;
  CHECK_THROWS_AS(as_attention(cache), std::invalid_argument);
  cache.dtype = DType::kFp32, cache.fp8_cache = true, cache.seqlen_kv = 1;
  CHECK(refused(as_attention(cache)) == "fp8_cache is for fp16 and bf16, and dtype is fp32");
}

TEST_CASE("views of contiguous tensors") {
  const float data = 0;
  const TensorView bhsd = bhsd_view(&data, 3, 5, 64), bshd = bshd_view(&data, 3, 5, 64);
  CHECK((bhsd.batch_stride == 960 && bhsd.head_stride == 320 && bhsd.row_stride == 64));
  CHECK((bshd.batch_stride == 960 && bshd.head_stride == 64 && bshd.row_stride == 192));
}

TEST_CASE("what is wrong with a call is named, and nothing is written") {
  const Example good(DType::kFp16);
  const auto with = [&](const std::function<void(AttentionCall&)>& change) {
    AttentionCall call = good.call;
    change(call);
    return refused(call);
  };
  CHECK(with([](AttentionCall& c) { c.batch = -1; }) == "batch is -1, it must be at least 1");
  CHECK(with([](AttentionCall& c) { c.num_heads_kv = 0; }) == "heads_kv is 0, it must be at least 1");
  static float any[1];
  CHECK(with([](AttentionCall& c) {
          c.earlier = {any, any, 1 << 20};
        }) == "earlier needs an lse and as many rows as there are queries, and lse is null then");
  AttentionCall merging = good.call;
  merging.lse = nullptr, merging.earlier = {any, any, 1 << 20};
  CHECK(refused(merging, "v05_padded_smem") == "v05_padded_smem cannot merge its result with an earlier one");
  CHECK(with([](AttentionCall& c) { c.seqlen_kv = -3; }) == "seqlen_kv is -3, it must be at least 1");
  CHECK(with([](AttentionCall& c) { c.num_heads_kv = 3; }) ==
        "heads_q (4) is not a multiple of heads_kv (3)");
  CHECK(with([](AttentionCall& c) { c.head_dim = 96; }) == "head_dim is 96, the steps support 64 and 128");
  CHECK(with([](AttentionCall& c) { c.v.data = nullptr; }) == "v is a null pointer");
  const std::string overlap = "o has a stride below head_dim: its rows overlap";
  CHECK(with([](AttentionCall& c) { c.o.head_stride = 0; }) == overlap);
  CHECK(with([](AttentionCall& c) { c.o.row_stride = -63; }) == overlap);
  CHECK(with([](AttentionCall& c) { c.dtype = DType(7); }) == "dtype is none of DType's");
  const auto shift = [](auto*& pointer) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(
        reinterpret_cast<uintptr_t>(pointer) + 1);
  };
  CHECK(with([&](AttentionCall& c) { shift(c.k.data); }) == "k is not aligned to its elements of 2 bytes");
  CHECK(with([&](AttentionCall& c) { shift(c.lse); }) == "lse is not aligned to its elements of 4 bytes");
  AttentionCall no_scale = good.call;
  no_scale.softmax_scale = 0;
  CHECK(refused(no_scale, "v05_padded_smem").find("v05_padded_smem needs a positive softmax_scale") == 0);
  CHECK(with([](AttentionCall& c) { c.softmax_scale = NAN; }).find("no step can run this call: ") == 0);
  const int lengths[] = {5, 91};
  CHECK(with([&](AttentionCall& c) { c.kv_lengths = lengths; }) ==
        "kv_lengths[1] is 91, it must be 0 to seqlen_kv, which is 90");
  const int table[] = {0, 3, -1, 4, 2, 1};
  const auto with_table = [&](int num_pages, int length) {
    return with([&](AttentionCall& c) {
      static int of_table[2];
      of_table[0] = length, of_table[1] = 90;
      c.page_table = {.pages = table, .max_pages = 3, .page_size = 32, .num_pages = num_pages};
      c.kv_lengths = of_table;
    });
  };
  CHECK(with_table(5, 65) ==
        "page_table[0][2] is -1, it must be 0 to 4: sequence 0 has 65 keys, in pages of 32");
  CHECK(with_table(4, 64) ==
        "page_table[1][0] is 4, it must be 0 to 3: sequence 1 has 90 keys, in pages of 32");
  CHECK(with([&](AttentionCall& c) {
          c.page_table = {.pages = table, .max_pages = 3, .page_size = 16, .num_pages = 5};
        }).find("page_table: max_pages is 3") == 0);
  const std::string unknown = refused(good.call, "v99_none");
  CHECK(unknown.find("unknown step 'v99_none'; there are ") == 0);
  CHECK(unknown.find(", v02_smem_tiles, ") != std::string::npos);
  AttentionCall fp32 = good.call;
  fp32.dtype = DType::kFp32;
  CHECK(refused(fp32, "v05_padded_smem") == "v05_padded_smem supports fp16 and bf16, not fp32");
  for (const unsigned char byte : good.o) REQUIRE(byte == 0xa5);
  for (const float value : good.lse) REQUIRE(value == 7.0f);
}

TEST_CASE("without a GPU, what needs one says so") {
  Example example(DType::kFp16);
  if (missing_gpu().empty()) return;  // gpu_tests has that case
  try {
    attention_from_host(example.call);
    FAIL("it ran");
  } catch (const std::runtime_error& error) {
    CHECK(error.what() == missing_gpu());
  }
  CHECK_THROWS_AS(attention(example.call), std::runtime_error);
}

// Calls of each kind that the rule tells apart, with what was the fastest, or within 1 % of it, in trials on
// an H200 or, where that says something else, on an H100.
TEST_CASE("the default step is what was the fastest in trials") {
  struct Case {
    int batch, heads_q, heads_kv, queries, keys, head_dim;
    bool causal;
    const char *step, *configuration;
    const char* on_h100 = configuration;
  };
  const Case cases[] = {
      {1, 32, 8, 1, 16384, 128, true, "v36", "ctas1"},
      {4, 32, 8, 1, 4096, 64, true, "v36", "ctas2", "ctas1"},  // fills two thirds of an H100's L2
      {16, 32, 8, 1, 4096, 64, true, "v36", "ctas1"},
      {1, 32, 8, 4, 4096, 64, false, "v39", "rows64"},
      {16, 32, 8, 16, 4096, 128, true, "v39", "rows64"},
      {16, 40, 8, 4, 8192, 128, true, "v39", "rows64"},  // 20 rows, more than a tile of v36 has
      {16, 28, 4, 4, 8192, 128, true, "v39", "rows64"},
      {1, 32, 8, 256, 1024, 64, true, "v37", "rows64"},
      {1, 32, 8, 256, 16384, 128, true, "v39", "rows128"},
      {1, 32, 8, 512, 16384, 64, true, "v39", "rows192"},
      {1, 1, 1, 8192, 8192, 64, false, "v39", "rows192"},
      {1, 32, 8, 512, 512, 128, true, "v27", "few_keys"},
      {4, 16, 16, 400, 400, 64, true, "v27", "few_keys"},
      {4, 16, 16, 4096, 4096, 128, false, "v27", "many_keys"},
  };
  for (const Case& c : cases) {
    AttentionCall call{};
    call.batch = c.batch;
    call.num_heads_q = c.heads_q;
    call.num_heads_kv = c.heads_kv;
    call.seqlen_q = c.queries;
    call.seqlen_kv = c.keys;
    call.head_dim = c.head_dim;
    call.causal = c.causal;
    INFO(c.queries << " queries, " << c.keys << " keys");
    const Card h100{132, 3.35e6, 50e6}, h200{132, 4.9e6, 60e6};
    for (const auto& [card, configuration] : {std::pair(h100, c.on_h100), std::pair(h200, c.configuration)}) {
      const DefaultStep chosen = default_step(call, card);
      CHECK(chosen.step.substr(0, 3) == c.step);  // in full, the build would link it
      CHECK(chosen.configuration == configuration);
    }
    CHECK(!default_step(call, {132, 0, 0}).step.empty());
  }
}

TEST_CASE("the default step of FP8 is Hopper's, though a later one runs there too") {
  AttentionCall call{};
  call.dtype = DType::kE4m3;
  call.head_dim = 128;
  call.seqlen_kv = 1024;
  CHECK(default_step(call, {132, 0, 0}).step.substr(0, 3) == "v46");
  call.seqlen_kv = 512;
  CHECK(default_step(call, {132, 0, 0}).step.substr(0, 3) == "v45");
  call.head_dim = 64;
  CHECK(default_step(call, {132, 0, 0}).step.substr(0, 3) == "v46");
  float lse = 0;
  call.lse = &lse;
  CHECK(default_step(call, {132, 0, 0}).step.substr(0, 3) == "v45");
  call.fast = true;
  CHECK(default_step(call, {132, 0, 0}).step.substr(0, 3) == "v41");
}

TEST_CASE("the default step of gradients is the last one that has run on a GPU") {
  AttentionCall call{};
  call.backward = true;
  CHECK(default_step(call, {132, 0, 0}).step == "v58_ordered_adds");
}

TEST_CASE("gradients agree with differences of results") {
  Example here(DType::kFp32);
  attention_on_emulator(here.call);
  Gradients gradients(here);
  CHECK(attention_on_emulator(gradients.call) == "v50_five_formulas");
  const auto dot = [](const std::vector<unsigned char>& a, const std::vector<unsigned char>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i += sizeof(float))
      sum += double(load_element(DType::kFp32, &a[i])) * double(load_element(DType::kFp32, &b[i]));
    return sum;
  };
  using Bytes = std::vector<unsigned char>;
  const std::pair<Bytes Example::*, Bytes*> inputs[] = {
      {&Example::q, &gradients.dq}, {&Example::k, &gradients.dk}, {&Example::v, &gradients.dv}};
  for (const auto& [input, gradient] : inputs) {
    const Bytes direction = Example::fill(gradient->size() / sizeof(float), DType::kFp32, 5);
    const auto moved = [&](float by) {  // what depends on O, where the input is another
      Example there(DType::kFp32);
      for (size_t i = 0; i < direction.size(); i += sizeof(float)) {
        unsigned char* const x = &(there.*input)[i];
        store_element(DType::kFp32, x,
                      load_element(DType::kFp32, x) + by * load_element(DType::kFp32, &direction[i]));
      }
      attention_on_emulator(there.call);
      return dot(gradients.d_o, there.o);
    };
    constexpr float kStep = 0.01f;
    const double difference = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    CHECK(std::abs(dot(*gradient, direction) - difference) < 0.01 * std::abs(difference));
  }
}

TEST_CASE("a call for gradients has what it needs, and nothing else") {
  Example example(DType::kFp16);
  attention_on_emulator(example.call);
  const Gradients gradients(example);
  const auto changed = [&](const std::function<void(AttentionCall&)>& change) {
    AttentionCall call = gradients.call;
    change(call);
    return refused(call);
  };
  CHECK(changed([](AttentionCall& call) { call.lse = nullptr; }) == "lse is a null pointer");
  CHECK(changed([](AttentionCall& call) { call.d_o.data = nullptr; }) == "d_o is a null pointer");
  CHECK(changed([](AttentionCall& call) { call.dk.row_stride = 0; }) ==
        "dk has a stride below head_dim: its rows overlap");
  CHECK(changed([](AttentionCall& call) { call.quantize = true; }) ==
        "the backward pass does not support quantize");
  CHECK(changed([](AttentionCall& call) { call.dtype = DType::kE4m3; }) ==
        "the backward pass is for fp32, fp16 and bf16, and dtype is e4m3");
  CHECK(refused(gradients.call, "v01_scalar") == "v01_scalar computes no gradients");
  CHECK(refused(example.call, "v50_five_formulas") ==
        "v50_five_formulas computes gradients, and the call does not ask for them");
}

TEST_CASE("without queries, gradients of keys are zero") {
  Example example(DType::kFp16, 64, true, 80);
  Gradients gradients(example);
  gradients.call.seqlen_q = 0;
  CHECK(attention_on_emulator(gradients.call) == "");
  for (const std::vector<unsigned char>* tensor : {&gradients.dk, &gradients.dv}) {
    bool is_right = true;
    for (size_t i = 0; i < tensor->size(); ++i) is_right &= (*tensor)[i] == (i / 2 % 80 < 64 ? 0 : 0xa5);
    CHECK(is_right);
  }
  gradients.call.dv.data = nullptr;
  CHECK(refused(gradients.call) == "dv is a null pointer");
}

TEST_CASE("steps() tells what is there, in the ladder's order") {
  const std::vector<StepDescription> all = steps();
  const auto describe = [&](std::string_view name) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& step) { return step.name == name; });
    REQUIRE(found != all.end());
    return *found;
  };
  for (size_t i = 1; i < all.size(); ++i) CHECK(all[i - 1].name < all[i].name);
  CHECK(describe("v01_scalar").dtypes.has(DType::kFp32));
  CHECK(describe("v01_scalar").part == "memory");
  CHECK(!describe("v01_scalar").spills.empty());
  const StepDescription tma = describe("v10_tma_warpspec");
  CHECK(tma.needs_sm == 90);
  CHECK(tma.alignment_bytes == 16);
  CHECK(!tma.needs_sm_exactly);
  CHECK(tma.part == "mma.sync");
  CHECK(tma.purpose == "prefill");
  CHECK(tma.configurations.empty());
  CHECK(!tma.dtypes.has(DType::kFp32));
  CHECK(tma.dtypes.has(DType::kBf16));
  CHECK(tma.spills.empty());
  CHECK(!tma.backward);
  CHECK(describe("v50_five_formulas").backward);
  CHECK(describe("v50_five_formulas").varies.empty());
}
