// nvcuda::wmma without a GPU: 16 x 16 x 16, of FP16 and BF16 with FP32 accumulators, and of bytes with
// integer ones. Include common/wmma.h; wmma.cpp is how it works.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/emulator/device.h"
#include "common/emulator/half.h"

namespace emulator {

enum class WmmaOperand { kA, kB, kAccumulator };

enum class WmmaElement { kFp16, kBf16, kSignedByte, kByte };
template <typename T>
constexpr WmmaElement kWmmaElement = std::is_same_v<T, cuda::__half>          ? WmmaElement::kFp16
                                     : std::is_same_v<T, cuda::__nv_bfloat16> ? WmmaElement::kBf16
                                     : std::is_same_v<T, signed char>         ? WmmaElement::kSignedByte
                                                                              : WmmaElement::kByte;

// A 16 x 16 matrix in shared or global memory. `stride`: from one row (by_rows) or column to the next, in
// elements.
struct WmmaMatrix {
  void* data;
  unsigned stride;
  bool by_rows;
};

void wmma_load(WmmaOperand operand, void* fragment, size_t element_bytes, WmmaMatrix matrix, Location at);
void wmma_store_accumulator(WmmaMatrix matrix, const void* fragment, Location at);
// c and d are floats, or integers if a and b are bytes.
void wmma_product(void* d, const void* a, const void* b, const void* c, WmmaElement element, Location at);

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
[[gnu::always_inline]] inline void fill_fragment(Accumulator<T>& to, std::type_identity_t<T> value) {
  for (T& element : to.x) element = value;
}

// `stride` is the distance between rows (row_major) or columns (col_major), in elements.
template <typename Use, typename T, typename Layout>
[[gnu::always_inline]] inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* matrix,
                                                    unsigned stride, Location at = Location::current()) {
  constexpr bool kByRows = std::is_same_v<Layout, row_major>;
  static_assert(kByRows || std::is_same_v<Layout, col_major>, "an accumulator is loaded with its layout");
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16> || sizeof(T) == 1,
                "FP16, BF16 and bytes are emulated");
  wmma_load(std::is_same_v<Use, matrix_a> ? WmmaOperand::kA : WmmaOperand::kB, to.x, sizeof(T),
            {const_cast<T*>(matrix), stride, kByRows}, at);
}

template <typename T>
[[gnu::always_inline]] inline void load_matrix_sync(Accumulator<T>& to, const T* matrix, unsigned stride,
                                                    layout_t layout, Location at = Location::current()) {
  static_assert(sizeof(T) == 4, "accumulators of float and int are emulated");
  wmma_load(WmmaOperand::kAccumulator, to.x, sizeof(T),
            {const_cast<T*>(matrix), stride, layout == mem_row_major}, at);
}

template <typename T>
[[gnu::always_inline]] inline void store_matrix_sync(T* matrix, const Accumulator<T>& from, unsigned stride,
                                                     layout_t layout, Location at = Location::current()) {
  static_assert(sizeof(T) == 4, "accumulators of float and int are emulated");
  wmma_store_accumulator({matrix, stride, layout == mem_row_major}, from.x, at);
}

// d = a b + c
template <typename Sum, typename T, typename LayoutA, typename LayoutB>
[[gnu::always_inline]] inline void mma_sync(Accumulator<Sum>& d,
                                            const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
                                            const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
                                            const Accumulator<Sum>& c, Location at = Location::current()) {
  static_assert(std::is_same_v<Sum, std::conditional_t<sizeof(T) == 1, int, float>>,
                "accumulators of float and, for bytes, int are emulated");
  wmma_product(d.x, a.x, b.x, c.x, kWmmaElement<T>, at);
}

}  // namespace cuda::wmma
}  // namespace emulator
