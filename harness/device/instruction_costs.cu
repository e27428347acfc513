// Times loops of mma.sync with a few other instructions in them, on one scheduler of one SM.
#include <algorithm>

#include "common/cuda/check.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "harness/device/ceilings.h"
#include "harness/device/random_pair.h"

namespace flashsteps {
namespace {

enum class Other { kNone, kFma, kAdd, kMul, kPack, kMax, kLogic, kIntMax3, kExp2, kLdmatrix };
// Where the others of a round are: some behind each product, or all of them behind the last one.
enum class Place { kSpread, kTogether };

constexpr int kMaxWarps = 4;    // of the scheduler that is timed
constexpr int kSchedulers = 4;  // of an SM; a CTA's warps take turns
constexpr int kProducts = kProductsOfRound;
constexpr int kRounds = 2048;
constexpr int kRepetitions = 5;  // the median counts

struct Moments {
  long long begin[kMaxWarps], end[kMaxWarps];  // on the SM's clock
};

__device__ float sink[32 * kMaxWarps * kSchedulers];

// One instruction, whose first operand becomes its result. The sign of x is part of it. A third operand comes
// from a uniform register, in no bank, but for VIMNMX3, which has three registers in the steps too.
template <Other OTHER>
__device__ __forceinline__ void compute(uint32_t& own, float y, float z, float uniform) {
  const float x = __uint_as_float(own);
  if constexpr (OTHER == Other::kFma) own = __float_as_uint(fmaf(x, uniform, y));
  if constexpr (OTHER == Other::kAdd) own = __float_as_uint(x + y);
  if constexpr (OTHER == Other::kMul) own = __float_as_uint(x * y);
  if constexpr (OTHER == Other::kPack) own = pack2<__nv_bfloat16>(x, y);
  if constexpr (OTHER == Other::kMax) own = __float_as_uint(fmaxf(-x, y));
  if constexpr (OTHER == Other::kLogic) own = (own & __float_as_uint(y)) ^ __float_as_uint(uniform);
  if constexpr (OTHER == Other::kIntMax3) own = __vimax3_s32(int(own), __float_as_int(y), __float_as_int(z));
  if constexpr (OTHER == Other::kExp2) own = __float_as_uint(exp2_approx(-x));
}

// kRounds times: kProducts products, and BESIDE of the others. Each of the others makes an operand that the
// same product of the next round reads, so none is in vain and no product waits for one.
//
// The compiler places registers, but an operand of mma.sync has neighbouring registers from an even one on:
// its elements 0 and 2 are in the even bank, 1 and 3 in the odd one. All operands of the others are such
// elements.
template <Other OTHER, int BANKS, Place PLACE, int BESIDE>
__global__ void __launch_bounds__(32 * kMaxWarps * kSchedulers)
    timed_loop(Moments* moments, float uniform, int never) {
  static_assert(BESIDE < kProducts || (BESIDE % kProducts == 0 && BESIDE <= 4 * kProducts));
  constexpr bool kTogether = PLACE == Place::kTogether;
  constexpr int kUnrolled = kTogether ? 1 : 8;  // rounds; each ldmatrix of them reads other rows
  __shared__ uint32_t rows[kUnrolled][kProducts][32][4];
  for (int i = threadIdx.x; i < kUnrolled * kProducts * 32 * 4; i += blockDim.x)
    rows[0][0][0][i] = random_pair(i);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t a[kProducts][4], b[kProducts][2];
  float acc[kProducts][4] = {};
  for (int p = 0; p < kProducts; ++p) {
    for (int i = 0; i < 4; ++i) a[p][i] = random_pair((threadIdx.x * kProducts + p) * 6 + i);
    for (int i = 0; i < 2; ++i) b[p][i] = random_pair((threadIdx.x * kProducts + p) * 6 + 4 + i);
  }
  __syncthreads();
  if (warp % kSchedulers != 0) return;

  // Those that make operands of product p.
  const auto others = [&](int p, int round) {
    if ((p + 1) * BESIDE / kProducts == p * BESIDE / kProducts) return;
#pragma unroll
    for (int k = 0; k < (BESIDE + kProducts - 1) / kProducts; ++k) {
      if constexpr (OTHER == Other::kLdmatrix) {
        ldmatrix_x4(a[p], rows[round][p][lane]);
      } else {
        // The result of a product that is complete, and of it a register that few others read: what two in a
        // row read may be read once and kept.
        const auto& ready = acc[kTogether ? p / 2 + 4 * (k / 2) : (p + 3 + k / 2) % kProducts];
        const int at = (BANKS == 2 ? 1 - k % 2 : k % 2) + (kTogether ? 2 * (p % 2) : 0);
        compute<OTHER>(k < 2 ? b[p][k] : a[p][k - 2], ready[at], ready[at ^ 2], uniform);
      }
    }
  };
  const long long begin = clock64();
#pragma unroll 1
  for (int turn = 0; turn < kRounds / kUnrolled; ++turn) {
#pragma unroll
    for (int round = 0; round < kUnrolled; ++round) {
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
        mma_m16n8k16<__nv_bfloat16>(acc[p], a[p], b[p]);
        if constexpr (!kTogether) others(p, round);
      }
      if constexpr (kTogether) {
        // A branch is the only border across which the compiler moves nothing.
        if (turn == never) return;
#pragma unroll
        for (int p = 0; p < kProducts; ++p) others(p, round);
      }
    }
  }
  const long long end = clock64();
  float sum = 0;
  for (int p = 0; p < kProducts; ++p) {
    for (int i = 0; i < 4; ++i) sum += acc[p][i] + __uint_as_float(a[p][i]);
    for (int i = 0; i < 2; ++i) sum += __uint_as_float(b[p][i]);
  }
  sink[threadIdx.x] = sum;
  if (lane == 0) {
    moments->begin[warp / kSchedulers] = begin;
    moments->end[warp / kSchedulers] = end;
  }
}

template <Other OTHER, int BANKS, Place PLACE, int BESIDE>
double clocks_of_round(int warps, cudaStream_t stream) {
  Moments* moments = nullptr;
  CUDA_CHECK(cudaMallocHost(&moments, sizeof(Moments)));
  std::vector<long long> taken(kRepetitions + 1);
  for (long long& each : taken) {
    timed_loop<OTHER, BANKS, PLACE, BESIDE>
        <<<1, 32 * warps * kSchedulers, 0, stream>>>(moments, /*uniform=*/1, /*never=*/-1);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaStreamSynchronize(stream));
    each = *std::max_element(moments->end, moments->end + warps) -
           *std::min_element(moments->begin, moments->begin + warps);
  }
  CUDA_CHECK(cudaFreeHost(moments));
  std::sort(taken.begin() + 1, taken.end());  // the first one loaded the instructions
  return double(taken[1 + kRepetitions / 2]) / (double(kRounds) * warps);
}

template <Other OTHER, int BANKS, int... BESIDE>
InstructionCost measure(const char* instruction, int warps, cudaStream_t stream) {
  return {instruction,
          BANKS,
          {BESIDE...},
          {clocks_of_round<OTHER, BANKS, Place::kSpread, BESIDE>(warps, stream)...},
          {clocks_of_round<OTHER, BANKS, Place::kTogether, BESIDE>(warps, stream)...}};
}

template <Other OTHER>
void measure_both(const char* instruction, InstructionCosts& costs, cudaStream_t stream) {
  costs.others.push_back(measure<OTHER, 2, 8, 16, 32>(instruction, costs.warps, stream));
  costs.others.push_back(measure<OTHER, 1, 8, 16, 32>(instruction, costs.warps, stream));
}

}  // namespace

std::vector<InstructionCosts> measure_instruction_costs(cudaStream_t stream) {
  const bool is_hopper = device_properties().major == 9;
  std::vector<InstructionCosts> found;
  for (const int warps : {1, 2, kMaxWarps}) {
    InstructionCosts& costs = found.emplace_back(
        InstructionCosts{warps,
                         clocks_of_round<Other::kNone, 1, Place::kSpread, 0>(warps, stream),
                         clocks_of_round<Other::kNone, 1, Place::kTogether, 0>(warps, stream),
                         {}});
    measure_both<Other::kFma>("FFMA", costs, stream);
    measure_both<Other::kAdd>("FADD", costs, stream);
    measure_both<Other::kMul>("FMUL", costs, stream);
    measure_both<Other::kPack>("F2FP", costs, stream);
    measure_both<Other::kMax>("FMNMX", costs, stream);
    measure_both<Other::kLogic>("LOP3", costs, stream);
    if (is_hopper) measure_both<Other::kIntMax3>("VIMNMX3", costs, stream);  // elsewhere two
    // One operand; and their units are slow, so that more of them would only show that.
    costs.others.push_back(measure<Other::kExp2, 1, 2, 4, 6>("MUFU.EX2", warps, stream));
    costs.others.push_back(measure<Other::kLdmatrix, 1, 2, 4, 8>("LDSM.x4", warps, stream));
  }
  return found;
}

}  // namespace flashsteps
