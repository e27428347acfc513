// The table of peaks against published figures, and against the names that a careless look-up would mix up.
#include <cmath>

#include "harness/device/device_peaks.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

namespace {

// Within 0.5 %: published figures are rounded, a wrong rate is off by a factor of two.
bool about(double value, double expected) { return std::abs(value - expected) <= 0.005 * expected; }

// Of an SM: a card that has one, and a clock of 1 THz.
double flop_per_clock(const char* name, int compute_capability, DType dtype) {
  return peak_tflops(name, compute_capability, 1, 1'000'000, dtype);
}

double tensor(const char* name, int compute_capability) {
  return flop_per_clock(name, compute_capability, DType::kBf16);
}

}  // namespace

TEST_CASE("SMs, clock and table give the published tensor TFLOPS") {
  const struct {
    const char* name;
    int compute_capability, sm_count, boost_mhz;
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
      {"NVIDIA B200", 100, 148, 1855, 2250},
      {"NVIDIA GeForce RTX 5090", 120, 170, 2407, 209.5},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 120, 188, 2617, 503.8},
  };
  for (const auto& card : cards) {
    INFO(card.name);
    for (const DType dtype : {DType::kFp16, DType::kBf16}) {
      const double peak =
          peak_tflops(card.name, card.compute_capability, card.sm_count, card.boost_mhz, dtype);
      INFO(peak << " TFLOPS, published: " << card.tflops);
      CHECK(about(peak, card.tflops));
    }
  }
}

TEST_CASE("the peak is at the clock that was given, which may be above the datasheet's") {
  CHECK(about(peak_tflops("NVIDIA H200", 90, 132, 1980, DType::kBf16), 1070.5));
  CHECK(peak_tflops("NVIDIA H200", 90, 132, 0, DType::kBf16) == 0);
}

TEST_CASE("FP32 follows the compute capability, also on a card whose tensor rate is unknown") {
  CHECK(about(peak_tflops("NVIDIA A100-SXM4-40GB", 80, 108, 1410, DType::kFp32), 19.5));
  CHECK(about(peak_tflops("NVIDIA GeForce RTX 3090", 86, 82, 1695, DType::kFp32), 35.6));
  CHECK(about(peak_tflops("NVIDIA L40", 89, 142, 2490, DType::kFp32), 90.5));
  CHECK(about(peak_tflops("NVIDIA H100 80GB HBM3", 90, 132, 1980, DType::kFp32), 66.9));
  CHECK(about(peak_tflops("NVIDIA GeForce RTX 5090", 120, 170, 2407, DType::kFp32), 104.8));
  CHECK(flop_per_clock("NVIDIA H300", 130, DType::kFp32) == 0);
}

TEST_CASE("names that contain each other are different cards") {
  CHECK(tensor("NVIDIA A10", 86) == 0);  // not in the table, and neither an A100 nor an A10G
  CHECK(tensor("NVIDIA A10G", 86) == 512);
  CHECK(tensor("NVIDIA A100-PCIE-40GB", 80) == 2048);
  CHECK(tensor("NVIDIA A40", 86) == 1024);
  CHECK(tensor("NVIDIA RTX A4000", 86) == 0);  // not in the table, and not an A40
  CHECK(tensor("NVIDIA L40S", 89) == 1024);
  CHECK(tensor("NVIDIA L40", 89) == 0);  // its published figures disagree
  CHECK(tensor("NVIDIA H20", 90) == 0);  // throttled, and a beginning of H200
  CHECK(tensor("NVIDIA H200", 90) == 4096);
  CHECK(tensor("NVIDIA H200 NVL", 90) == 4096);
  CHECK(tensor("NVIDIA B200", 100) == 8192);
  CHECK(tensor("NVIDIA GB200", 100) == 0);  // "B200" is not a word of it
}

TEST_CASE("GeForce accumulates in FP32 at half the rate of the professional card of the same silicon") {
  CHECK(tensor("NVIDIA GeForce RTX 4090", 89) * 2 == tensor("NVIDIA L40S", 89));
  CHECK(tensor("NVIDIA GeForce RTX 4090 Laptop GPU", 89) == 512);
  CHECK(tensor("NVIDIA GeForce RTX 3090 Ti", 86) * 2 == tensor("NVIDIA A40", 86));
}

TEST_CASE("an unknown card has no peak rather than a relative's") {
  CHECK(tensor("NVIDIA H300", 90) == 0);
  CHECK(tensor("NVIDIA RTX 9090", 130) == 0);
  CHECK(tensor("NVIDIA GeForce RTX 2080 Ti", 75) == 0);
  CHECK(tensor("NVIDIA GeForce MX570", 86) == 0);
  CHECK(tensor("NVIDIA H100 80GB HBM3", 80) == 0);  // a name that its compute capability contradicts
  CHECK(tensor("", 90) == 0);
  CHECK(peak_tflops("emulator", 0, 2, 3000, DType::kFp16) == 0);
}
