// What a bench says of steps and of ceilings, in the results file and in the table; the GPU's part is in
// gpu/.
#include "harness/program/table.h"
#include "harness/run/timing.h"
#include "harness/tests/catch.h"

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

}  // namespace

TEST_CASE("ceilings are recorded by what they count, and those that were not measured are absent") {
  const json ceilings = ceilings_record(measured());
  CHECK(ceilings.size() == 2);
  CHECK(per_second(ceilings.at("mma_sync")) == Approx(2e15));
  CHECK(ceilings.at("mma_sync").at("median_ms") == 2);
  CHECK(ceilings.at("mma_sync").at("sm_clock_mhz") == 1500);
  CHECK(per_second(ceilings.at("exp2")) == Approx(5e12));
  CHECK(ceilings.at("exp2").at("unit") == "exp2");
  const std::string text = format_ceilings(ceilings);
  INFO(text);
  CHECK(text.find("mma_sync  products  2000.0 "
                  "TFLOPS\n") != std::string::npos);
  CHECK(text.find("exp2           ex2  5.00 T exp2/s\n") != std::string::npos);
}

TEST_CASE("costs of instructions are a table") {
  const std::string text = format_instructions({{"products_of_round", 8},
                                                {"warps",
                                                 {{{"warps", 2},
                                                   {"spread", 48.0},
                                                   {"together", 50.0},
                                                   {"others",
                                                    {{{"instruction", "FFMA"},
                                                      {"banks", 1},
                                                      {"beside", {8, 16, 32}},
                                                      {"spread", {56.0, 64.0, 80.0}},
                                                      {"together", {54.0, 58.0, 66.25}}}}}}}}});
  CHECK(text ==
        "  instruction  warps  banks  beside  spread  together\n"
        "  none             2      -       0    48.0      50.0\n"
        "  FFMA             2      1       8    56.0      54.0\n"
        "  FFMA             2      1      16    64.0      58.0\n"
        "  FFMA             2      1      32    80.0      66.2\n");
}

TEST_CASE("a step has its share of the ceiling that its products meet, where the run has that one") {
  Problem problem;
  const auto samples = measured();
  const auto record = [&](const json& ceilings, const std::string& limit) {
    return timing_record(samples.at("a step"), problem, ceilings, limit);
  };
  const json ceilings = ceilings_record(samples), timing = record(ceilings, "mma_sync");
  const double tflops = timing.at("tflops");
  CHECK(tflops == Approx(problem.flops() / 4e9));
  CHECK(timing.at("limit") == "mma_sync");
  const Rates rates = rates_of(timing, problem, 1000, ceilings);
  CHECK(rates.percent_of_limit.value() == Approx(tflops / 20));
  CHECK(rates.percent_of_peak.value() == Approx(tflops / 10));
  CHECK_FALSE(rates.percent_of_matmul.has_value());
  CHECK_FALSE(rates_of(timing, problem, 0, ceilings).percent_of_peak.has_value());
  for (const char* const limit : {"wgmma", ""}) {
    const json without = record(ceilings, limit);
    CHECK_FALSE(without.contains("limit"));
    CHECK_FALSE(rates_of(without, problem, 0, ceilings).percent_of_limit.has_value());
  }
  CHECK_FALSE(record(json::object(), "mma_sync").contains("limit"));

  const json run = {{"steps",
                     {{{"step", "v07"}, {"status", "pass"}, {"timing", timing}},
                      {{"step", "v08"}, {"status", "pass"}, {"timing", record(ceilings, "wgmma")}}}},
                    {"ceilings", ceilings}};
  const std::string text = format_run(run, problem, 0);
  INFO(text);
  CHECK(text.find("% limit") != std::string::npos);
  CHECK(text.find(" mma_sync ") < text.find("v08"));
  CHECK(text.find("  measured ceilings:\n") != std::string::npos);
}

TEST_CASE("the limit of a step follows from its part, and from whether tensor cores compute its products") {
  Problem problem;
  problem.seqlen_q = 17;
  StepInfo info{"", ""};
  CHECK(limit_of(info, problem) == "mma_sync");
  info.part = Part::kMmaSync;
  CHECK(limit_of(info, problem) == "mma_sync");
  info.part = Part::kHopper;
  CHECK(limit_of(info, problem) == "wgmma");
  info.part = Part::kDecode;
  CHECK(limit_of(info, problem) == "");
  info.part = Part::kMemory;
  info.dtypes = {DType::kFp16, DType::kBf16, DType::kFp32};
  CHECK(limit_of(info, problem) == "fma");
  problem.seqlen_q = 16;
  CHECK(limit_of(info, problem) == "read_kv");
}

TEST_CASE(
    "with few queries a step has the rate at which it reads K and V, and its share of what reading them "
    "takes") {
  Problem problem;
  problem.batch = 2, problem.num_heads_q = 8, problem.num_heads_kv = 2, problem.seqlen_kv = 1000;
  CHECK(problem.kv_bytes() == 2.0 * 2 * 2 * 1000 * 64 * 2);
  problem.kv_lengths = KvLengths::kZeros;
  CHECK(problem.kv_bytes() < 2.0 * 2 * 1000 * 64 * 2 + 1);
  problem.kv_lengths = KvLengths::kFull;
  const json cold = {{"launches_per_sample", 50}, {"graph", false}, {"l2", "cold"}};
  const json ceilings = ceilings_record(
      {{"read_kv", samples_of({1}, {{"what", "a read"}, {"unit", "bytes"}, {"work", problem.kv_bytes()}})}});
  CHECK(per_second(ceilings.at("read_kv")) == Approx(1e3 * problem.kv_bytes()));
  const json timing = timing_record(samples_of({4}, cold), problem, ceilings, "read_kv");
  CHECK(timing.at("l2") == "cold");
  const Rates rates = rates_of(timing, problem, 0, ceilings);
  CHECK(rates.kv_bytes_per_second.value() == Approx(250 * problem.kv_bytes()));
  CHECK(rates.percent_of_limit.value() == Approx(25));
  const json steps = {{{"step", "v28"}, {"status", "pass"}, {"timing", timing}}};
  const std::string text = format_run({{"steps", steps}, {"ceilings", ceilings}}, problem, 0);
  INFO(text);
  CHECK(text.find("ms, cold L2  TB/s of K, V  TFLOPS") != std::string::npos);
  CHECK(text.find("25.0 read_kv") != std::string::npos);
  problem.seqlen_q = 17;
  CHECK_FALSE(rates_of(timing, problem, 0, ceilings).kv_bytes_per_second.has_value());
}

TEST_CASE("where nothing can be timed no ceiling is measured") {
  Runner runner("emulator", /*in_process=*/true, 60);
  CHECK(ceilings_record(time_ceilings(runner, 2)).empty());
}
