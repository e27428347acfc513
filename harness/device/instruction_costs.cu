// Times loops of mma.sync with a few other instructions in them, on one scheduler of one SM.
#include <algorithm>

#include "common/cuda/check.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "harness/device/instruction_costs.h"
#include "harness/device/random_pair.h"

namespace flashsteps {
namespace {

enum class Other { kNone, kFma, kAdd, kMul, kPack, kMax, kLogic, kIntMax3, kExp2, kLdmatrix };

constexpr int kWarps = 2;        // of the scheduler that is timed
constexpr int kSchedulers = 4;   // of an SM; a CTA's warps take turns
constexpr int kProducts = 8;     // of a warp that do not depend on each other
constexpr int kRounds = 2048;    // of kProducts each
constexpr int kUnrolled = 8;     // of the rounds, by hand: each ldmatrix of them reads other rows
constexpr int kRepetitions = 5;  // the median counts

struct Moments {
  long long begin[kWarps], end[kWarps];  // on the SM's clock
};

__device__ float sink[32 * kWarps * kSchedulers];

// One instruction, whose first operand becomes its result. The sign of x is part of it. Operands differ from
// one to the next, or the compiler would find that fewer do the same.
template <Other OTHER>
__device__ __forceinline__ void compute(uint32_t& own, float y, float sign, float summand) {
  const float x = __uint_as_float(own);
  if constexpr (OTHER == Other::kFma) own = __float_as_uint(fmaf(x, sign, summand));
  if constexpr (OTHER == Other::kAdd) own = __float_as_uint(x + summand);
  if constexpr (OTHER == Other::kMul) own = __float_as_uint(x * sign);
  if constexpr (OTHER == Other::kPack) own = pack2<__nv_bfloat16>(x, y);
  if constexpr (OTHER == Other::kMax) own = __float_as_uint(fmaxf(-x, y));
  if constexpr (OTHER == Other::kLogic) own = (own & __float_as_uint(y)) ^ __float_as_uint(summand);
  if constexpr (OTHER == Other::kIntMax3)
    own = __vimax3_s32(int(own), __float_as_int(y), __float_as_int(summand));
  if constexpr (OTHER == Other::kExp2) own = __float_as_uint(exp2_approx(-x));
}

// kRounds times: kProducts products, and BESIDE of the others spread evenly among them. Each of the others
// makes an operand that the product before it has read, and that the same product of the next round reads. So
// none is in vain, no product waits for one, and the compiler cannot move it far: left to itself it puts all
// of them side by side, and the remaining products behind them.
template <Other OTHER, int BESIDE, bool WITH_PRODUCTS>
__global__ void __launch_bounds__(32 * kWarps * kSchedulers) timed_loop(Moments* moments) {
  __shared__ uint32_t rows[kUnrolled][kProducts][32][4];
  for (int i = threadIdx.x; i < kUnrolled * kProducts * 32 * 4; i += blockDim.x)
    rows[0][0][0][i] = random_pair(i);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t a[kProducts][4], b[kProducts][2];
  float acc[kProducts][4] = {};
  const float sign = copysignf(1, random_number(threadIdx.x)), summand = random_number(~threadIdx.x);
  for (int p = 0; p < kProducts; ++p) {
    for (int i = 0; i < 4; ++i) a[p][i] = random_pair((threadIdx.x * kProducts + p) * 6 + i);
    for (int i = 0; i < 2; ++i) b[p][i] = random_pair((threadIdx.x * kProducts + p) * 6 + 4 + i);
  }
  __syncthreads();
  if (warp % kSchedulers != 0) return;
  const long long begin = clock64();
  for (int turn = 0; turn < kRounds / kUnrolled; ++turn) {
#pragma unroll
    for (int j = 0; j < kUnrolled * kProducts; ++j) {
      const int p = j % kProducts;
      if constexpr (WITH_PRODUCTS) mma_m16n8k16<__nv_bfloat16>(acc[p], a[p], b[p]);
#pragma unroll
      for (int i = j * BESIDE / kProducts; i < (j + 1) * BESIDE / kProducts; ++i) {
        if constexpr (OTHER == Other::kLdmatrix)
          ldmatrix_x4(a[p], rows[j / kProducts][p][lane]);
        else
          compute<OTHER>(
              b[p][0],
              WITH_PRODUCTS ? acc[(p + 1) % kProducts][0] : __uint_as_float(b[(p + 4) % kProducts][0]), sign,
              summand);
      }
    }
  }
  const long long end = clock64();
  float sum = 0;
  for (int p = 0; p < kProducts; ++p) sum += acc[p][0] + acc[p][1] + acc[p][2] + acc[p][3];
  for (int p = 0; p < kProducts; ++p) sum += __uint_as_float(b[p][0]);
  sink[threadIdx.x] = sum;
  if (lane == 0) {
    moments->begin[warp / kSchedulers] = begin;
    moments->end[warp / kSchedulers] = end;
  }
}

// Clocks that the scheduler takes for one of `count` equal parts of a warp's round.
template <Other OTHER, int BESIDE, bool WITH_PRODUCTS>
double clocks(int count, cudaStream_t stream) {
  Moments* moments = nullptr;
  CUDA_CHECK(cudaMallocHost(&moments, sizeof(Moments)));
  std::vector<long long> taken(kRepetitions + 1);
  for (long long& each : taken) {
    timed_loop<OTHER, BESIDE, WITH_PRODUCTS><<<1, 32 * kWarps * kSchedulers, 0, stream>>>(moments);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaStreamSynchronize(stream));
    each = *std::ranges::max_element(moments->end) - *std::ranges::min_element(moments->begin);
  }
  CUDA_CHECK(cudaFreeHost(moments));
  std::sort(taken.begin() + 1, taken.end());  // the first one loaded the instructions
  return double(taken[1 + kRepetitions / 2]) / (double(kRounds) * kWarps * count);
}

template <Other OTHER>
InstructionCost measure(const char* instruction, cudaStream_t stream) {
  constexpr auto& n = kBesideEightProducts;
  double alone = 0;
  if constexpr (OTHER != Other::kLdmatrix)
    alone = clocks<OTHER, 8, false>(8, stream);  // whom would it serve?
  return {instruction,
          alone,
          {clocks<OTHER, n[0], true>(kProducts, stream), clocks<OTHER, n[1], true>(kProducts, stream),
           clocks<OTHER, n[2], true>(kProducts, stream)}};
}

}  // namespace

InstructionCosts measure_instruction_costs(cudaStream_t stream) {
  InstructionCosts costs{
      clocks<Other::kNone, 0, true>(kProducts, stream),
      {measure<Other::kFma>("FFMA", stream), measure<Other::kAdd>("FADD", stream),
       measure<Other::kMul>("FMUL", stream), measure<Other::kPack>("F2FP", stream),
       measure<Other::kMax>("FMNMX", stream), measure<Other::kLogic>("LOP3", stream),
       measure<Other::kExp2>("MUFU.EX2", stream), measure<Other::kLdmatrix>("LDSM.x4", stream)}};
  int device = 0, major = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major == 9) costs.others.push_back(measure<Other::kIntMax3>("VIMNMX3", stream));  // elsewhere two
  return costs;
}

}  // namespace flashsteps
