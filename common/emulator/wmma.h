// nvcuda::wmma without a GPU: the part of it that the steps use, 16 x 16 x 16 with FP32 accumulators. Include
// common/wmma.h; wmma.cpp is how it works.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"

namespace emulator {

enum class WmmaOperand { kA, kB, kAccumulator };

// A 16 x 16 matrix in shared memory. `stride`: from one row (by_rows) or column to the next, in elements.
struct WmmaMatrix {
  void* data;
  unsigned stride;
  bool by_rows;
};

void wmma_load_16bit(WmmaOperand operand, uint16_t* fragment, WmmaMatrix matrix, Location at);
void wmma_load_accumulator(float* fragment, WmmaMatrix matrix, Location at);
void wmma_store_accumulator(WmmaMatrix matrix, const float* fragment, Location at);
void wmma_product(float* d, const uint16_t* a, const uint16_t* b, const float* c, bool bf16, Location at);

namespace cuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

// Which 8 of the 256 elements a lane holds is unspecified, here as in CUDA: it changes with the seed, and is
// another for A, for B and for accumulators.
template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16, "only 16 x 16 x 16 is emulated");
  static constexpr int num_elements = 8;
  T x[num_elements];
};

template <typename T>
using Accumulator = fragment<accumulator, 16, 16, 16, T>;

template <typename T>
[[gnu::always_inline]] inline void fill_fragment(Accumulator<T>& to, float value) {
  for (T& element : to.x) element = value;
}

// `stride` is the distance between rows (row_major) or columns (col_major), in elements.
template <typename Use, typename T, typename Layout>
[[gnu::always_inline]] inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* matrix,
                                                    unsigned stride, Location at = Location::current()) {
  constexpr bool kByRows = std::is_same_v<Layout, row_major>;
  static_assert(kByRows || std::is_same_v<Layout, col_major>, "an accumulator is loaded with its layout");
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, "fp16 and bf16 are emulated");
  wmma_load_16bit(std::is_same_v<Use, matrix_a> ? WmmaOperand::kA : WmmaOperand::kB,
                  reinterpret_cast<uint16_t*>(to.x), {const_cast<T*>(matrix), stride, kByRows}, at);
}

[[gnu::always_inline]] inline void load_matrix_sync(Accumulator<float>& to, const float* matrix,
                                                    unsigned stride, layout_t layout,
                                                    Location at = Location::current()) {
  wmma_load_accumulator(to.x, {const_cast<float*>(matrix), stride, layout == mem_row_major}, at);
}

[[gnu::always_inline]] inline void store_matrix_sync(float* matrix, const Accumulator<float>& from,
                                                     unsigned stride, layout_t layout,
                                                     Location at = Location::current()) {
  wmma_store_accumulator({matrix, stride, layout == mem_row_major}, from.x, at);
}

// d = a b + c
template <typename T, typename LayoutA, typename LayoutB>
[[gnu::always_inline]] inline void mma_sync(Accumulator<float>& d,
                                            const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
                                            const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
                                            const Accumulator<float>& c, Location at = Location::current()) {
  wmma_product(d.x, reinterpret_cast<const uint16_t*>(a.x), reinterpret_cast<const uint16_t*>(b.x), c.x,
               std::is_same_v<T, __nv_bfloat16>, at);
}

}  // namespace cuda::wmma
}  // namespace emulator
