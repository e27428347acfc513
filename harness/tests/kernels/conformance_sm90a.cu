// What conformance.cu does, for the headers that only sm_90a has: setmaxnreg, multicast, wgmma.
#include "common/cluster.h"
#include "common/launch.h"
#include "common/mbarrier.h"
#include "common/pack.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "common/wgmma.h"
#include "harness/tests/kernels/conformance.h"

namespace STEP_NAMESPACE {

constexpr const char* needs_sm = "90a";  // the build looks for these very words

// One warpgroup gives registers back and passes words on; the other takes them, and has more values at once
// than there were registers at launch.
constexpr int NUM_THREADS = 256, CTAS_PER_SM = 2;
constexpr int AT_LAUNCH = registers_at_launch(NUM_THREADS, CTAS_PER_SM);
constexpr int NUM_VALUES = 192;
static_assert(AT_LAUNCH < NUM_VALUES);

__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM) registers(const uint32_t* in, uint32_t* out) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(smem);
  const int thread = threadIdx.x % 128;
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<24, AT_LAUNCH>();
    for (int i = thread; i < 512; i += 128) words[i] = in[i];
    __syncthreads();
    return;
  }
  warpgroup_reg_alloc<232, AT_LAUNCH>();
  __syncthreads();
  uint32_t values[NUM_VALUES];
#pragma unroll
  for (int i = 0; i < NUM_VALUES; ++i) values[i] = words[(thread + i) % 512];
  for (int round = 0; round < 8; ++round) {
#pragma unroll
    for (int i = 0; i < NUM_VALUES; ++i) values[i] = 3 * values[i] ^ values[(i + 1) % NUM_VALUES];
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < NUM_VALUES; ++i) sum += values[i];
  out[thread] = sum;
}

void run(const AttentionCall& call, void* stream) {
  launch(registers, dim3(1), dim3(NUM_THREADS), 2048, static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), static_cast<uint32_t*>(call.o.data));
}

// ---- Multicast: CTA r of a cluster loads a box for itself and the next one. Then all of each CTA's shared
// memory as it lies there.
constexpr int CLUSTER_SIZE = 4, NUM_ROWS = 40;
template <typename Tile>
struct MulticastStorage {
  Tile tile[2];
  uint64_t bar_full;
};

template <typename Tile>
__global__ void multicast(const __grid_constant__ TensorMap map, uint32_t* out) {
  auto& shared = *reinterpret_cast<MulticastStorage<Tile>*>(smem);
  const int rank = cluster_ctarank(), next = (rank + 1) % CLUSTER_SIZE;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);
    fence_mbarrier_init();
  }
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&shared.bar_full, sizeof(shared.tile));
    tma_load_5d_multicast(&shared.tile[rank % 2], map, &shared.bar_full, uint16_t(1 << rank | 1 << next), 0,
                          9 * rank, 0, 0, 0);
  }
  __syncwarp();
  mbarrier_wait(&shared.bar_full, 0);
  constexpr int WORDS = sizeof(shared.tile) / 4;
  for (int i = threadIdx.x; i < WORDS; i += 32)
    out[WORDS * rank + i] = reinterpret_cast<const uint32_t*>(shared.tile)[i];
}

template <typename Tile>
void run_multicast(const AttentionCall& call, void* stream) {
  const View tensor{
      static_cast<const uint16_t*>(call.q.data), 1, 1, NUM_ROWS, Tile::COLS, Tile::COLS, Tile::COLS};
  launch_clusters(CLUSTER_SIZE, multicast<Tile>, dim3(CLUSTER_SIZE), dim3(32), sizeof(MulticastStorage<Tile>),
                  static_cast<Stream>(stream), make_tensor_map<Tile>(tensor),
                  static_cast<uint32_t*>(call.o.data));
}

template <int COLS, int SWIZZLE_BYTES>
constexpr ConformanceCase multicast_case(const char* name) {
  using Tile = SwizzledTile<uint16_t, 16, COLS, SWIZZLE_BYTES>;
  return {name,    {{Words::kBits, NUM_ROWS * COLS / 2}}, CLUSTER_SIZE * 16 * COLS, 0, run_multicast<Tile>,
          needs_sm};
}

// ---- wgmma: acc = A B + C and, as the scales that errors are measured by, |A| |B| + |C|. Two warpgroups,
// each with 64 rows of A. Operands come by TMA, and once more, with other values, from threads. In a cluster
// the last CTA does it.
template <typename P>
__global__ void __launch_bounds__(256)
    product(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
            const uint32_t* a_words, const float* c, float* out) {
  constexpr int N = P::NUM_COLS, K = P::DEPTH;
  if (int(blockIdx.x) < P::CTAS - 1) return;
  auto& shared = *reinterpret_cast<typename P::Storage*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&shared.bar_full, sizeof(shared.a) + sizeof(shared.b));
    tma_load_5d(&shared.a, a_map, &shared.bar_full, 0, 0, 0, 0, 0);
    tma_load_5d(&shared.b, b_map, &shared.bar_full, 0, 0, 0, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(&shared.bar_full, 0);
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  uint32_t registers[K / P::MMA_K][4] = {};
  if constexpr (P::A_REGISTERS) {
#pragma unroll
    for (int i = 0; i < K / P::MMA_K * 4; ++i)
      registers[i / 4][i % 4] =
          a_words[(row + i % 2 * 8) * (K / P::MMA_K * 8) + i / 4 * 8 + i % 4 / 2 * 4 + pair];
  }
  const auto place = [&](int i) { return (row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * pair + i % 2; };
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) acc[i] = c[place(i)];
  P::multiply(shared, acc, registers);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) out[place(i)] = acc[i];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) acc[i] = fabsf(c[place(i)]);
  // The absolute values, by their sign bits.
  __syncthreads();
  uint32_t* const words = reinterpret_cast<uint32_t*>(smem);
  for (int i = threadIdx.x; i < P::A_WORDS + P::B_WORDS; i += 256) words[i] &= P::MAGNITUDES;
  for (auto& a : registers) {
    for (uint32_t& elements : a) elements &= P::MAGNITUDES;
  }
  fence_proxy_async();
  __syncthreads();
  P::multiply(shared, acc, registers);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) out[P::C_WORDS + place(i)] = acc[i];
}

template <typename Element, int N, int K, Major A_MAJOR, Major B_MAJOR, bool A_IN_REGISTERS, int SWIZZLE,
          int NUM_CTAS, bool FP16_SUMS>
struct Product {
  template <Major MAJOR, int MN>
  using Operand =
      std::conditional_t<MAJOR == Major::kK, SwizzledTile<Element, MN, K, SWIZZLE>,
                         SwizzledTile<Element, K, ceil_div(MN, SWIZZLE / 2) * (SWIZZLE / 2), SWIZZLE>>;
  using A = Operand<A_MAJOR, 128>;
  using B = Operand<B_MAJOR, N>;
  struct Storage {
    A a;
    B b;
    uint64_t bar_full;
  };
  static constexpr int NUM_COLS = N, DEPTH = K, CTAS = NUM_CTAS;
  static constexpr int MMA_K = 32 / sizeof(Element);
  static constexpr uint32_t MAGNITUDES = sizeof(Element) == 1 ? 0x7f7f7f7f : 0x7fff7fff;
  static constexpr bool A_REGISTERS = A_IN_REGISTERS;
  static constexpr int A_WORDS = sizeof(A) / 4, B_WORDS = sizeof(B) / 4, C_WORDS = 128 * N;

  template <Major MAJOR, typename Tile>
  static __device__ SmemDescriptor at_k(const Tile& tile, int mn, int k) {
    const SmemDescriptor first =
        make_smem_descriptor<(NUM_CTAS > 1)>(tile, MAJOR == Major::kK ? mn : 0, MAJOR == Major::kK ? 0 : mn);
    return MAJOR == Major::kK ? advance<Tile>(first, 0, k) : advance<Tile>(first, k, 0);
  }

  // Sums in FP16, which begin with what acc is then, and go to acc.
  static __device__ void multiply_in_fp16(const Storage& shared, float (&acc)[N / 2]) {
    uint32_t pairs[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; ++i) pairs[i] = pack2<__half>(acc[2 * i], acc[2 * i + 1]);
    warpgroup_fence_operand(pairs);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < K; k += MMA_K)
      wgmma_m64k32_e4m3(pairs, at_k<A_MAJOR>(shared.a, threadIdx.x / 128 * 64, k),
                        at_k<B_MAJOR>(shared.b, 0, k), true);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(pairs);
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      acc[i] = __half2float(__ushort_as_half((unsigned short)(pairs[i / 2] >> (16 * (i % 2)))));
  }

  static __device__ void multiply(const Storage& shared, float (&acc)[N / 2],
                                  uint32_t (&registers)[K / MMA_K][4]) {
    if constexpr (FP16_SUMS) return multiply_in_fp16(shared, acc);
    warpgroup_fence_operand(acc);
    for (auto& a : registers) warpgroup_fence_operand(a);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < K; k += MMA_K) {
      const SmemDescriptor b = at_k<B_MAJOR>(shared.b, 0, k);
      if constexpr (sizeof(Element) == 1 && A_IN_REGISTERS) {
        wgmma_m64k32_e4m3(acc, registers[k / MMA_K], b, true);
      } else if constexpr (sizeof(Element) == 1) {
        wgmma_m64k32_e4m3(acc, at_k<A_MAJOR>(shared.a, threadIdx.x / 128 * 64, k), b, true);
      } else if constexpr (A_IN_REGISTERS) {
        wgmma_m64k16<Element, B_MAJOR>(acc, registers[k / MMA_K], b, true);
      } else {
        wgmma_m64k16<Element, B_MAJOR, A_MAJOR>(acc, at_k<A_MAJOR>(shared.a, threadIdx.x / 128 * 64, k), b,
                                                true);
      }
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(acc);
  }

  static void run(const AttentionCall& call, void* stream) {
    const auto* words = static_cast<const uint32_t*>(call.q.data);
    const auto map_of = [](auto view) { return make_tensor_map<typename decltype(view)::Tile>(view.tensor); };
    launch_clusters(NUM_CTAS, product<Product>, dim3(NUM_CTAS), dim3(256), sizeof(Storage),
                    static_cast<Stream>(stream), map_of(Source<A>{words}), map_of(Source<B>{words + A_WORDS}),
                    words, reinterpret_cast<const float*>(words + A_WORDS + B_WORDS),
                    static_cast<float*>(call.o.data));
  }

 private:
  template <typename Tile_>
  struct Source {
    using Tile = Tile_;
    static constexpr int COLS = Tile::COLS;
    explicit Source(const uint32_t* words)
        : tensor{reinterpret_cast<const Element*>(words), 1, 1, Tile::ROWS, COLS, COLS, COLS} {}
    View<const Element> tensor;
  };
};

// ---- One warp of a warpgroup comes late. When the others' wait returns, has it come? And is its part
// complete, so that another warp may overwrite what it reads?
struct LateStorage {
  SwizzledTile<__half, 64, 64, 128> a, b;
  int latest;
};

__global__ void wait_for_the_late_warp(const uint32_t* in, uint32_t* out) {
  auto& shared = *reinterpret_cast<LateStorage*>(smem);
  volatile int& latest = shared.latest;
  constexpr int WORDS = (sizeof(shared.a) + sizeof(shared.b)) / 4;
  uint32_t* const words = reinterpret_cast<uint32_t*>(&shared.a);
  const int warp = threadIdx.x / 32;
  for (int late = 0; late < 4; ++late) {
    for (int i = threadIdx.x; i < WORDS; i += 128) words[i] = 0x3c003c00;  // 1, twice
    fence_proxy_async();  // wgmma sees what this thread has written
    __syncthreads();
    if (warp == late) {
      for (int i = 0; i < 50; ++i) __nanosleep(1000);
      latest = late + 1;
    }
    __syncwarp();
    float acc[4] = {};
    warpgroup_fence_operand(acc);
    warpgroup_arrive();
    wgmma_m64k16<__half>(acc, make_smem_descriptor(shared.a), make_smem_descriptor(shared.b), false);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(acc);
    const int seen = latest;  // late + 1
    if (warp == (late + 1) % 4) {
      for (int i = threadIdx.x % 32; i < WORDS; i += 32) words[i] = 0x40004000;  // 2, twice
    }
    out[late * 128 + threadIdx.x] = in[threadIdx.x] + seen + int(acc[0]);  // 16
    __syncthreads();
  }
}

void run_late_warp(const AttentionCall& call, void* stream) {
  launch(wait_for_the_late_warp, dim3(1), dim3(128), sizeof(LateStorage), static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), static_cast<uint32_t*>(call.o.data));
}

using enum Major;
using enum Words;
// Four sums of 16 products, each in an order and with a rounding of the hardware's own.
constexpr double SUM = 4e-6;
// Of 32 FP8 products the emulator knows the hardware's order and rounding (fragments.h), to the bit.
constexpr double FP8_SUM = 0;

template <typename Element, int N, int K, Major A_MAJOR, Major B_MAJOR, bool A_IN_REGISTERS, int SWIZZLE,
          int NUM_CTAS = 1, bool FP16_SUMS = false>
constexpr ConformanceCase product_case(const char* name, Words numbers, double tolerance) {
  using P = Product<Element, N, K, A_MAJOR, B_MAJOR, A_IN_REGISTERS, SWIZZLE, NUM_CTAS, FP16_SUMS>;
  const bool integers = numbers == kFp16Integers || numbers == kBf16Integers || numbers == kE4m3Integers;
  return {
      name,           {{numbers, P::A_WORDS + P::B_WORDS}, {integers ? kFloatIntegers : kFloat, P::C_WORDS}},
      2 * P::C_WORDS, tolerance,
      P::run,         needs_sm};
}

constexpr ConformanceCase kCases[] = {
    product_case<__half, 64, 64, kK, kK, false, 128>("wgmma n64, Q K^T", kFp16, SUM),
    product_case<__nv_bfloat16, 176, 128, kK, kK, false, 128>("wgmma n176, Q K^T, bf16", kBf16, 2 * SUM),
    product_case<__half, 64, 64, kK, kMN, true, 128>("wgmma n64, P V", kFp16, SUM),
    product_case<__nv_bfloat16, 128, 128, kK, kMN, true, 128>("wgmma n128, P V, bf16", kBf16, 2 * SUM),
    product_case<__half, 128, 64, kK, kMN, true, 128>("wgmma n128, P V, exact", kFp16Integers, 0),
    product_case<__half, 8, 64, kK, kK, true, 128>("wgmma n8, exact", kFp16Integers, 0),
    product_case<__nv_bfloat16, 256, 64, kK, kK, false, 128>("wgmma n256, exact", kBf16Integers, 0),
    product_case<__half, 96, 128, kK, kMN, false, 128>("wgmma n96, SS, V, exact", kFp16Integers, 0),
    product_case<__nv_bfloat16, 72, 64, kMN, kMN, false, 128>("wgmma n72, A and B by K, exact", kBf16Integers,
                                                              0),
    product_case<__half, 80, 64, kK, kK, false, 64>("wgmma n80, 64-byte swizzle, exact", kFp16Integers, 0),
    product_case<__half, 80, 64, kMN, kMN, false, 64>("wgmma n80, 64-byte swizzle, by K, exact",
                                                      kFp16Integers, 0),
    product_case<__half, 40, 64, kK, kK, false, 32>("wgmma n40, 32-byte swizzle, exact", kFp16Integers, 0),
    product_case<__half, 40, 64, kMN, kMN, false, 32>("wgmma n40, 32-byte swizzle, by K, exact",
                                                      kFp16Integers, 0),
    product_case<__half, 96, 128, kK, kMN, false, 128, 2>("wgmma n96, SS, V, CTA 1 of 2, exact",
                                                          kFp16Integers, 0),
    product_case<__nv_bfloat16, 72, 64, kMN, kMN, false, 128, 4>("wgmma n72, by K, CTA 3 of 4, exact",
                                                                 kBf16Integers, 0),
    product_case<__nv_fp8_e4m3, 64, 128, kK, kK, false, 128>("wgmma n64, e4m3, Q K^T", kE4m3, FP8_SUM),
    product_case<__nv_fp8_e4m3, 128, 128, kK, kK, true, 128>("wgmma n128, e4m3, P V", kE4m3, FP8_SUM),
    product_case<__nv_fp8_e4m3, 64, 64, kK, kK, false, 64>("wgmma n64, e4m3 with zeros", kE4m3WithZeros,
                                                           FP8_SUM),
    product_case<__nv_fp8_e4m3, 256, 32, kK, kK, true, 32>("wgmma n256, e4m3, exact", kE4m3Integers, 0),
    product_case<__nv_fp8_e4m3, 128, 128, kK, kK, false, 128, 1, true>("wgmma n128, e4m3, sums in FP16",
                                                                       kE4m3, FP8_SUM),
    product_case<__nv_fp8_e4m3, 256, 64, kK, kK, false, 64, 1, true>("wgmma n256, e4m3, too large for FP16",
                                                                     kE4m3Large, FP8_SUM),
    multicast_case<128, 128>("tma_load_5d_multicast, 2 panels of 128 bytes"),
    multicast_case<64, 0>("tma_load_5d_multicast, no swizzle"),
    {"warpgroup_wait, after a late warp", {{kBits, 128}}, 512, 0, run_late_warp, needs_sm},
    {"warpgroup_reg_alloc, warpgroup_reg_dealloc", {{kBits, 512}}, 128, 0, run, needs_sm},
};

}  // namespace STEP_NAMESPACE

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
std::span<const ConformanceCase> conformance_cases_sm90a() { return STEP_NAMESPACE::kCases; }
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
