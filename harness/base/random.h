// Counter-based random numbers: a value depends only on (seed, stream, index), so that any thread can make
// any element and a failure can be replayed. splitmix64's finaliser, by Sebastiano Vigna (public domain).
#pragma once

#include <cmath>
#include <cstdint>

namespace flashsteps {

inline uint64_t hash64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return hash64(hash64(seed * 0x100000001b3ull + stream) + index);
}

// N(0, 1), two values at a time (Box-Muller).
inline void random_normal_pair(uint64_t seed, uint64_t stream, uint64_t index, float& a, float& b) {
  const uint64_t bits = random_bits(seed, stream, index);
  const float u = (float(bits >> 40) + 0.5f) * 0x1p-24f;  // (0, 1): never log(0)
  const float angle = float((bits >> 8) & 0xffffff) * (6.2831853f * 0x1p-24f);
  const float radius = std::sqrt(-2.0f * std::log(u));
  a = radius * std::cos(angle);
  b = radius * std::sin(angle);
}

}  // namespace flashsteps
