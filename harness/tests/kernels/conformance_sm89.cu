// What conformance.cu does, for what needs sm_89: mma.sync in FP8.
#include "common/mma.h"
#include "common/step.h"
#include "harness/tests/kernels/conformance.h"

namespace STEP_NAMESPACE {

constexpr const char* needs_sm = "89";  // the build looks for these very words

// How a GPU sums FP8 products: in 14 bits, by one instruction, or as products of FP16, into which ptxas
// converts the operands for sm_90.
enum class Sums { k14Bits, kOfFp16 };

// What ptxas makes of mma.m16n8k32 for sm_90. Of four bytes the lower two are an element of the first
// product's operands and the upper two of the second's: a sum does not depend on the order of its k.
__device__ inline uint32_t to_fp16(uint32_t bytes, int half) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(bytes >> (16 * half)), __NV_E4M3);
  return uint32_t(pair.x) | uint32_t(pair.y) << 16;
}
__device__ inline void mma_of_fp16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  for (int i = 0; i < 2; ++i) {  // 16 of the 32 k
    const uint32_t *left = a + 2 * i, *right = a + 2 * i + 1;
    mma_m16n8k16<__half>(acc, {to_fp16(*left, 0), to_fp16(*right, 0), to_fp16(*left, 1), to_fp16(*right, 1)},
                         {to_fp16(b[i], 0), to_fp16(b[i], 1)});
  }
}

// The fragments as they come. The second time with all signs positive, as in conformance.cu. A GPU executes
// the instruction, whatever SUMS is: the emulator knows only sums in 14 bits by it.
template <Sums SUMS>
__global__ void mma_e4m3(const uint32_t* in, uint32_t* out) {
  const int lane = threadIdx.x;
  for (int scale = 0; scale < 2; ++scale) {
    const uint32_t byte_mask = scale ? 0x7f7f7f7f : 0xffffffff;
    const uint32_t float_mask = scale ? 0x7fffffff : 0xffffffff;
    uint32_t a[4], b[2];
    float acc[4];
    for (int i = 0; i < 4; ++i) a[i] = in[4 * lane + i] & byte_mask;
    for (int i = 0; i < 2; ++i) b[i] = in[128 + 2 * lane + i] & byte_mask;
    for (int i = 0; i < 4; ++i) acc[i] = __uint_as_float(in[192 + 4 * lane + i] & float_mask);
#ifdef __CUDACC__
    mma_m16n8k32_e4m3(acc, a, b);
#else
    SUMS == Sums::kOfFp16 ? mma_of_fp16(acc, a, b) : mma_m16n8k32_e4m3(acc, a, b);
#endif
    for (int i = 0; i < 4; ++i) out[scale * 128 + 4 * lane + i] = __float_as_uint(acc[i]);
  }
}

template <auto KERNEL>
void run(const AttentionCall& call, void* stream) {
  launch(KERNEL, dim3(1), dim3(32), 0, static_cast<Stream>(stream), static_cast<const uint32_t*>(call.q.data),
         static_cast<uint32_t*>(call.o.data));
}

using enum Words;

// Two sums of 16 products of FP16, each in an order and with a rounding of the hardware's own.
constexpr double SUM = 2e-6;
// To the bit, as the emulator sums for wgmma on Hopper. The cases with it have not been run: we had no GPU of
// sm_89 or sm_120.
constexpr double SUM_OF_14_BITS = 0;
constexpr int SM_90 = 90;

// clang-format off
constexpr ConformanceCase kCases[] = {
    {"mma e4m3, sums of FP16", {{kE4m3, 192}, {kFloat, 128}}, 256, SUM, run<mma_e4m3<Sums::kOfFp16>>, "90a"},
    {"mma e4m3 with zeros, sums of FP16", {{kE4m3WithZeros, 192}, {kFloat, 128}}, 256, SUM, run<mma_e4m3<Sums::kOfFp16>>, "90a"},
    {"mma e4m3, sums in 14 bits", {{kE4m3, 192}, {kFloat, 128}}, 256, SUM_OF_14_BITS, run<mma_e4m3<Sums::k14Bits>>, needs_sm, SM_90},
    {"mma e4m3 with zeros, sums in 14 bits", {{kE4m3WithZeros, 192}, {kFloat, 128}}, 256, SUM_OF_14_BITS, run<mma_e4m3<Sums::k14Bits>>, needs_sm, SM_90},
    {"mma e4m3, integers", {{kE4m3Integers, 192}, {kFloatIntegers, 128}}, 256, 0, run<mma_e4m3<Sums::k14Bits>>, needs_sm},
};
// clang-format on

}  // namespace STEP_NAMESPACE

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
std::span<const ConformanceCase> conformance_cases_sm89() { return STEP_NAMESPACE::kCases; }
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
