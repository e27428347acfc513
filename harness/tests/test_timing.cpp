// What a bench does and says of steps and of ceilings; the GPU's part is in gpu/.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "harness/device/gpu.h"
#include "harness/program/table.h"
#include "harness/run/timing.h"
#include "harness/tests/support.h"

using namespace flashsteps;
using nlohmann::json;

namespace {

Samples samples_of(std::vector<double> ms, json method) { return {std::move(ms), {1500}, std::move(method)}; }

std::map<std::string, Samples> measured() {
  return {{"mma_sync", samples_of({1, 2, 3}, {{"what", "products"}, {"unit", "FLOP"}, {"work", 4e12}})},
          {"exp2", samples_of({1, 1, 1}, {{"what", "ex2"}, {"unit", "exp2"}, {"work", 5e9}})},
          {"copy", {}},  // began, and was not there
          {"a step", samples_of({4}, {{"launches_per_sample", 1}, {"graph", false}})}};
}

StepResult timed(const char* step, const Timing& timing) {
  return {.step = step, .status = Status::kPass, .timing = timing};
}

// Within 0.5 %: published figures are rounded, a wrong rate is off by a factor of two.
bool about(double value, double expected) { return std::abs(value - expected) <= 0.005 * expected; }

// FLOP in a clock of an SM: of a card that has one, and a clock of 1 THz.
double tensor(const char* name, int compute_capability) {
  return peak_tflops(name, compute_capability, 1, 1'000'000, DType::kBf16);
}

}  // namespace

TEST_CASE("in the rounds of a bench nobody keeps a neighbour") {
  CHECK(order_of_round(0, 3).empty());
  CHECK(order_of_round(1, 3) == std::vector<size_t>{0});
  for (size_t count = 2; count <= 12; ++count) {
    const int rounds = int(count % 2 == 0 ? count : 2 * count);
    std::map<std::pair<size_t, size_t>, int> behind;
    for (int round = 0; round < rounds; ++round) {
      const std::vector<size_t> order = order_of_round(count, round);
      REQUIRE(order.size() == count);
      for (size_t i = 0; i < count; ++i) REQUIRE(std::count(order.begin(), order.end(), i) == 1);
      for (size_t i = 1; i < count; ++i) ++behind[{order[i - 1], order[i]}];
    }
    INFO(count);
    CHECK(behind.size() == count * (count - 1));
    for (const auto& [pair, times] : behind) REQUIRE(times == rounds / int(count));
  }
}

TEST_CASE("ceilings are recorded by what they count, and those that were not measured are absent") {
  const Ceilings ceilings = ceilings_of(measured());
  CHECK(ceilings.size() == 2);
  CHECK(ceilings.at("mma_sync").per_second() == Approx(2e15));
  CHECK(json(ceilings.at("mma_sync")) == json{{"median_ms", 2.0},
                                              {"p10_ms", 1.2},
                                              {"p90_ms", 2.8},
                                              {"sm_clock_mhz", 1500},
                                              {"what", "products"},
                                              {"unit", "FLOP"},
                                              {"work", 4e12}});
  const std::string text = format_ceilings(ceilings);
  INFO(text);
  CHECK(text.find("mma_sync  products  2000.0 TFLOPS\n") != std::string::npos);
  CHECK(text.find("exp2           ex2  5.00 T exp2/s\n") != std::string::npos);
}

TEST_CASE("a step has its share of the ceiling that its products meet, where the run has that one") {
  const Problem problem;
  const auto samples = measured();
  const Ceilings ceilings = ceilings_of(samples);
  const auto timing_with = [&](const std::string& limit) {
    return timing_of(samples.at("a step"), problem, ceilings, limit);
  };
  const Timing timing = timing_with("mma_sync");
  CHECK(timing.tflops == Approx(problem.flops() / 4e9));
  CHECK(json(timing).at("limit") == "mma_sync");
  const Rates rates = rates_of(timing, problem, 1000, ceilings);
  CHECK(rates.percent_of_limit.value() == Approx(timing.tflops / 20));
  CHECK(rates.percent_of_peak.value() == Approx(timing.tflops / 10));
  CHECK_FALSE(rates.percent_of_matmul.has_value());
  CHECK_FALSE(rates_of(timing, problem, 0, ceilings).percent_of_peak.has_value());
  for (const char* const limit : {"wgmma", ""}) {
    const Timing without = timing_with(limit);
    CHECK_FALSE(json(without).contains("limit"));
    CHECK_FALSE(rates_of(without, problem, 0, ceilings).percent_of_limit.has_value());
  }

  const Run run{
      problem, {timed("v01_scalar", timing), timed("v02_smem_tiles", timing_with("wgmma"))}, ceilings};
  const std::string text = format_run(run, 0);
  INFO(text);
  // Of two steps, the second one has no limit that was measured.
  CHECK(text.find(" mma_sync               -\n", text.find("% limit")) < text.find("x prev"));
  CHECK(text.find("  measured ceilings:\n") != std::string::npos);
}

TEST_CASE("the limit of a step follows from its part, and from whether tensor cores compute its products") {
  Problem problem{.seqlen_q = 17};
  StepInfo info{"", ""};
  const auto limit = [&](Part part) {
    info.part = part;
    return limit_of(info, problem);
  };
  CHECK(limit(Part::kMemory) == "mma_sync");
  CHECK(limit(Part::kMmaSync) == "mma_sync");
  CHECK(limit(Part::kHopper) == "wgmma");
  CHECK(limit(Part::kDecode) == "");
  CHECK(limit(Part::kFp8) == "");
  info.dtypes = {DType::kFp16, DType::kBf16, DType::kFp32};
  CHECK(limit(Part::kMemory) == "fma");
  problem.seqlen_q = 16;
  CHECK(limit(Part::kMemory) == "read_kv");
}

TEST_CASE(
    "with few queries a step has the rate at which it reads K and V, and its share of what reading them "
    "takes") {
  Problem problem{.batch = 2, .num_heads_q = 8, .num_heads_kv = 2, .seqlen_kv = 1000};
  CHECK(problem.kv_bytes() == 2.0 * 2 * 2 * 1000 * 64 * 2);
  problem.kv_lengths = KvLengths::kZeros;
  CHECK(problem.kv_bytes() < 2.0 * 2 * 1000 * 64 * 2 + 1);
  problem.kv_lengths = KvLengths::kFull;
  const Ceilings ceilings = ceilings_of(
      {{"read_kv", samples_of({1}, {{"what", "a read"}, {"unit", "bytes"}, {"work", problem.kv_bytes()}})}});
  const json cold = {{"launches_per_sample", 50}, {"graph", false}, {"l2", "cold"}};
  const Timing timing = timing_of(samples_of({4}, cold), problem, ceilings, "read_kv");
  CHECK(json(timing).at("l2") == "cold");
  const Rates rates = rates_of(timing, problem, 0, ceilings);
  CHECK(rates.kv_bytes_per_second.value() == Approx(250 * problem.kv_bytes()));
  CHECK(rates.percent_of_limit.value() == Approx(25));
  const std::string text = format_run({problem, {timed("v01_scalar", timing)}, ceilings}, 0);
  INFO(text);
  CHECK(text.find("ms, cold L2 ") < text.find("TB/s of K, V "));
  CHECK(text.find("25.0 read_kv") != std::string::npos);
  problem.seqlen_q = 17;
  CHECK_FALSE(rates_of(timing, problem, 0, ceilings).kv_bytes_per_second.has_value());
}

TEST_CASE("no table is wider than 100 columns, whether there are many steps, few queries or a cold L2") {
  Timing timing{};
  timing.median_ms = timing.p10_ms = timing.p90_ms = 1234.5678;
  timing.limit = "mma_sync";
  timing.cold_l2 = true;
  for (const int queries : {1, 4096}) {
    for (const size_t most : {2, 99}) {
      Run run;
      run.problem = {.seqlen_q = queries, .seqlen_kv = 4096};
      run.ceilings["mma_sync"] = {{1, 1, 1, {}}, "", "FLOP", 1e12};
      for (const StepChoice& step : all_steps()) {
        if (run.steps.size() < most) run.steps.push_back(timed(step.name.c_str(), timing));
      }
      run.steps.back().configuration = "some_keys";
      const std::string text = format_run(run, 989.4);
      INFO(text);
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) CHECK(line.size() <= kColumns);
      CHECK((text.find("% matmul") != std::string::npos) == (most == 2));  // few steps have all there is
    }
  }
}

TEST_CASE("SMs, clock and table give the published TFLOPS, at the clock that was given") {
  const struct {
    const char* name;
    int compute_capability, sm_count, clock_mhz;
    double tflops;
  } cards[] = {
      {"NVIDIA A100-SXM4-80GB", 80, 108, 1410, 312},
      {"NVIDIA A30", 80, 56, 1440, 165},
      {"NVIDIA A40", 86, 84, 1740, 149.7},
      {"NVIDIA A10G", 86, 80, 1710, 70},
      {"NVIDIA GeForce RTX 3090", 86, 82, 1695, 71.2},
      {"NVIDIA GeForce RTX 4090", 89, 128, 2520, 165.2},
      {"NVIDIA L4", 89, 60, 2040, 125.3},
      {"NVIDIA L40S", 89, 142, 2520, 366},
      {"NVIDIA H100 80GB HBM3", 90, 132, 1830, 989.4},
      {"NVIDIA H100 PCIe", 90, 114, 1620, 756},
      {"NVIDIA H200", 90, 132, 1830, 989.4},
      {"NVIDIA H200", 90, 132, 1980, 1070.5},  // which may be above the datasheet's
      {"NVIDIA B200", 100, 148, 1855, 2250},
      {"NVIDIA GeForce RTX 5090", 120, 170, 2407, 209.5},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 188, 2617, 503.8},
  };
  for (const auto& [name, compute_capability, sm_count, clock_mhz, tflops] : cards) {
    INFO(name);
    for (const DType dtype : {DType::kFp16, DType::kBf16})
      CHECK(about(peak_tflops(name, compute_capability, sm_count, clock_mhz, dtype), tflops));
  }
  // FP32 follows the compute capability, also on a card whose tensor rate is unknown.
  CHECK(peak_tflops("NVIDIA H100 80GB HBM3", 90, 132, 1980, DType::kE4m3) ==
        2 * peak_tflops("NVIDIA H100 80GB HBM3", 90, 132, 1980, DType::kBf16));
  CHECK(peak_tflops("NVIDIA A100-SXM4-40GB", 80, 108, 1410, DType::kE4m3) == 0);  // it has no FP8
  CHECK(about(peak_tflops("NVIDIA A100-SXM4-40GB", 80, 108, 1410, DType::kFp32), 19.5));
  CHECK(about(peak_tflops("NVIDIA L40", 89, 142, 2490, DType::kFp32), 90.5));
  CHECK(about(peak_tflops("NVIDIA H100 80GB HBM3", 90, 132, 1980, DType::kFp32), 66.9));
  CHECK(peak_tflops("NVIDIA H300", 130, 132, 1980, DType::kFp32) == 0);
}

TEST_CASE("names that contain each other are different cards, and an unknown one has no relative's peak") {
  CHECK(tensor("NVIDIA A10", 86) == 0);  // not in the table, and neither an A100 nor an A10G
  CHECK(tensor("NVIDIA A100-PCIE-40GB", 80) == 2048);
  CHECK(tensor("NVIDIA RTX A4000", 86) == 0);  // not in the table, and not an A40
  CHECK(tensor("NVIDIA L40", 89) == 0);        // its published figures disagree
  CHECK(tensor("NVIDIA H20", 90) == 0);        // throttled, and a beginning of H200
  CHECK(tensor("NVIDIA H200 NVL", 90) == 4096);
  CHECK(tensor("NVIDIA GB200", 100) == 0);  // "B200" is not a word of it
  CHECK(tensor("NVIDIA GeForce RTX 4090 Laptop GPU", 89) == 512);
  CHECK(tensor("NVIDIA GeForce RTX 2080 Ti", 75) == 0);
  CHECK(tensor("NVIDIA GeForce MX570", 86) == 0);
  CHECK(tensor("NVIDIA H100 80GB HBM3", 80) == 0);  // a name that its compute capability contradicts
  CHECK(tensor("", 90) == 0);
}
