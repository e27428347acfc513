// Every function of the hardware headers (common/ldmatrix.h, mma.h, ...), and of CUDA itself what the
// emulator has of it (docs/cuda_on_the_emulator.md), on the same data on both backends: what the emulator
// computes is what the hardware computes. A new function gets a kernel and a line in kCases. Values, not
// speed; one CTA; words in, words out.
#include <cooperative_groups.h>

#include "common/atomic_acq_rel.h"
#include "common/cp_async.h"
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

// Two groups of chunks, each to another place. Of the second group every third is to be zeros, and its source
// lies behind the input. A thread's own chunk of the first group is there when it has waited, all of them
// when everybody has.
__global__ void cp_async(const uint32_t* in, uint32_t* out) {  // 64 threads
  const int thread = threadIdx.x;
  const auto place_of = [](int chunk) { return smem + 16 * (chunk ^ 5); };
  cp_async_16(place_of(thread), in + 4 * thread);
  cp_async_commit();
  const int chunk = 64 + thread;
  const bool valid = thread % 3 != 1;
  cp_async_16_zfill(place_of(chunk), in + 4 * chunk + (valid ? 0 : 512), valid);
  cp_async_commit();
  cp_async_wait<1>();
  store_16_bytes(out + 4 * thread, load_16_bytes(place_of(thread)));
  cp_async_wait<0>();
  __syncthreads();
  for (int i = thread; i < 128; i += 64)
    store_16_bytes(out + 256 + 4 * i, load_16_bytes(smem + 16 * (127 - i)));
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

// ---- CUDA's own functions
// What lanes tell each other.
__global__ void warp_functions(const uint32_t* in, uint32_t* out) {
  constexpr unsigned ALL = 0xffffffff;
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) {
    uint32_t* const to = out + 640 * i + lane;
    const uint32_t word = in[32 * i + lane];
    const uint32_t few = word % 3;  // different lanes have the same
    int all_equal = 0;
    to[0] = __match_any_sync(ALL, few);
    to[32] = __match_all_sync(ALL, few / (i + 1), &all_equal);
    to[64] = uint32_t(all_equal);
    to[96] = __reduce_add_sync(ALL, word);
    to[128] = uint32_t(__reduce_min_sync(ALL, int(word)));
    to[160] = __reduce_max_sync(ALL, word);
    to[192] = __reduce_and_sync(ALL, word | in[i]);
    to[224] = __reduce_or_sync(ALL, word & in[i]);
    to[256] = __reduce_xor_sync(ALL, word);
    to[288] = __ballot_sync(ALL, few == 1);
    to[320] =
        uint32_t(__any_sync(ALL, word < 0x08000000u)) + 2 * uint32_t(__all_sync(ALL, word > 0x08000000u));
    const __half half = __ushort_as_half(static_cast<unsigned short>(word));
    const __nv_bfloat16 bfloat16 = __ushort_as_bfloat16(static_cast<unsigned short>(word));
    to[352] = __half_as_ushort(__shfl_xor_sync(ALL, half, 5));
    to[384] = __bfloat16_as_ushort(__shfl_down_sync(ALL, bfloat16, word % 32, 16));
    __half2 pair;
    memcpy(&pair, &word, 4);
    pair = __shfl_sync(ALL, pair, int(in[i] % 64), 8);
    memcpy(&to[416], &pair, 4);
    const unsigned long long both = __shfl_up_sync(ALL, word * 0x100000001ull + 1, in[i] % 32);
    to[448] = uint32_t(both);
    to[480] = uint32_t(both >> 32);
    const auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
    to[512] = tile.shfl_down(word, 3) + tile.thread_rank() + 64 * tile.meta_group_rank();
    to[544] =
        tile.ballot(few == 0) + 1024 * uint32_t(tile.any(few == 2)) + 2048 * uint32_t(tile.all(few < 2));
    uint32_t sum = word % 100;  // in half a warp; only its first lane's sum is defined
    if (lane < 16) {
      for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffff, sum, offset);
    }
    to[576] = lane % 16 == 0 ? sum : 0;
    __syncwarp();
    to[608] = __popc(__activemask());
  }
}

__global__ void cta_functions(const uint32_t* in, uint32_t* out) {  // 64 threads
  unsigned* const shared = reinterpret_cast<unsigned*>(smem);
  const int thread = threadIdx.x;
  for (int i = 0; i < 8; ++i) {
    const uint32_t word = in[64 * i + thread];
    uint32_t* const to = out + 192 * i + thread;
    to[0] = uint32_t(__syncthreads_count(word % 2));
    to[64] = uint32_t(__syncthreads_or(word % 64 == 5));
    to[128] = uint32_t(__syncthreads_and(word % 64 != 5));
  }
  if (thread < 16) shared[thread] = in[thread];
  __syncthreads();
  const uint32_t word = in[64 + thread];
  float* const floats = reinterpret_cast<float*>(shared);
  atomicAdd(&shared[0], word);
  atomicSub(&shared[1], word);
  atomicMin(reinterpret_cast<int*>(&shared[2]), int(word));
  atomicMin(&shared[3], word);
  atomicMax(reinterpret_cast<int*>(&shared[4]), int(word));
  atomicMax(&shared[5], word);
  atomicAnd(&shared[6], word | 0x0f0f0f0f);
  atomicOr(&shared[7], word & 0x10101010);
  atomicXor(&shared[8], word);
  atomicInc(&shared[9], in[9] / 2 + 20);
  atomicDec(&shared[10], in[10] / 2 + 20);
  if (thread == 0) shared[11] = atomicExch(&shared[12], word);
  if (thread == 1) shared[13] = atomicCAS(&shared[14], in[14], word);
  if (thread == 2) floats[15] = 0.0f;
  __syncthreads();
  atomicAdd(&floats[15], float(word % 1024));  // exact
  __syncthreads();
  if (thread < 16) out[1536 + thread] = shared[thread];
  if (thread == 0) out[1552] = in[10] % 64;
  __syncthreads();
  atomic_inc_acq_rel(&out[1552], 40);
  __syncthreads();  // when the counter wraps depends on what has been added
  atomic_add_acq_rel(&out[1552], 3);
  __syncthreads();
  if (thread == 0) out[1553] = load_acquire(&out[1552]);
}

// Bits and conversions of any word.
__global__ void integer_functions(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 256; i += 32) {
    const uint32_t a = in[2 * i], b = in[2 * i + 1];
    const float f = __uint_as_float(a);
    uint32_t* const to = out + 20 * i;
    to[0] = __brev(a);
    to[1] = __byte_perm(a, b, a >> 3);
    to[2] = __funnelshift_l(a, b, a);
    to[3] = __funnelshift_r(a, b, b);
    to[4] = uint32_t(__popc(a)) + 64 * uint32_t(__popcll(a * 0x100000001ull));
    to[5] = uint32_t(__clz(int(a >> b % 32))) + 64 * uint32_t(__clzll(b));
    to[6] = uint32_t(__ffs(int(a << b % 32))) + 64 * uint32_t(__ffsll(b));
    to[7] = uint32_t(__mulhi(int(a), int(b))) + uint32_t(__vimax3_s32(int(a), int(b), int(a ^ b))) +
            __vimax3_s16x2(a, b, a ^ b);
    to[8] = __umulhi(a, b);
    to[9] = uint32_t(__float2int_rn(f));
    to[10] = uint32_t(__float2int_rz(f));
    to[11] = uint32_t(__float2int_rd(f));
    to[12] = uint32_t(__float2int_ru(f));
    to[13] = __float2uint_rn(f);
    to[14] = __float2uint_rz(f) + __float2uint_rd(f) + __float2uint_ru(f);
    to[15] = __float_as_uint(__int2float_rn(int(a)));
    to[16] = __float_as_uint(__uint2float_rn(a));
    to[17] = __float_as_uint(__saturatef(f)) + __half_as_ushort(__float2half_rd(f)) +
             0x10000u * __bfloat16_as_ushort(__float2bfloat16_rd(f));
    to[18] = uint32_t(__half2int_rn(__ushort_as_half(static_cast<unsigned short>(a)))) +
             uint32_t(__half2int_rz(__ushort_as_half(static_cast<unsigned short>(b))));
    to[19] = __half_as_ushort(__int2half_rn(int(a) >> b % 32)) +
             0x10000u * __bfloat16_as_ushort(__int2bfloat16_rn(int(a) >> b % 32));
  }
}

// Of ordinary numbers.
__global__ void float_functions(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 256; i += 32) {
    const float a = __uint_as_float(in[2 * i]), b = __uint_as_float(in[2 * i + 1]);
    uint32_t* const to = out + 13 * i;
    to[0] = __float_as_uint(__fadd_rn(a, b));
    to[1] = __float_as_uint(__fmul_rn(a, b));
    to[2] = __float_as_uint(__fdiv_rn(a, b));
    to[3] = __float_as_uint(__fmaf_rn(a, b, a));
    to[4] = __float_as_uint(__frcp_rn(a));
    to[5] = __float_as_uint(__fsqrt_rn(fabsf(a)));
    to[6] = __float_as_uint(__frsqrt_rn(fabsf(a)));
    to[7] = __float_as_uint(__fadd_rd(a, b));
    to[8] = __float_as_uint(__fsub_rz(a, b));
    to[9] = __float_as_uint(__fdiv_ru(a, b));
    to[10] = __float_as_uint(__fmaf_rd(a, b, a));
    to[11] = __float_as_uint(__fsqrt_rz(fabsf(a)));
    to[12] = __float_as_uint(float(__ddiv_ru(a, b) - __ddiv_rd(a, b)));
  }
}

template <typename Element, typename Pair>
__device__ uint32_t bits_of(Element low, Element high) {
  const Pair pair(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, 4);
  return bits;
}

// 16-bit arithmetic on any bits: every NaN, infinity and subnormal.
template <typename Element, typename Pair>
__global__ void half_arithmetic(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 512; i += 32) {
    Pair a, b, c;
    memcpy(&a, &in[i], 4);
    memcpy(&b, &in[512 + i], 4);
    memcpy(&c, &in[1024 + i], 4);
    uint32_t* const to = out + 13 * i;
    to[0] = bits_of<Element, Pair>(__hadd_rn(a.x, b.x), __hsub_rn(a.y, b.y));
    to[1] = bits_of<Element, Pair>(__hmul_rn(a.x, b.x), a.y * b.y);
    to[2] = bits_of<Element, Pair>(__hfma(a.x, b.x, c.x), __hfma(a.y, b.x, c.x));
    to[3] = bits_of<Element, Pair>(__hmax(a.x, b.x), __hmin(a.y, b.y));
    to[4] = bits_of<Element, Pair>(__hmax_nan(a.x, b.x), __hmin_nan(a.y, b.y));
    to[5] = uint32_t(a.x == b.x) + 2 * uint32_t(a.x != b.x) + 4 * uint32_t(a.x < b.x) +
            8 * uint32_t(a.x >= b.x) + 16 * uint32_t(__hne(a.y, b.y)) + 32 * uint32_t(__hgt(a.y, b.y)) +
            64 * uint32_t(__hisnan(a.x));
    Pair pair = __hfma2(a, b, c);
    memcpy(&to[6], &pair, 4);
    pair = __hadd2_rn(__hmax2(a, b), __habs2(c));
    memcpy(&to[7], &pair, 4);
    pair = __hmul2_rn(__hneg2(a), b);
    memcpy(&to[8], &pair, 4);
    pair = __hlt2(a, b);
    memcpy(&to[9], &pair, 4);
    to[10] = bits_of<Element, Pair>(a.x + b.y, a.y - b.x);
    to[11] = bits_of<Element, Pair>(__hmax(a.x, c.x), __hmin(c.y, a.y));
    pair = __hfma2_sat(a, b, c);
    memcpy(&to[12], &pair, 4);
  }
}

// Functions that CUDA promises to round to nearest; some of its versions are off in the last bit. N(0, 1).
template <typename Element, typename Pair>
__global__ void half_functions(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < 256; i += 32) {
    Pair pair;
    memcpy(&pair, &in[i], 4);
    const Element a = pair.x, b = pair.y, positive = __habs(a);
    const Element results[8] = {__hdiv(a, b),    hexp(a),         hexp2(a),         hlog(positive),
                                hlog2(positive), hsqrt(positive), hrsqrt(positive), hrcp(b)};
    for (int k = 0; k < 8; ++k) {
      out[8 * i + k] = __float_as_uint(float(results[k]));
      out[2048 + 8 * i + k] = __float_as_uint(fabsf(float(results[k])));  // relative to itself
    }
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
    {"cp_async_16, cp_async_16_zfill", {{kBits, 512}}, 768, 0, run<cp_async, 64>},
    {"exp2_approx", {{kExponents, 512}}, 1024, 0x1p-21, run<exp2_of>},
    {"__fmul_rd", {{kBits, 768}, {kFloat, 256}}, 512, 0, run<multiply_rounded_down>},
    {"shuffles, votes, matches, reductions", {{kBits, 256}}, 5120, 0, run<warp_functions>},
    {"counting barriers, atomics", {{kBits, 512}}, 1554, 0, run<cta_functions, 64>},
    {"integer functions, conversions", {{kBits, 256}, {kFloat, 256}}, 5120, 0, run<integer_functions>},
    {"float functions", {{kFloat, 512}}, 3328, 0, run<float_functions>},
    {"arithmetic fp16", {{kBits, 1536}}, 6656, 0, run<half_arithmetic<Fp16, __half2>>},
    {"arithmetic bf16", {{kBits, 1536}}, 6656, 0, run<half_arithmetic<Bf16, __nv_bfloat162>>},
    {"functions fp16", {{kFp16, 256}}, 4096, 0x1p-10, run<half_functions<Fp16, __half2>>},
    {"functions bf16", {{kBf16, 256}}, 4096, 0x1p-7, run<half_functions<Bf16, __nv_bfloat162>>},
};
// clang-format on

}  // namespace STEP_NAMESPACE

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
std::span<const ConformanceCase> conformance_cases() { return STEP_NAMESPACE::kCases; }
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
