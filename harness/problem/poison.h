// What memory holds that must not matter: outputs before a run, keys at or beyond kv_len, the gaps of
// strides, the bands around each buffer and, on the emulator, shared memory that nobody has written.
#pragma once

#include <cstdint>
#include <string>

namespace flashsteps {

// 16 bits, repeated: a value in fp16, bf16 and fp32 alike. Each hides some mistakes, so each run of a step
// has another. NaN spreads through arithmetic, but fmaxf and fminf drop it. A large number survives a
// maximum, a small one a minimum, and neither a product with 0.
enum class Poison : uint16_t {
  kNan = 0xffa5,    // a NaN that no arithmetic produces: an output that still holds it was never written
  kLarge = 0x7b7b,  // 61,280 in fp16, 1.3e36 in bf16 and fp32
  kSmall = 0x0404,  // 6.1e-5 in fp16, 1.6e-36 in bf16 and fp32
};

inline std::string name(Poison poison) {
  return poison == Poison::kNan ? "NaN" : poison == Poison::kLarge ? "a large number" : "a small number";
}

}  // namespace flashsteps
