// The CUDA vocabulary for the host compiler: what kernels find when there is no nvcc. Include common/cuda.h.
//
// All of it lives in emulator::cuda: no function or type defined here can share a linker symbol with the real
// one of the same name in an object that nvcc made.
#pragma once

#include <math.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"
#include "common/emulator/vector_types.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
// A CTA never leaves its host thread, so what its threads share is exactly what is local to that host thread.
// Without constinit gcc gives an array of classes a hidden flag, "constructed already", which the threads would
// read and write without a barrier. (clang makes none, and takes no uninitialised class for constinit.)
#ifdef __clang__
#define __shared__ thread_local
#else
#define __shared__ constinit thread_local
#endif

// Declared by math.h, too, with nothing to tell a trace that they were called.
#define exp2f traced_exp2f
#define expf traced_expf
// glibc's math.h declares functions of these names without defining them.
#define __expf expf
#define __logf logf
#define __log2f log2f
#define __powf powf

namespace emulator::cuda {

// Constant for the thread that looks, hence const: neither hooked nor reloaded after every call. The
// scheduler sets them when it switches threads. (blockDim and gridDim are dim3 in CUDA; gcc takes no class
// that has constructors for constant.)
extern constinit thread_local const uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern constinit thread_local const uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern constinit thread_local const uint3 blockDim __attribute__((tls_model("initial-exec")));
extern constinit thread_local const uint3 gridDim __attribute__((tls_model("initial-exec")));
constexpr int warpSize = 32;

inline void __syncthreads(Location at = Location::current()) { syncthreads(at); }
inline void __syncwarp(unsigned mask = 0xffffffff, Location at = Location::current()) { syncwarp(mask, at); }
// Nothing to do: the threads of a CTA take turns on one host thread and see each other's writes at once.
inline void __threadfence_block() {}
inline void __threadfence() { thread_fence(); }

template <typename T>
T shuffle_value(ShuffleMode mode, unsigned mask, T value, unsigned operand, int width, Location at) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mode, mask, bits, operand, width, at);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kIndex, mask, value, unsigned(lane), width, at);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kXor, mask, value, unsigned(lane_mask), width, at);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kDown, mask, value, delta, width, at);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, Location at = Location::current()) {
  return shuffle_value(ShuffleMode::kUp, mask, value, delta, width, at);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, Location at = Location::current()) {
  return vote("__ballot_sync", mask, predicate != 0, at).yes;
}
inline int __any_sync(unsigned mask, int predicate, Location at = Location::current()) {
  return vote("__any_sync", mask, predicate != 0, at).yes != 0;
}
inline int __all_sync(unsigned mask, int predicate, Location at = Location::current()) {
  const Vote result = vote("__all_sync", mask, predicate != 0, at);
  return result.yes == result.voters;
}

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  return atomic_add(address, value, at);
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value, Location at = Location::current()) {
  return atomic_max(address, value, at);
}

inline float traced_exp2f(float x, Location at = Location::current()) { return exp2_in_kernel(x, at); }
inline float traced_expf(float x, Location at = Location::current()) { return exp_in_kernel(x, at); }

// Of two numbers of any types. A NaN loses against a number, as in CUDA.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
  return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
  return T(a) < T(b) ? T(b) : T(a);
}

// A template, so that a C library that has rsqrtf (C23) is preferred and not ambiguous.
template <typename T>
T rsqrtf(T x) {
  return 1.0f / std::sqrt(x);
}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// Rounded down: the product is exact in double precision.
inline float __fmul_rd(float a, float b) {
  const float nearest = float(double(a) * b);
  return nearest > double(a) * b ? std::nextafter(nearest, -INFINITY) : nearest;
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <typename T>
T __ldg(const T* address) {
  return *address;
}

}  // namespace emulator::cuda

using namespace emulator::cuda;
