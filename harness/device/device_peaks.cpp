// The table of peaks.
#include <algorithm>
#include <regex>

#include "harness/device/gpu.h"

namespace flashsteps {
namespace {

struct TensorRate {
  int compute_capability;
  const char* words;  // in the device's name, as whole words
  double flop_per_clock_per_sm;
};

// Each rate reproduces a published dense peak, which is SMs * rate * GHz / 1000, as the comment beside it
// shows; the figures were looked up on the web (vendor's data as quoted by resellers, forums and spec
// tables), and only the H200's has been set against a measurement here. A card whose figure could not be
// found is left out. Where the same silicon is sold with FP32 accumulation at half rate (GeForce, A10G), the
// card decides and not the compute capability. Also left out: L40, whose published figures disagree (181 and
// 362), and H20, which is throttled.
constexpr TensorRate kTensorRates[] = {
    {80, "A100", 2048},                     // 312 = 108 * 2048 * 1.410
    {80, "A30", 2048},                      // 165 = 56 * 2048 * 1.440
    {86, "A40", 1024},                      // 149.7 = 84 * 1024 * 1.740
    {86, "GeForce RTX", 512},               // RTX 3090: 71 = 82 * 512 * 1.695 (recalled, not found)
    {86, "A10G", 512},                      // 70 = 80 * 512 * 1.710
    {89, "GeForce RTX", 512},               // RTX 4090: 165.2 = 128 * 512 * 2.520
    {89, "L40S", 1024},                     // 366 = 142 * 1024 * 2.520
    {89, "L4", 1024},                       // 125.3 = 60 * 1024 * 2.040
    {90, "H100", 4096},                     // 989.4 = 132 * 4096 * 1.830 (SXM5)
    {90, "H200", 4096},                     // the same, with other memory
    {90, "H800", 4096},                     // the same, quoted at 990
    {100, "B200", 8192},                    // 2250 = 148 * 8192 * 1.855
    {120, "GeForce RTX", 512},              // RTX 5090: 209.5 = 170 * 512 * 2.407
    {120, "RTX PRO 6000 Blackwell", 1024},  // 503.8 = 188 * 1024 * 2.617
};

// FMAs per clock and SM: CUDA Programming Guide, "Throughput of Native Arithmetic Instructions", row "32-bit
// floating-point add, multiply, multiply-add".
int fp32_lanes(int compute_capability) {
  constexpr int kWith128[] = {86, 87, 89, 90, 100, 120};
  if (compute_capability == 80) return 64;
  return std::ranges::count(kWith128, compute_capability) > 0 ? 128 : 0;
}

// "A10" is in "NVIDIA A10" and in "NVIDIA A10-24Q", but not in "NVIDIA A100-SXM4-40GB" or "NVIDIA A10G".
bool has_words(const std::string& name, const std::string& words) {
  return std::regex_search(name, std::regex("\\b" + words + "\\b"));
}

double flop_per_clock_per_sm(const std::string& device_name, int compute_capability, DType dtype) {
  if (dtype == DType::kFp32) return 2.0 * fp32_lanes(compute_capability);
  // FP8 has twice the rate, where there is any.
  const double times = dtype != DType::kE4m3 ? 1 : compute_capability >= 89 ? 2 : 0;
  for (const TensorRate& rate : kTensorRates) {
    if (rate.compute_capability == compute_capability && has_words(device_name, rate.words))
      return times * rate.flop_per_clock_per_sm;
  }
  return 0;
}

}  // namespace

double peak_tflops(const std::string& device_name, int compute_capability, int sm_count, int max_sm_clock_mhz,
                   DType dtype) {
  return flop_per_clock_per_sm(device_name, compute_capability, dtype) * sm_count * max_sm_clock_mhz * 1e-6;
}

}  // namespace flashsteps
