// Shapes, names, FLOPs and where rows lie in memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "harness/base/element.h"
#include "harness/base/text.h"
#include "harness/device/backend.h"
#include "harness/device/device_tensors.h"
#include "harness/problem/shapes.h"
#include "harness/problem/tensors.h"
#include "harness/run/step_result.h"
#include "harness/tests/support.h"

using namespace flashsteps;

TEST_CASE("a shape is read in its three forms") {
  Problem p = parse_shape("2,4,100,64");
  CHECK(
      (p.batch == 2 && p.num_heads_q == 4 && p.num_heads_kv == 4 && p.seqlen_q == 100 && p.seqlen_kv == 100));
  CHECK(p.head_dim == 64);
  p = parse_shape("1,8,2,33,128");
  CHECK((p.num_heads_q == 8 && p.num_heads_kv == 2 && p.seqlen_q == 33 && p.seqlen_kv == 33 &&
         p.head_dim == 128));
  p = parse_shape("1,8,2,33,77,128");
  CHECK((p.seqlen_q == 33 && p.seqlen_kv == 77));
}

TEST_CASE("a bad shape is refused with the reason") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "expected"},
      {"1,2,3", "expected"},
      {"1,2,3,4,5,6,7", "expected"},
      {"1,2,x,64", "expected"},
      {"1,2,3.5,64", "expected"},
      {"1,2,3,64,", "expected"},
      {" 1,2,3,64", "expected"},
      {"0,2,3,64", "batch is 0"},
      {"1,-2,3,64", "heads_q is -2"},
      {"1,2,0,64", "seqlen_q is 0"},
      {"1,2,2,5,0,64", "seqlen_kv is 0"},
      {"1,2,3,63", "head_dim is 63"},
      {"1,3,2,16,64", "not a multiple"},
      {"1,2,99999999999,64", "32 bits"},
      {"1,1,2000000000,64", "2^30"},
      {"2000000000,2000000000,1000,64", "overflows"},
  };
  for (const auto& [text, reason] : cases) {
    INFO(text);
    std::string message;
    try {
      parse_shape(text);
    } catch (const UsageError& error) {
      message = error.what();
    }
    INFO(message);
    CHECK(message.find(reason) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("FLOPs count the unmasked pairs") {
  for (const bool causal : {false, true}) {
    for (const auto& [q, kv] : {std::pair{5, 5}, {5, 12}, {12, 5}, {1, 1}, {64, 200}}) {
      for (const KvLengths lengths : {KvLengths::kFull, KvLengths::kRandom, KvLengths::kZeros}) {
        Problem p{.batch = 3,
                  .num_heads_q = 4,
                  .num_heads_kv = 2,
                  .seqlen_q = q,
                  .seqlen_kv = kv,
                  .causal = causal,
                  .kv_lengths = lengths};
        double pairs = 0;
        for (const int kv_len : p.draw_kv_lengths())
          for (int i = 0; i < q; ++i)
            for (int j = 0; j < kv_len; ++j) pairs += !causal || j <= i + kv_len - q;
        CHECK(p.flops() == 4.0 * 64 * 4 * pairs);
        p.backward = true;
        CHECK(p.flops() == 2.5 * 4.0 * 64 * 4 * pairs);
      }
    }
  }
}

TEST_CASE("visible_keys is the bottom-right causal mask") {
  Problem p{.seqlen_q = 3, .causal = true};
  CHECK(p.visible_keys(2, 7) == 7);  // the last query sees every key
  CHECK(p.visible_keys(0, 7) == 5);
  CHECK(p.visible_keys(0, 1) == 0);  // more queries than keys: the first ones see none
  CHECK(p.visible_keys(2, 1) == 1);
  CHECK(p.visible_keys(2, 0) == 0);
}

TEST_CASE("kv_lengths stay in range and leave padding") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Problem p{.batch = 3, .seqlen_kv = 17, .kv_lengths = KvLengths::kRandom, .seed = seed};
    int shortest = 17;
    for (const int n : p.draw_kv_lengths()) {
      CHECK((n >= 1 && n <= 17));
      shortest = std::min(shortest, n);
    }
    CHECK(shortest < 17);
    p.kv_lengths = KvLengths::kZeros;
    CHECK(p.draw_kv_lengths()[0] == 0);
  }
}

TEST_CASE("no two elements share a place, in any layout, and none lies in a guard band") {
  for (const auto& [text, layout] : kLayoutNames) {
    for (const bool backward : {false, true}) {
      INFO(text << ", backward " << backward);
      const Problem p{.batch = 2,
                      .num_heads_q = 4,
                      .num_heads_kv = 2,
                      .seqlen_q = 5,
                      .seqlen_kv = 9,
                      .layout = layout,
                      .backward = backward};
      const TensorPlan plan = plan_tensors(p);
      std::set<std::pair<int, int64_t>> places;
      size_t count = 0;
      const auto visit = [&](const std::vector<PlannedTensor>& tensors, const std::vector<int64_t>& elements,
                             int first_buffer) {
        for (const auto& [name, member] : tensors) {
          const Placement& t = plan.*member;
          const bool is_of_keys = std::string("k v dk dv").find(name) != std::string::npos;
          CHECK((t.heads == (is_of_keys ? 2 : 4) && t.rows == (is_of_keys ? 9 : 5)));
          for (const RowId row : t.all_rows()) {
            for (int d = 0; d < p.head_dim; ++d, ++count) {
              const int64_t place = t.at(row) + d;
              REQUIRE((place >= kGuardElements && place < elements[t.buffer] - kGuardElements));
              places.insert({first_buffer + t.buffer, place});
            }
          }
        }
      };
      visit(inputs_of(p), plan.input_elements, 0);
      visit(outputs_of(p), plan.output_elements, 100);
      CHECK(places.size() == count);
    }
  }
}

TEST_CASE("the same problem has the same inputs in every layout; only what a step must not read is NaN") {
  Problem p{.batch = 2,
            .num_heads_q = 2,
            .num_heads_kv = 1,
            .seqlen_q = 6,
            .seqlen_kv = 10,
            .kv_lengths = KvLengths::kRandom};
  const Workload plain(p);
  for (const auto& [text, layout] : kLayoutNames) {
    INFO(text);
    Problem other = p;
    other.layout = layout;
    const Workload w(other);
    for (int b = 0; b < p.batch; ++b) {
      for (int j = 0; j < p.seqlen_kv; ++j) {
        for (int d = 0; d < p.head_dim; ++d) {
          const float k = load_element(p.dtype, static_cast<const char*>(w.k_row({b, 0, j})) + d * 2);
          if (j < w.kv_lengths()[b]) {
            CHECK(k == load_element(p.dtype, static_cast<const char*>(plain.k_row({b, 0, j})) + d * 2));
          } else {
            CHECK(std::isnan(k));
          }
        }
      }
    }
  }
}

TEST_CASE("pages hold the same keys, in other places; the rest of the pool and of the table is poison") {
  Problem p{.batch = 3, .num_heads_q = 2, .num_heads_kv = 2, .seqlen_kv = 50};
  for (const KvLengths lengths : {KvLengths::kFull, KvLengths::kSkewed, KvLengths::kZeros}) {
    p.kv_lengths = lengths;
    p.page_size = 0;
    const Workload plain(p);
    for (const int page_size : {1, 16, 64}) {
      p.page_size = page_size;
      for (const Layout layout :
           {Layout::kBhsd, Layout::kBshd, Layout::kGapped, Layout::kOdd, Layout::kFar}) {
        p.layout = layout;
        Workload w(p);
        w.poison(Poison::kLarge);
        INFO(p.label());
        const size_t row_bytes = p.head_dim * element_bytes(p.dtype);
        std::set<int> used;
        std::set<const void*> rows;
        const int max_pages = int(w.page_table().size()) / p.batch;
        REQUIRE(max_pages == (p.seqlen_kv + page_size - 1) / page_size + 1);  // seed 1 leaves one more
        bool in_order = true;
        for (int b = 0; b < p.batch; ++b) {
          const int length = w.kv_lengths()[b], own = (length + page_size - 1) / page_size;
          for (int i = 0; i < max_pages; ++i) {
            const int page = w.page_table()[b * max_pages + i];
            if (i >= own) {
              CHECK(page == 0x7b7b7b7b);
              continue;
            }
            CHECK((page >= 0 && page < w.plan().k.batch));
            CHECK(used.insert(page).second);
            in_order = in_order && (i == 0 || page > w.page_table()[b * max_pages + i - 1]);
          }
          for (int h = 0; h < p.num_heads_kv; ++h) {
            for (int j = 0; j < length; ++j) {
              rows.insert(w.k_row({b, h, j}));
              CHECK(std::memcmp(w.k_row({b, h, j}), plain.k_row({b, h, j}), row_bytes) == 0);
              CHECK(std::memcmp(w.v_row({b, h, j}), plain.v_row({b, h, j}), row_bytes) == 0);
            }
          }
        }
        CHECK(int(used.size()) < w.plan().k.batch);  // some pages are nobody's
        if (page_size == 1) CHECK_FALSE(in_order);
        const Placement& k = w.plan().k;
        for (const RowId place : k.all_rows()) {
          const unsigned char* const row = &w.input(k.buffer)[k.at(place) * element_bytes(p.dtype)];
          if (rows.count(row) == 0)
            CHECK(std::all_of(row, row + row_bytes, [](unsigned char byte) { return byte == 0x7b; }));
        }
      }
    }
  }
}

TEST_CASE("a step that knows no pages refuses them; their sizes must fit") {
  Problem p{.batch = 2, .seqlen_kv = 50, .layout = Layout::kGapped, .page_size = 16};
  Step step{"some", BackendKind::kEmulator, {.title = "", .removes = "", .alignment_bytes = 16}, nullptr};
  AttentionCall call = shape_of_call(p);
  CHECK(refusal(step, call) == "cannot read K and V through a page table");
  step.info.pages = true;
  CHECK(refusal(step, call) == "");
  call.v.batch_stride += 1;  // of a page, also where there is one sequence
  call.batch = 1;
  CHECK(refusal(step, call) == "needs every row of v to be 16-byte aligned");
  call = shape_of_call(p);
  CHECK(page_table_error(call) == "");
  call.page_table.max_pages = 3;
  CHECK(page_table_error(call) ==
        "page_table: max_pages is 3, so a sequence has room for 48 keys, and seqlen_kv is 50");
  call.page_table.page_size = 24;
  CHECK(page_table_error(call) == "page_table: page_size is 24, it must be a power of two");
  call = shape_of_call(p);
  call.page_table.num_pages = 0;
  CHECK(page_table_error(call) == "page_table: num_pages is 0, it must be at least 1");
}

TEST_CASE("gapped layouts leave strides of axes of extent 1 that are not aligned; kernels get others") {
  for (const int page_size : {0, 1}) {
    Problem p;  // one row each
    p.layout = Layout::kGapped;
    p.page_size = page_size;
    const AttentionCall call = shape_of_call(p), of_kernel = with_kernel_strides(call);
    for (const auto& [given, got] : {std::pair(call.q, of_kernel.q), std::pair(call.k, of_kernel.k),
                                     std::pair(call.v, of_kernel.v), std::pair(call.o, of_kernel.o)}) {
      CHECK((given.head_stride % 2 != 0 && given.row_stride % 2 != 0));
      CHECK((got.head_stride == p.head_dim && got.row_stride == p.head_dim));
      CHECK(got.data == given.data);
    }
    CHECK((call.q.batch_stride % 2 != 0 && of_kernel.q.batch_stride == p.head_dim));
    CHECK((call.k.batch_stride % 2 != 0) == (page_size == 0));  // there are several pages
    CHECK((of_kernel.k.batch_stride == call.k.batch_stride) == (page_size != 0));
  }
}

TEST_CASE("num_splits is the most that a step's configurations allow, where these are splits") {
  const StepInfo splits{.title = "",
                        .removes = "",
                        .configurations = {"splits4", "splits1", "splits8"},
                        .choose = [](const AttentionCall&) { return 2; }};
  const StepInfo tiles{.title = "", .removes = "", .configurations = {"64x64", "128x64"}};
  AttentionCall call = shape_of_call(Problem{});
  const auto chosen = [&](const StepInfo& info, int num_splits) {
    call.num_splits = num_splits;
    return std::string(info.configurations[configuration_of(info, call)]);
  };
  CHECK(chosen(splits, 0) == "splits8");  // the step's own choice
  CHECK(chosen(splits, 1) == "splits1");
  CHECK(chosen(splits, 3) == "splits1");
  CHECK(chosen(splits, 4) == "splits4");
  CHECK(chosen(splits, 1000) == "splits8");
  CHECK(chosen(tiles, 4) == "64x64");
  call.configuration = 0;
  CHECK(chosen(splits, 1000) == "splits4");
}

TEST_CASE("another poison takes the place of all that a step must not read, and of nothing else") {
  Problem p{.batch = 2,
            .num_heads_q = 2,
            .num_heads_kv = 1,
            .seqlen_q = 6,
            .seqlen_kv = 10,
            .kv_lengths = KvLengths::kRandom};
  for (const auto& [text, layout] : kLayoutNames) {
    p.layout = layout;
    const Workload as_it_was(p);
    Workload w(p);
    CHECK_FALSE(w.poison(Poison::kNan));
    for (const Poison poison : {Poison::kLarge, Poison::kSmall, Poison::kNan}) {
      CHECK(w.poison(poison));
      INFO(text << ", " << name(poison));
      for (size_t buffer = 0; buffer < w.plan().input_elements.size(); ++buffer) {
        const auto now = w.input(int(buffer)), before = as_it_was.input(int(buffer));
        REQUIRE(now.size() == before.size());
        int64_t poisoned = 0;
        bool right = true;
        for (size_t i = 0; i < now.size(); i += 2) {
          constexpr Poison kNan = Poison::kNan;
          const bool is_poison = std::memcmp(&before[i], &kNan, 2) == 0;
          poisoned += is_poison;
          right = right &&
                  std::memcmp(&now[i], is_poison ? static_cast<const void*>(&poison) : &before[i], 2) == 0;
        }
        CHECK(right);
        CHECK(poisoned >= 2 * kGuardElements);
      }
    }
  }
}

namespace {

// By how much, in units of log2, the largest score of each tile of keys lies above those of all tiles before
// it: the least of all rows. Tiles are met from the first to the last, or the other way round.
double least_growth(const Problem& p, int tile, bool backwards) {
  const Workload w(p);
  std::vector<float> q(p.head_dim), k(p.head_dim);
  const int num_tiles = p.seqlen_kv / tile;
  double least = INFINITY;
  for (const RowId row : p.rows()) {
    load_elements(p.dtype, w.q_row(row), p.head_dim, q.data());
    double base = -INFINITY;
    for (int t = 0; t < num_tiles; ++t) {
      double largest = -INFINITY;
      for (int j = 0; j < tile; ++j) {
        const int key = (backwards ? num_tiles - 1 - t : t) * tile + j;
        load_elements(p.dtype, w.k_row({row.b, row.h * p.num_heads_kv / p.num_heads_q, key}), p.head_dim,
                      k.data());
        const double score = std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
        largest = std::max(largest, score * p.softmax_scale() * 1.4426950408889634);
      }
      if (t > 0) least = std::min(least, largest - base);
      base = std::max(base, largest);
    }
  }
  return least;
}

}  // namespace

TEST_CASE("steep scores outgrow what the lazy softmax tolerates, in every tile of every row", "[long]") {
  // kMaxGrowth and the exponent of kLostSum in common/blocks/online_softmax.h.
  constexpr double kRescales = 15, kIsLost = 100;
  for (const DType dtype : {DType::kFp16, DType::kBf16}) {
    for (const int head_dim : {64, 128}) {
      for (const int keys : {128, 384, 1000, 4096, 16384}) {
        Problem p{.batch = 2,
                  .num_heads_q = 2,
                  .num_heads_kv = 2,
                  .seqlen_q = 2,
                  .seqlen_kv = keys,
                  .head_dim = head_dim,
                  .dtype = dtype};
        INFO(p.label());
        for (const int tile : {64, 128}) {
          if (keys < 2 * tile) continue;
          p.inputs = Inputs::kRising;
          CHECK(least_growth(p, tile, false) > kRescales);
          CHECK(least_growth(p, tile, true) < 0);
          p.inputs = Inputs::kFalling;
          CHECK(least_growth(p, tile, true) > kIsLost);
          CHECK(least_growth(p, tile, false) < 0);
        }
      }
    }
  }
  Problem p;
  p.seqlen_kv = 4096;
  CHECK(least_growth(p, 64, false) < 0);
  p.seqlen_kv = 16384 + 1;
  p.inputs = Inputs::kRising;
  CHECK(shape_error(p).find("16384 keys") != std::string::npos);
}

TEST_CASE("a problem survives JSON") {
  Problem p{.batch = 2,
            .num_heads_q = 6,
            .num_heads_kv = 3,
            .seqlen_q = 7,
            .seqlen_kv = 9,
            .head_dim = 128,
            .dtype = DType::kBf16,
            .causal = true,
            .kv_lengths = KvLengths::kZeros,
            .layout = Layout::kGapped,
            .inputs = Inputs::kSharp,
            .page_size = 16,
            .lse = false,
            .given_scale = 0.05,
            .seed = 12345678901234567ull};
  CHECK(problem_from_json(to_json(p)).label() == p.label());
  CHECK(problem_from_json(to_json(p)).softmax_scale() == 0.05f);
  CHECK_FALSE(problem_from_json(to_json(p)).lse);
  CHECK(problem_from_json(to_json(p)).seed == p.seed);
}

TEST_CASE("a step that needs a newer GPU is refused with both architectures") {
  const StepInfo info{.title = "", .removes = "", .needs_sm = "90"};
  CHECK(architecture_refusal(info, "NVIDIA A100", 80) == "needs sm_90 or newer, NVIDIA A100 is sm_80");
  CHECK(architecture_refusal(info, "NVIDIA H200", 90) == "");
  CHECK(architecture_refusal(info, "NVIDIA B200", 100) == "");
  CHECK(architecture_refusal({.title = "", .removes = ""}, "NVIDIA A100", 80) == "");
  const StepInfo wgmma{.title = "", .removes = "", .needs_sm = "90a"};
  CHECK(architecture_refusal(wgmma, "NVIDIA H200", 90) == "");
  CHECK(architecture_refusal(wgmma, "NVIDIA RTX 5090", 120) ==
        "needs sm_90a and nothing else, NVIDIA RTX 5090 is sm_120");
  CHECK(architecture_refusal(wgmma, "NVIDIA A100", 80) ==
        "needs sm_90a and nothing else, NVIDIA A100 is sm_80");
}

TEST_CASE("a step that needs aligned rows refuses the layout that has none") {
  Step step{"needs_alignment",
            BackendKind::kEmulator,
            {.title = "", .removes = "", .alignment_bytes = 16},
            nullptr};
  for (const auto& [text, layout] : kLayoutNames) {
    INFO(text);
    Problem p{.num_heads_q = 2, .num_heads_kv = 2, .seqlen_q = 5, .seqlen_kv = 5, .layout = layout};
    const std::string reason = refusal(step, shape_of_call(p));
    CHECK((reason.find("16-byte aligned") != std::string::npos) == (layout == Layout::kOdd));
  }
  // A stride that nobody uses may be anything; one that is used may not.
  AttentionCall single = shape_of_call(Problem{});
  single.batch = 1;
  single.k.batch_stride += 1;
  CHECK(refusal(step, single) == "");
  single.batch = 2;
  CHECK(refusal(step, single) == "needs every row of k to be 16-byte aligned");
  Problem p;
  p.dtype = DType::kFp32;
  CHECK(refusal(step, shape_of_call(p)).find("not fp32") != std::string::npos);
  for (const float scale : {0.0f, -0.125f, NAN, INFINITY, 3e38f}) {
    AttentionCall call = shape_of_call(Problem{});
    call.softmax_scale = scale;
    CHECK(refusal(step, call).find("positive softmax_scale") != std::string::npos);
  }
}
