// What the conformance test and the emulator's own run of its kernels share: data, one run on a backend, and
// the comparison.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

#include "harness/base/element.h"
#include "harness/base/random.h"
#include "harness/device/backend.h"
#include "harness/tests/kernels/conformance.h"

namespace flashsteps {

inline std::vector<ConformanceCase> joined(std::initializer_list<std::span<const ConformanceCase>> tables) {
  std::vector<ConformanceCase> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

inline uint32_t conformance_word(Words kind, uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t bits = random_bits(seed, stream + 1000, index);
  float a, b;
  random_normal_pair(seed, stream, index, a, b);
  const float low_integer = float(int(bits % 9) - 4), high_integer = float(int((bits >> 32) % 9) - 4);
  const auto pair = [](DType dtype, float low, float high) {
    uint16_t elements[2];
    store_element(dtype, &elements[0], low);
    store_element(dtype, &elements[1], high);
    return uint32_t(elements[0]) | uint32_t(elements[1]) << 16;
  };
  const auto four = [&](auto number) {
    uint8_t codes[4];
    for (uint64_t i = 0; i < 4; ++i) store_element(DType::kE4m3, &codes[i], number(i));
    return std::bit_cast<uint32_t>(codes);
  };
  const auto normal = [&](uint64_t i) {
    float two[2];
    random_normal_pair(seed, stream, 2 * index + i / 2, two[0], two[1]);
    return two[i % 2];
  };
  switch (kind) {
    case Words::kE4m3:
      return four(normal);
    case Words::kE4m3WithZeros:
      return four([&](uint64_t i) { return (bits >> i & 1) != 0 ? normal(i) : 0.0f; });
    case Words::kE4m3Large:
      return four([&](uint64_t i) { return 100 * normal(i); });
    case Words::kE4m3Integers:
      return four([&](uint64_t i) { return float(int((bits >> 8 * i) % 9) - 4); });
    case Words::kBits:
      return uint32_t(bits);
    case Words::kFp16:
      return pair(DType::kFp16, a, b);
    case Words::kBf16:
      return pair(DType::kBf16, a, b);
    case Words::kFp16Integers:
      return pair(DType::kFp16, low_integer, high_integer);
    case Words::kBf16Integers:
      return pair(DType::kBf16, low_integer, high_integer);
    case Words::kFloat:
      return std::bit_cast<uint32_t>(a);
    case Words::kFloatIntegers:
      return std::bit_cast<uint32_t>(low_integer);
    case Words::kExponents: {
      const float special[] = {0.0f,    -0.0f,   INFINITY, -INFINITY, NAN,   1e-42f, -1e-42f, -126.0f,
                               -126.5f, -127.0f, -149.0f,  -150.0f,   -1e9f, 127.0f, 128.0f,  1e9f};
      if (index < std::size(special)) return std::bit_cast<uint32_t>(special[index]);
      // Half of them where softmax is, -30 .. 0; the others from where all is 0 to where all is infinite.
      const float unit = float(bits >> 40) * 0x1p-24f;
      return std::bit_cast<uint32_t>(index % 2 == 0 ? -30.0f * unit : 300.0f * unit - 165.0f);
    }
  }
  return 0;
}

inline std::vector<uint32_t> conformance_input(const ConformanceCase& c, uint64_t seed) {
  std::vector<uint32_t> words;
  for (const InputWords& part : c.in) {
    const uint64_t stream = words.size();
    for (int i = 0; i < part.count; ++i)
      words.push_back(conformance_word(part.kind, seed, stream, uint64_t(i)));
  }
  return words;
}

inline std::vector<uint32_t> run_conformance(Backend& backend, const ConformanceCase& c,
                                             const std::vector<uint32_t>& in) {
  const Step step{c.name, backend.kind(), {.title = "for the tests", .removes = "nothing"}, c.run};
  const size_t in_bytes = in.size() * sizeof(uint32_t);
  std::vector<uint32_t> out(size_t(c.num_out), 0xffa5ffa5);
  const size_t out_bytes = out.size() * sizeof(uint32_t);
  AttentionCall call{};
  call.q.data = backend.allocate(in_bytes);
  call.o.data = backend.allocate(out_bytes);
  backend.upload(call.q.data, in.data(), in_bytes);
  backend.upload(call.o.data, out.data(), out_bytes);
  backend.run(step, call);
  backend.download(out.data(), call.o.data, out_bytes);
  backend.release(call.q.data);
  backend.release(call.o.data);
  return out;
}

struct Difference {
  int wrong = 0;       // words that do not agree as the case demands
  double largest = 0;  // of all, relative to the scales
  std::string first;   // of the wrong ones
};

inline Difference compare(const ConformanceCase& c, const std::vector<uint32_t>& gpu,
                          const std::vector<uint32_t>& emulator) {
  Difference difference;
  for (size_t i = 0; i < gpu.size(); ++i) {
    if (gpu[i] == emulator[i]) continue;
    const float ours = std::bit_cast<float>(emulator[i]), theirs = std::bit_cast<float>(gpu[i]);
    if (c.tolerance > 0) {
      if (std::isnan(ours) && std::isnan(theirs)) continue;  // which NaN is nobody's promise
      const size_t half = gpu.size() / 2;
      const double scale = std::bit_cast<float>(emulator[half + i % half]);
      const double relative = std::abs(double(ours) - double(theirs)) / scale;
      difference.largest = std::max(difference.largest, relative);
      if (relative <= c.tolerance) continue;
    }
    if (difference.wrong++ > 0) continue;
    char text[160];
    std::snprintf(text, sizeof(text), "word %zu: 0x%08x (%g) on the GPU, 0x%08x (%g) on the emulator", i,
                  gpu[i], double(theirs), emulator[i], double(ours));
    difference.first = text;
  }
  return difference;
}

}  // namespace flashsteps
