// Every function of the hardware headers (common/ldmatrix.h, mma.h, ...) on the same data on both backends:
// what the emulator computes is what the hardware computes. A new function gets a kernel and a line in
// kCases. Values, not speed; one CTA; words in, words out.
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "common/step.h"
#include "common/vector_copy.h"
#include "common/wmma.h"
#include "harness/tests/kernels/conformance.h"

namespace STEP_NAMESPACE {

constexpr int SMEM_BYTES = 16384;

// ---- ldmatrix: 32 rows of 4 words, apart from each other and handed in in another order.
template <bool TRANSPOSED>
__global__ void ldmatrix(const uint32_t* in, uint32_t* out) {
  constexpr int STRIDE = 20;  // words
  uint32_t* const tile = reinterpret_cast<uint32_t*>(smem);
  const int lane = threadIdx.x;
  for (int i = 0; i < 4; ++i) tile[lane * STRIDE + i] = in[4 * lane + i];
  __syncwarp();
  const int row = (11 * lane + 7) % 32;
  uint32_t registers[4];
  if (TRANSPOSED) {
    ldmatrix_x4_trans(registers, &tile[row * STRIDE]);
  } else {
    ldmatrix_x4(registers, &tile[row * STRIDE]);
  }
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = registers[i];
}

// ---- mma.sync: the fragments as they come. The second time with all signs positive: what the first time's
// result may be off by is relative to that.
template <typename Element>
__global__ void mma(const uint32_t* in, uint32_t* out) {
  const int lane = threadIdx.x;
  for (int scale = 0; scale < 2; ++scale) {
    const uint32_t pair_mask = scale ? 0x7fff7fff : 0xffffffff;
    const uint32_t float_mask = scale ? 0x7fffffff : 0xffffffff;
    uint32_t a[4], b[2];
    float acc[4];
    for (int i = 0; i < 4; ++i) a[i] = in[4 * lane + i] & pair_mask;
    for (int i = 0; i < 2; ++i) b[i] = in[128 + 2 * lane + i] & pair_mask;
    for (int i = 0; i < 4; ++i) acc[i] = __uint_as_float(in[192 + 4 * lane + i] & float_mask);
    mma_m16n8k16<Element>(acc, a, b);
    for (int i = 0; i < 4; ++i) out[scale * 128 + 4 * lane + i] = __float_as_uint(acc[i]);
  }
}

// ---- WMMA
template <typename Layout>
constexpr wmma::layout_t MEM_LAYOUT =
    std::is_same_v<Layout, wmma::row_major> ? wmma::mem_row_major : wmma::mem_col_major;

using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// A 16 x 16 matrix from 128 words into lines of `stride` elements; an accumulator from 256.
template <typename Element>
__device__ void place_matrix(Element* matrix, int stride, const uint32_t* words, uint32_t mask) {
  constexpr int WORDS = 16 * sizeof(Element) / 4;  // of a line
  for (int i = threadIdx.x; i < 16 * WORDS; i += 32) {
    const uint32_t word = words[i] & mask;
    memcpy(reinterpret_cast<uint32_t*>(matrix + i / WORDS * stride) + i % WORDS, &word, 4);
  }
}

// In one layout, out in another: nothing but a movement of 256 words.
template <typename LoadLayout, typename StoreLayout>
__global__ void wmma_accumulator(const uint32_t* in, uint32_t* out) {
  constexpr int LOAD_STRIDE = 20, STORE_STRIDE = 24;
  float* const from = reinterpret_cast<float*>(smem);
  float* const to = from + 16 * LOAD_STRIDE;
  place_matrix(from, LOAD_STRIDE, in, 0xffffffff);
  for (int i = threadIdx.x; i < 16 * STORE_STRIDE; i += 32) to[i] = 0.0f;  // gaps must stay as they are
  __syncwarp();
  Accumulator acc;
  wmma::load_matrix_sync(acc, from, LOAD_STRIDE, MEM_LAYOUT<LoadLayout>);
  wmma::store_matrix_sync(to, acc, STORE_STRIDE, MEM_LAYOUT<StoreLayout>);
  __syncwarp();
  for (int i = threadIdx.x; i < 16 * STORE_STRIDE; i += 32) out[i] = __float_as_uint(to[i]);
}

// A B + C; with scales as in mma.
template <typename Element, typename LayoutA, typename LayoutB>
__global__ void wmma_product(const uint32_t* in, uint32_t* out) {
  constexpr int STRIDE = 24, ACC_STRIDE = 16;
  Element* const a = reinterpret_cast<Element*>(smem);
  Element* const b = a + 16 * STRIDE;
  float* const c = reinterpret_cast<float*>(b + 16 * STRIDE);
  for (int scale = 0; scale < 2; ++scale) {
    const uint32_t pair_mask = scale ? 0x7fff7fff : 0xffffffff;
    place_matrix(a, STRIDE, in, pair_mask);
    place_matrix(b, STRIDE, in + 128, pair_mask);
    place_matrix(c, ACC_STRIDE, in + 256, scale ? 0x7fffffff : 0xffffffff);
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, LayoutA> frag_a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, LayoutB> frag_b;
    Accumulator acc;
    wmma::load_matrix_sync(frag_a, a, STRIDE);
    wmma::load_matrix_sync(frag_b, b, STRIDE);
    wmma::load_matrix_sync(acc, c, ACC_STRIDE, wmma::mem_row_major);
    wmma::mma_sync(acc, frag_a, frag_b, acc);
    __syncwarp();
    wmma::store_matrix_sync(c, acc, ACC_STRIDE, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) out[scale * 256 + i] = __float_as_uint(c[i]);
    __syncwarp();
  }
}

// A times the identity and the identity times B: the load of a 16-bit matrix, bit by bit.
template <typename Element, typename LayoutA, typename LayoutB>
__global__ void wmma_identity(const uint32_t* in, uint32_t* out) {
  constexpr int STRIDE = 32;
  Element* const matrix = reinterpret_cast<Element*>(smem);
  Element* const identity = matrix + 16 * STRIDE;
  float* const result = reinterpret_cast<float*>(identity + 16 * STRIDE);
  place_matrix(matrix, STRIDE, in, 0xffffffff);
  for (int i = threadIdx.x; i < 256; i += 32)
    identity[i / 16 * STRIDE + i % 16] = Element(i / 16 == i % 16 ? 1.0f : 0.0f);
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, LayoutA> frag_a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, LayoutB> frag_b;
  for (int side = 0; side < 2; ++side) {
    wmma::load_matrix_sync(frag_a, side == 0 ? matrix : identity, STRIDE);
    wmma::load_matrix_sync(frag_b, side == 0 ? identity : matrix, STRIDE);
    Accumulator acc;
    wmma::fill_fragment(acc, 0.0f);
    wmma::mma_sync(acc, frag_a, frag_b, acc);
    wmma::store_matrix_sync(result + side * 256, acc, 16, wmma::mem_row_major);
  }
  __syncwarp();
  for (int i = threadIdx.x; i < 512; i += 32) out[i] = __float_as_uint(result[i]);
}

// ---- The small ones
template <typename Element>
__global__ void pack(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 256; i += 32)
    out[i] = pack2<Element>(__uint_as_float(in[2 * i]), __uint_as_float(in[2 * i + 1]));
}

// Through shared memory, and there the other way round.
__global__ void vector_copy(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 128; i += 32) store_16_bytes(smem + 16 * i, load_16_bytes(in + 4 * i));
  __syncwarp();
  for (int i = threadIdx.x; i < 128; i += 32)
    store_16_bytes(out + 4 * i, load_16_bytes(smem + 16 * (127 - i)));
}

__global__ void exp2_of(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 512; i += 32) {
    const uint32_t result = __float_as_uint(exp2_approx(__uint_as_float(in[i])));
    out[i] = result;
    out[512 + i] = result & 0x7fffffff;  // relative to itself
  }
}

// Products of any two numbers. Which NaN it is, is nobody's promise.
__global__ void multiply_rounded_down(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 512; i += 32) {
    const float product = __fmul_rd(__uint_as_float(in[2 * i]), __uint_as_float(in[2 * i + 1]));
    out[i] = product == product ? __float_as_uint(product) : 0;
  }
}

// ---- The table
template <auto KERNEL, int NUM_THREADS = 32>
void run(const AttentionCall& call, void* stream) {
  launch(KERNEL, dim3(1), dim3(NUM_THREADS), SMEM_BYTES, static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), static_cast<uint32_t*>(call.o.data));
}

using Row = wmma::row_major;
using Col = wmma::col_major;
using Fp16 = __half;
using Bf16 = __nv_bfloat16;
using enum Words;

// The hardware sums 16 products in an order and with a rounding of its own.
constexpr double SUM = 1e-6;

// clang-format off
constexpr ConformanceCase kCases[] = {
    {"ldmatrix_x4",       {{kBits, 128}}, 128, 0, run<ldmatrix<false>>},
    {"ldmatrix_x4_trans", {{kBits, 128}}, 128, 0, run<ldmatrix<true>>},
    {"mma fp16", {{kFp16, 192}, {kFloat, 128}}, 256, SUM, run<mma<Fp16>>},
    {"mma bf16", {{kBf16, 192}, {kFloat, 128}}, 256, SUM, run<mma<Bf16>>},
    {"mma fp16, integers", {{kFp16Integers, 192}, {kFloatIntegers, 128}}, 256, 0, run<mma<Fp16>>},
    {"mma bf16, integers", {{kBf16Integers, 192}, {kFloatIntegers, 128}}, 256, 0, run<mma<Bf16>>},
    {"wmma accumulator row, row", {{kBits, 256}}, 384, 0, run<wmma_accumulator<Row, Row>>},
    {"wmma accumulator row, col", {{kBits, 256}}, 384, 0, run<wmma_accumulator<Row, Col>>},
    {"wmma accumulator col, row", {{kBits, 256}}, 384, 0, run<wmma_accumulator<Col, Row>>},
    {"wmma accumulator col, col", {{kBits, 256}}, 384, 0, run<wmma_accumulator<Col, Col>>},
    {"wmma identity fp16 row, row", {{kFp16, 128}}, 512, 0, run<wmma_identity<Fp16, Row, Row>>},
    {"wmma identity fp16 col, col", {{kFp16, 128}}, 512, 0, run<wmma_identity<Fp16, Col, Col>>},
    {"wmma identity bf16 row, row", {{kBf16, 128}}, 512, 0, run<wmma_identity<Bf16, Row, Row>>},
    {"wmma identity bf16 col, col", {{kBf16, 128}}, 512, 0, run<wmma_identity<Bf16, Col, Col>>},
    {"wmma fp16 row, row", {{kFp16, 256}, {kFloat, 256}}, 512, SUM, run<wmma_product<Fp16, Row, Row>>},
    {"wmma fp16 row, col", {{kFp16, 256}, {kFloat, 256}}, 512, SUM, run<wmma_product<Fp16, Row, Col>>},
    {"wmma bf16 row, row", {{kBf16, 256}, {kFloat, 256}}, 512, SUM, run<wmma_product<Bf16, Row, Row>>},
    {"wmma bf16 col, col", {{kBf16, 256}, {kFloat, 256}}, 512, SUM, run<wmma_product<Bf16, Col, Col>>},
    {"pack2 fp16", {{kBits, 256}, {kFloat, 256}}, 256, 0, run<pack<Fp16>>},
    {"pack2 bf16", {{kBits, 256}, {kFloat, 256}}, 256, 0, run<pack<Bf16>>},
    {"load_16_bytes, store_16_bytes", {{kBits, 512}}, 512, 0, run<vector_copy>},
    {"exp2_approx", {{kExponents, 512}}, 1024, 0x1p-21, run<exp2_of>},
    {"__fmul_rd", {{kBits, 768}, {kFloat, 256}}, 512, 0, run<multiply_rounded_down>},
};
// clang-format on

}  // namespace STEP_NAMESPACE

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
std::span<const ConformanceCase> conformance_cases() { return STEP_NAMESPACE::kCases; }
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
