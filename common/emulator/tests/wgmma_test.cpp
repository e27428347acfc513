// wgmma: its products, what it counts, and the mistakes around it.
#include "common/wgmma.h"

#include <type_traits>

#include "common/emulator/fragments.h"
#include "common/emulator/tests/support.h"
#include "common/mbarrier.h"
#include "common/named_barrier.h"
#include "common/pack.h"
#include "common/swizzle.h"
#include "common/tma.h"

using namespace flashsteps;
using emulator::AsyncMode;
using emulator::Bug;
using emulator::Report;

namespace {

template <typename Test>
void in_all_modes(Test test) {
  for (uint64_t seed = 0; seed <= 5; ++seed) {
    emulator::Options& options = fresh_options();
    options.shuffle = seed > 1;
    options.seed = seed;
    options.async = seed % 3 == 0 ? AsyncMode::kEarly : seed % 3 == 1 ? AsyncMode::kLate : AsyncMode::kRandom;
    options.race_detector = seed > 0;
    CAPTURE(seed);
    test();
  }
}

// ---- Products

// One product of any type.
template <typename E, Major B_MAJOR, Major A_MAJOR, typename Acc, int NUM_ACC, typename A>
[[gnu::always_inline]] inline void multiply_once(Acc (&acc)[NUM_ACC], const A& a, SmemDescriptor b,
                                                 bool scale_d) {
  constexpr bool A_IN_REGISTERS = !std::is_same_v<A, SmemDescriptor>;
  if constexpr (sizeof(E) == 1)
    wgmma_m64k32_e4m3(acc, a, b, scale_d);
  else if constexpr (A_IN_REGISTERS)
    wgmma_m64k16<E, B_MAJOR>(acc, a, b, scale_d);
  else
    wgmma_m64k16<E, B_MAJOR, A_MAJOR>(acc, a, b, scale_d);
}

// A is M x K or, in kMN, K x M; B is N x K or K x N. The tile of an operand has whole panels. Acc is uint32_t
// if the sums are in FP16.
template <typename Element, int K_, int N_, Major A_MAJOR_, Major B_MAJOR_, bool A_IN_REGISTERS_, int SWIZZLE,
          typename Acc_ = float>
struct Config {
  using E = Element;
  using Acc = Acc_;
  static constexpr int NUM_ACC = N_ / (std::is_same_v<Acc, float> ? 2 : 4);
  static constexpr int K = K_, N = N_, MMA_K = 32 / sizeof(E);
  static constexpr Major A_MAJOR = A_MAJOR_, B_MAJOR = B_MAJOR_;
  static constexpr bool A_IN_REGISTERS = A_IN_REGISTERS_;
  template <Major MAJOR, int MN>
  using Operand = std::conditional_t<MAJOR == Major::kK, SwizzledTile<E, MN, K, SWIZZLE>,
                                     SwizzledTile<E, K, ceil_div(MN, SWIZZLE / 2) * (SWIZZLE / 2), SWIZZLE>>;
  struct Storage {
    Operand<A_MAJOR, 128> a;
    Operand<B_MAJOR, N> b;
    uint64_t bar_full;
  };
};

template <typename Tile, Major MAJOR>
SmemDescriptor step_along_k(SmemDescriptor descriptor, int k) {
  return MAJOR == Major::kK ? advance<Tile>(descriptor, 0, k) : advance<Tile>(descriptor, k, 0);
}

// Two warpgroups: acc = A B, twice.
template <typename C>
__global__ void multiply(const TensorMap a_map, const TensorMap b_map, const typename C::E* a_rows,
                         float* out) {
  using Storage = typename C::Storage;
  auto& shared = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&shared.bar_full, sizeof(shared.a) + sizeof(shared.b));
    tma_load_5d(&shared.a, a_map, &shared.bar_full, 0, 0, 0, 0, 0);
    tma_load_5d(&shared.b, b_map, &shared.bar_full, 0, 0, 0, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(&shared.bar_full, 0);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = 16 * warp + lane / 4;
  constexpr bool A_K = C::A_MAJOR == Major::kK;
  using A = decltype(shared.a);
  using B = decltype(shared.b);
  const SmemDescriptor a = make_smem_descriptor(shared.a, A_K ? 64 * group : 0, A_K ? 0 : 64 * group);
  const SmemDescriptor b = make_smem_descriptor(shared.b);
  typename C::Acc acc[C::NUM_ACC];
  uint32_t registers[C::K / C::MMA_K][4];
  constexpr int PER_REGISTER = C::MMA_K / 8;
  for (int k = 0; k < C::K; k += C::MMA_K) {
    for (int i = 0; i < 4; ++i) {
      const int col = k + lane % 4 * PER_REGISTER + i / 2 * (C::MMA_K / 2);
      memcpy(&registers[k / C::MMA_K][i], &a_rows[(64 * group + row + i % 2 * 8) * C::K + col], 4);
    }
  }
  for (int round = 0; round < 2; ++round) {
    warpgroup_arrive();
    for (int k = 0; k < C::K; k += C::MMA_K) {
      const SmemDescriptor b_k = step_along_k<B, C::B_MAJOR>(b, k);
      const bool scale_d = round > 0 || k > 0;
      if constexpr (C::A_IN_REGISTERS) {
        multiply_once<typename C::E, C::B_MAJOR, Major::kK>(acc, registers[k / C::MMA_K], b_k, scale_d);
      } else {
        multiply_once<typename C::E, C::B_MAJOR, C::A_MAJOR>(acc, step_along_k<A, C::A_MAJOR>(a, k), b_k,
                                                             scale_d);
      }
    }
    warpgroup_commit_batch();
  }
  warpgroup_wait<1>();
  warpgroup_wait<0>();
  const auto sum = [&](int i) {
    if constexpr (C::NUM_ACC == C::N / 2)
      return acc[i];
    else
      return emulator::half_bits_to_float(uint16_t(acc[i / 2] >> (16 * (i % 2))));
  };
  for (int i = 0; i < C::N / 2; ++i)
    out[(64 * group + row + i / 2 % 2 * 8) * C::N + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum(i);
}

int element_of_a(int m, int k) { return (7 * m + 3 * k + m * k) % 9 - 4; }
int element_of_b(int n, int k) { return (5 * n + 2 * k + n * k % 7) % 9 - 4; }

template <typename C>
void check_product() {
  using E = typename C::E;
  using A = typename C::template Operand<C::A_MAJOR, 128>;
  using B = typename C::template Operand<C::B_MAJOR, C::N>;
  Buffer<E> a(128 * C::K), a_rows(128 * C::K), b(B::ROWS * B::COLS);
  Buffer<float> out(128 * C::N);
  for (int m = 0; m < 128; ++m) {
    for (int k = 0; k < C::K; ++k) {
      a_rows[size_t(m * C::K + k)] = E(float(element_of_a(m, k)));
      a[size_t(C::A_MAJOR == Major::kK ? m * A::COLS + k : k * A::COLS + m)] = E(float(element_of_a(m, k)));
    }
  }
  for (int n = 0; n < (C::B_MAJOR == Major::kK ? B::ROWS : B::COLS); ++n) {
    for (int k = 0; k < C::K; ++k)
      b[size_t(C::B_MAJOR == Major::kK ? n * B::COLS + k : k * B::COLS + n)] = E(float(element_of_b(n, k)));
  }
  const auto map_of = [](auto* data, auto* tile) {
    using Tile = std::remove_pointer_t<decltype(tile)>;
    return make_tensor_map<Tile>(View{data, 1, 1, Tile::ROWS, 0, 0, Tile::COLS});
  };
  const TensorMap a_map = map_of(a.get(), static_cast<A*>(nullptr)),
                  b_map = map_of(b.get(), static_cast<B*>(nullptr));
  launch(multiply<C>, 1, 256, sizeof(typename C::Storage), nullptr, a_map, b_map, a_rows.get(), out.get());
  int wrong = 0;
  for (int m = 0; m < 128; ++m) {
    for (int n = 0; n < C::N; ++n) {
      int sum = 0;
      for (int k = 0; k < C::K; ++k) sum += element_of_a(m, k) * element_of_b(n, k);
      wrong += out[size_t(m * C::N + n)] != float(2 * sum);
    }
  }
  CAPTURE(C::K, C::N, int(C::A_MAJOR), int(C::B_MAJOR), C::A_IN_REGISTERS);
  CHECK(wrong == 0);
}

constexpr Major K = Major::kK, MN = Major::kMN;

// ---- Mistakes

using Tile = SwizzledTile<__half, 64, 64, 128>;
struct Storage {
  Tile a, b;
  uint64_t bar_full, bar_empty;
};

enum class Mistake {
  kNone,
  kNoArrive,
  kAccWrittenAfterArrive,
  kAWrittenAfterArrive,
  kSecondWithoutArrive,
  kAccReadBeforeWait,
  kWaitLeavesPending,
  kNoCommit,
  kAWrittenBeforeWait,
  kNoWait,
  kOtherShape,
  kThreeWarps,
  kOtherLine,
  kOtherOperand,
  kWarpsOneToFour,
  kLanesDiffer,
  kNoMbarrierWait,
  kRefilledTooEarly,
  kOverwrittenTooEarly,
  kOneWarpReleases,
  kWarpWaitsForAnothersWait,
};

// A's tile from TMA or, as registers, from nowhere in particular; B's from TMA, and again once it is
// released.
// clang-format off
LINES_OF(mistaken);
template <Mistake M>
__global__ void mistaken(const TensorMap map, float* out) {
  auto& shared = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);
    mbarrier_init(&shared.bar_empty, 4);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&shared.bar_full, 2 * sizeof(Tile));
    tma_load_5d(&shared.a, map, &shared.bar_full, 0, 0, 0, 0, 0);
    tma_load_5d(&shared.b, map, &shared.bar_full, 0, 0, 0, 0, 0);  // line 10
  }
  __syncthreads();
  const int warp = threadIdx.x / 32 - (M == Mistake::kWarpsOneToFour);
  if (warp < 0 || warp >= 4) {
    if (threadIdx.x == 128) {
      mbarrier_wait(&shared.bar_empty, 0);
      mbarrier_arrive_expect_tx(&shared.bar_full, sizeof(Tile));
      tma_load_5d(&shared.b, map, &shared.bar_full, 0, 0, 0, 0, 0);  // line 18
      mbarrier_wait(&shared.bar_full, 1);
    }
    return;
  }
  if (M != Mistake::kNoMbarrierWait) mbarrier_wait(&shared.bar_full, 0);
  const SmemDescriptor a = make_smem_descriptor(shared.a), b = make_smem_descriptor(shared.b);
  float acc[32], other[32];
  uint32_t registers[4];
  for (float& element : acc) element = 1;
  for (uint32_t& pair : registers) pair = 0x3c003c00;
  if (M == Mistake::kThreeWarps && warp == 3) return; else if (M == Mistake::kWarpWaitsForAnothersWait && warp == 1) bar_sync(1, 64);
  if (M != Mistake::kNoArrive) warpgroup_arrive();
  if (M == Mistake::kAccWrittenAfterArrive) acc[7] = 0;  // line 31
  if (M == Mistake::kAWrittenAfterArrive) registers[2] = 0;  // line 32
  if (M == Mistake::kOtherLine && warp == 2) {
    wgmma_m64k16<__half>(acc, a, b, true);  // line 34
  } else {
    const int cols = (M == Mistake::kOtherOperand && warp == 1) || (M == Mistake::kLanesDiffer && threadIdx.x == 9) ? 16 : 0;
    wgmma_m64k16<__half>(acc, a, advance<Tile>(b, 0, cols), true);  // line 37
  }
  if (M == Mistake::kOtherShape) {
    wgmma_m64k16<__half>(reinterpret_cast<float(&)[16]>(acc), a, b, true);  // line 40
  }
  wgmma_m64k16<__half>(other, registers, b, false);  // line 42
  wgmma_m64k16<__half>(other, registers, b, true);  // line 43
  if (M != Mistake::kNoCommit) warpgroup_commit_batch();
  if (M == Mistake::kAccReadBeforeWait) out[threadIdx.x] = acc[5];  // line 45
  if (M == Mistake::kAWrittenBeforeWait) registers[1] = 0;  // line 46
  constexpr bool early = M == Mistake::kRefilledTooEarly;
  if (early && threadIdx.x % 32 == 0) mbarrier_arrive(&shared.bar_empty);
  if (M == Mistake::kOverwrittenTooEarly && threadIdx.x == 40) shared.b.data[0][5][8 * 5 + 3] = __half(0.0f);  // line 49
  if (M == Mistake::kWaitLeavesPending) warpgroup_wait<1>();
  else if (M != Mistake::kNoWait) warpgroup_wait<0>();
  if (M == Mistake::kNoWait) return; else if (M == Mistake::kWarpWaitsForAnothersWait && warp == 0) bar_sync(1, 64);
  if (!early && (M == Mistake::kOneWarpReleases ? threadIdx.x < 4 : threadIdx.x % 32 == 0)) mbarrier_arrive(&shared.bar_empty);
  if (M == Mistake::kSecondWithoutArrive) {
    acc[3] += other[3];  // line 55
    wgmma_m64k16<__half>(acc, a, b, true);  // line 56
    warpgroup_commit_batch();
    warpgroup_wait<0>();
  }
  for (int i = 0; i < 32; ++i) out[32 * (threadIdx.x % 128) + i] = acc[i] + other[i];  // line 60
}

// Operands that threads have written.
LINES_OF(written);
__global__ void written(int variant) {
  auto& shared = *reinterpret_cast<Storage*>(smem);
  for (int i = threadIdx.x; i < 64 * 64; i += 128) {
    shared.a.data[0][i / 64][i % 64] = __half(1.0f);
    shared.b.data[0][i / 64][i % 64] = __half(1.0f);  // line 5
  }
  if (variant != 0) fence_proxy_async();
  if (variant != 1) __syncthreads();
  if (variant == 3) fence_proxy_async();
  float acc[32];
  warpgroup_arrive();
  wgmma_m64k16<__half>(acc, make_smem_descriptor(shared.a), make_smem_descriptor(shared.b), false);  // line 12
  warpgroup_commit_batch();
  warpgroup_wait<0>();
}

// Descriptors of a V with two panels, which TMA has brought.
using V = SwizzledTile<__half, 32, 128, 128>;
using OtherSwizzle = SwizzledTile<__half, 32, 128, 64>;
using OtherRows = SwizzledTile<__half, 16, 128, 128>;

LINES_OF(described);
template <Major MAJOR = MN, bool IN_CLUSTER = false>
__global__ void described(const TensorMap map, int variant, void* global) {
  auto& tile = *reinterpret_cast<V*>(smem);
  auto* bar_full = reinterpret_cast<uint64_t*>(smem + sizeof(V));
  if (threadIdx.x == 0) {
    mbarrier_init(bar_full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(bar_full, sizeof(V));
    tma_load_5d(&tile, map, bar_full, 0, 0, 0, 0, 0);  // line 9
  }
  __syncthreads();
  mbarrier_wait(bar_full, 0);
  SmemDescriptor b = make_smem_descriptor<IN_CLUSTER>(tile);  // line 13
  if (variant == 1) b = make_smem_descriptor(reinterpret_cast<OtherSwizzle&>(tile));
  if (variant == 2) b = make_smem_descriptor(reinterpret_cast<OtherRows&>(tile));
  if (variant == 3) b.bits += uint64_t(1024 / 16) << 32;  // stride
  if (variant == 4) b.bits += uint64_t(512 / 16) << 32;
  if (variant == 5) b.bits += uint64_t(256 / 16) << 16;  // leading
  if (variant == 6) b = advance<V>(b, 4, 0);
  if (variant == 7) b = advance<V>(b, 24, 0);
  if (variant == 8) b = advance<V>(b, 0, 8);
  if (variant == 9) b.bits = (b.bits & 0x3fff) | uint64_t(8) << 16 | uint64_t(8) << 32;  // no swizzle
  if (variant == 10) b.bits |= uint64_t(1) << 49;
  if (variant == 11) b = make_smem_descriptor(*static_cast<V*>(global));  // line 24
  if (variant == 12) b.bits += 1024 / 16;  // 8 rows off: legal, and the last 8 are of the other panel
  if (variant == 13) b.bits &= ~(uint64_t(0x3fff) << 16);  // the first panel twice
  float acc[64];
  const uint32_t a[4] = {};
  warpgroup_arrive();
  wgmma_m64k16<__half, MAJOR>(acc, a, advance<V>(b, MAJOR == MN ? 16 : 0, 0), false);  // line 30
  warpgroup_commit_batch();
  warpgroup_wait<0>();
}

// A softmax on one accumulator while the other is under way, as an attention kernel does it.
LINES_OF(overlapped);
__global__ void overlapped(const TensorMap map, float* out, int mistake) {
  auto& shared = *reinterpret_cast<Storage*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&shared.bar_full, 2 * sizeof(Tile));
    tma_load_5d(&shared.a, map, &shared.bar_full, 0, 0, 0, 0, 0);
    tma_load_5d(&shared.b, map, &shared.bar_full, 0, 0, 0, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(&shared.bar_full, 0);
  const SmemDescriptor q = make_smem_descriptor(shared.a), k = make_smem_descriptor(shared.b);
  float s[32], o[32] = {}, more[32] = {};
  uint32_t p[4][4] = {};
  for (int block = 0; block < 3; ++block) {
    warpgroup_arrive();
    for (int d = 0; d < 64; d += 16) wgmma_m64k16<__half>(s, advance<Tile>(q, 0, d), advance<Tile>(k, 0, d), d > 0);
    warpgroup_commit_batch();
    for (int i = 0; i < 4; ++i) wgmma_m64k16<__half, MN>(o, p[i], advance<Tile>(k, 16 * i, 0), true);  // line 19
    warpgroup_commit_batch();
    wgmma_m64k16<__half, MN>(more, p[0], k, true);  // line 21
    warpgroup_commit_batch();
    warpgroup_wait<2>();
    for (float& score : s) score *= 0.0625f;
    if (mistake == 1) o[3] = 0;  // line 25
    if (mistake == 2) p[1][1] = 0;  // line 26
    warpgroup_wait<1>();
    p[2][0] = 0;
    if (mistake == 3) p[0][3] = 0;  // line 29
    warpgroup_wait<0>();
    for (float& element : o) element *= 0.5f;
    for (int i = 0; i < 16; ++i) p[i / 4][i % 4] = pack2<__half>(s[2 * i], s[2 * i + 1]);
  }
  for (int i = 0; i < 32; ++i) out[32 * threadIdx.x + i] = o[i] + more[i];
}

// clang-format on

struct Tensor {
  Tensor() : data(128 * 64), out(128 * 32) {
    for (int i = 0; i < 128 * 64; ++i) data[size_t(i)] = __half(float(i % 7 - 3));
    map = make_tensor_map<Tile>(View{data.get(), 1, 1, 64, 0, 0, 64});
    v_map = make_tensor_map<V>(View{data.get(), 1, 1, 32, 0, 0, 128});
  }
  Buffer<__half> data;
  Buffer<float> out;
  TensorMap map, v_map;
};

template <Mistake M>
void run(Tensor& tensor) {
  launch(mistaken<M>, 1, 160, sizeof(Storage), nullptr, tensor.map, tensor.out.get());
}

void check(const Report& report, Bug bug, std::initializer_list<int> lines, const std::string& part = "") {
  check_report(report, bug, 0, lines, {part});
}

// The report of a mistake names these lines and says this, in every mode.
template <Mistake M>
void check_mistake(Bug bug, std::initializer_list<int> lines, const std::string& part = "") {
  Tensor tensor;
  CAPTURE(int(M));
  in_all_modes([&] { check(report_of([&] { run<M>(tensor); }), bug, lines, part); });
}

// Of what only the race detector sees.
template <Mistake M>
void check_race(std::initializer_list<int> lines, const std::string& part) {
  Tensor tensor;
  CAPTURE(int(M));
  in_all_modes([&] {
    emulator::options().race_detector = true;
    check(report_of([&] { run<M>(tensor); }), Bug::kRace, lines, part);
  });
}

}  // namespace

TEST_CASE("wgmma multiplies", "[wgmma]") {
  in_all_modes([] {
    check_product<Config<__half, 64, 64, K, K, false, 128>>();
    check_product<Config<__nv_bfloat16, 128, 176, K, K, false, 128>>();
    check_product<Config<__half, 128, 8, K, K, true, 128>>();
    check_product<Config<__nv_bfloat16, 64, 64, K, MN, true, 128>>();
    check_product<Config<__half, 128, 128, K, MN, true, 128>>();
    check_product<Config<__half, 64, 256, K, MN, false, 128>>();
    check_product<Config<__nv_bfloat16, 64, 72, MN, MN, false, 128>>();
    check_product<Config<__half, 64, 96, MN, K, false, 64>>();
    check_product<Config<__half, 64, 96, K, MN, false, 64>>();
    check_product<Config<__half, 64, 80, K, K, true, 32>>();
    check_product<Config<__half, 64, 80, MN, MN, false, 32>>();
    check_product<Config<__nv_fp8_e4m3, 128, 64, K, K, false, 128>>();
    check_product<Config<__nv_fp8_e4m3, 256, 136, K, K, true, 128>>();
    check_product<Config<__nv_fp8_e4m3, 64, 32, K, K, false, 64>>();
    check_product<Config<__nv_fp8_e4m3, 32, 32, K, K, true, 32>>();
    check_product<Config<__nv_fp8_e4m3, 32, 256, K, K, false, 32, uint32_t>>();
    check_product<Config<__nv_fp8_e4m3, 64, 16, K, K, false, 64, uint32_t>>();
  });
}

// Of one row and column; the other products are 0.
float sum_e4m3(float c, std::initializer_list<std::pair<float, float>> factors, bool fp16 = false) {
  uint8_t a[16][32] = {}, b[32][8] = {};
  float acc[16][8] = {};
  acc[3][5] = c;
  int k = 0;
  for (const auto& [x, y] : factors) {
    a[3][k] = emulator::float_to_e4m3_bits(x);
    b[k++][5] = emulator::float_to_e4m3_bits(y);
  }
  emulator::multiply_accumulate(emulator::E4m3Operand(a), emulator::E4m3Operand(b), acc, fp16);
  return acc[3][5];
}

TEST_CASE("wgmma sums FP8 products in 14 bits, and cuts off the rest", "[wgmma]") {
  CHECK(sum_e4m3(0x1p13f, {{1, 1}}) == 0x1p13f + 1);
  CHECK(sum_e4m3(0x1p13f, {{0.5f, 1}, {0.5f, 1}}) == 0x1p13f);
  CHECK(sum_e4m3(0x1p13f, {{-0.9375f, 1}}) == 0x1p13f);
  CHECK(sum_e4m3(0x1p13f, {{1.875f, 1}}) == 0x1p13f + 1);
  CHECK(sum_e4m3(0x1p14f - 1, {{1, 1}, {1, 1}}) == 0x1p14f);  // the sum has 14 bits, too
  CHECK(sum_e4m3(0x1p14f - 1, {{1, 1}, {1, 1}, {1, 1}}) == 0x1p14f + 2);
  CHECK(sum_e4m3(-0x1p14f + 1, {{-1, 1}, {-1, 1}}) == -0x1p14f);
  CHECK(sum_e4m3(0, {{448, 448}, {7.5f, 1}, {7.5f, 1}}) == 448 * 448);  // products cut off each other, too
  CHECK(sum_e4m3(0, {{448, 448}, {8, 1}, {8, 1}}) == 448 * 448 + 16);
  CHECK(sum_e4m3(0, {{256, 256}, {8, 1}}) == 256 * 256 + 8);
  CHECK(sum_e4m3(0, {{0x1p-9f, 1}, {0x1p-9f, 0x1p-6f}}) == 0x1p-9f + 0x1p-15f);
  CHECK(sum_e4m3(1.0f + 0x1p-13f + 0x1p-14f, {}) == 1.0f + 0x1p-13f);
}

TEST_CASE("wgmma with sums in FP16 cuts off the same, and then rounds to the nearest", "[wgmma]") {
  CHECK(sum_e4m3(1024, {{0.75f, 1}}, true) == 1025);
  CHECK(sum_e4m3(1024, {{0.75f, 1}}) == 1024.75f);
  CHECK(sum_e4m3(2048, {{1, 1}}, true) == 2048);  // of two the even one
  CHECK(sum_e4m3(2050, {{1, 1}}, true) == 2052);
  CHECK(sum_e4m3(-2048, {{-1, 1}, {-0.25f, 1}}, true) == -2050);
  CHECK(sum_e4m3(-2048, {{-1, 1}, {-0.125f, 1}}, true) == -2048);  // cut off: 2^-14 of the largest
  CHECK(sum_e4m3(0, {{256, 256}}, true) == INFINITY);
  CHECK(sum_e4m3(0, {{256, -256}, {24, 1}}, true) == -65504);
  CHECK(sum_e4m3(-INFINITY, {{256, 256}}, true) == -INFINITY);
  CHECK(sum_e4m3(0, {{0x1p-9f, 0x1p-9f}}, true) == 0x1p-18f);  // a subnormal number of FP16
}

TEST_CASE("wgmma: a NaN of an FP8 operand reaches its row or column", "[wgmma]") {
  uint8_t a[16][32] = {}, b[32][8] = {};
  a[2][7] = 0x7f;
  b[31][6] = 0xff;
  float acc[16][8] = {};
  acc[0][0] = INFINITY;
  emulator::multiply_accumulate(emulator::E4m3Operand(a), emulator::E4m3Operand(b), acc, false);
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 8; ++col) CHECK(std::isnan(acc[row][col]) == (row == 2 || col == 6));
  }
  CHECK(acc[0][0] == INFINITY);
}

TEST_CASE("wgmma without a mistake has none", "[wgmma][bugs]") {
  Tensor tensor;
  in_all_modes([&] {
    CHECK_NOTHROW(run<Mistake::kNone>(tensor));
    int wrong = 0;
    for (int thread = 0; thread < 128; ++thread) {
      for (int i = 0; i < 32; ++i) {
        const int m = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8,
                  n = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = 1;
        for (int k = 0; k < 16; ++k)
          sum += (float(tensor.data[size_t(64 * m + k)]) + 2) * float(tensor.data[size_t(64 * n + k)]);
        wrong += tensor.out[size_t(32 * thread + i)] != sum;
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("wgmma: one product's registers may be used while another is under way", "[wgmma][bugs]") {
  Tensor tensor;
  std::vector<float> expected;
  in_all_modes([&] {
    CHECK_NOTHROW(launch(overlapped, 1, 128, sizeof(Storage), nullptr, tensor.map, tensor.out.get(), 0));
    const std::vector<float> out(tensor.out.get(), tensor.out.get() + 128 * 32);
    if (expected.empty()) expected = out;
    CHECK(out == expected);
    const auto report_of_mistake = [&](int mistake) {
      return report_of([&] {
        launch(overlapped, 1, 128, sizeof(Storage), nullptr, tensor.map, tensor.out.get(), mistake);
      });
    };
    const std::string part = "leaves its group pending";
    check(report_of_mistake(1), Bug::kRegisterInUse, {overlapped_line + 25, overlapped_line + 19}, part);
    check(report_of_mistake(2), Bug::kRegisterInUse, {overlapped_line + 26, overlapped_line + 19}, part);
    check(report_of_mistake(3), Bug::kRegisterInUse, {overlapped_line + 29, overlapped_line + 21}, part);
  });
}

TEST_CASE("wgmma: a missing warpgroup_arrive is reported", "[wgmma][bugs]") {
  check_mistake<Mistake::kNoArrive>(Bug::kRegisterFence, {mistaken_line + 37}, "no warpgroup_arrive()");
  check_mistake<Mistake::kAccWrittenAfterArrive>(
      Bug::kRegisterFence, {mistaken_line + 31, mistaken_line + 37}, "accumulator were written");
  check_mistake<Mistake::kAWrittenAfterArrive>(Bug::kRegisterFence, {mistaken_line + 32, mistaken_line + 42},
                                               "registers of A were written");
  check_mistake<Mistake::kSecondWithoutArrive>(Bug::kRegisterFence, {mistaken_line + 55, mistaken_line + 56},
                                               "the registers of its accumulator were read");
}

TEST_CASE("wgmma: registers that are touched before the wait are reported", "[wgmma][bugs]") {
  check_mistake<Mistake::kAccReadBeforeWait>(Bug::kRegisterInUse, {mistaken_line + 45, mistaken_line + 37},
                                             "warpgroup_wait is missing before");
  check_mistake<Mistake::kWaitLeavesPending>(Bug::kRegisterInUse, {mistaken_line + 60},
                                             "leaves its group pending");
  check_mistake<Mistake::kNoCommit>(Bug::kRegisterInUse, {mistaken_line + 60},
                                    "warpgroup_commit_batch is missing");
  check_mistake<Mistake::kAWrittenBeforeWait>(Bug::kRegisterInUse, {mistaken_line + 46, mistaken_line + 43},
                                              "the registers of A");
  check_mistake<Mistake::kOtherShape>(Bug::kRegisterInUse, {mistaken_line + 40, mistaken_line + 37},
                                      "with another shape");
  check_mistake<Mistake::kNoWait>(Bug::kUnfinishedCopy, {mistaken_line + 37}, "the thread exits");
}

TEST_CASE("wgmma: the four warps of a warpgroup must execute the same", "[wgmma][bugs]") {
  check_mistake<Mistake::kThreeWarps>(Bug::kDivergence, {}, "never executes the wgmma.fence");
  check_mistake<Mistake::kOtherLine>(Bug::kDivergence, {mistaken_line + 37, mistaken_line + 34},
                                     "must execute the same instructions");
  check_mistake<Mistake::kOtherOperand>(Bug::kDivergence, {mistaken_line + 37},
                                        "this one with other operands");
  check_mistake<Mistake::kLanesDiffer>(Bug::kDescriptor, {mistaken_line + 37},
                                       "another descriptor of B than lane 0");
  Tensor tensor;
  in_all_modes([&] {
    const auto run_with = [&](auto kernel, int threads) {
      return report_of(
          [&] { launch(kernel, 1, threads, sizeof(Storage), nullptr, tensor.map, tensor.out.get()); });
    };
    check(run_with(mistaken<Mistake::kNone>, 96), Bug::kDivergence, {}, "the CTA has 3 warps in all");
    check(run_with(mistaken<Mistake::kWarpsOneToFour>, 256), Bug::kDivergence, {},
          "of its warpgroup, warps ");
  });
}

TEST_CASE("wgmma: operands that TMA has not brought yet, or overwrites, are reported", "[wgmma][bugs]") {
  check_race<Mistake::kNoMbarrierWait>({mistaken_line + 37}, "an mbarrier_wait missing");
  check_race<Mistake::kRefilledTooEarly>({mistaken_line + 18}, "may still be reading");
  check_race<Mistake::kOverwrittenTooEarly>({mistaken_line + 49}, "may still be reading");
}

TEST_CASE("wgmma: a wait of one warp is for what all four have executed", "[wgmma]") {
  Tensor expected, tensor;
  fresh_options();
  run<Mistake::kNone>(expected);
  in_all_modes([&] {
    emulator::options().race_detector = true;
    run<Mistake::kOneWarpReleases>(tensor);
    CHECK(std::equal(tensor.out.get(), tensor.out.get() + 128 * 32, expected.out.get()));
  });
  check_mistake<Mistake::kWarpWaitsForAnothersWait>(Bug::kDeadlock, {mistaken_line + 51},
                                                    "for the same wgmmas of warp 1");
}

TEST_CASE("wgmma: operands that threads have written must be fenced", "[wgmma][bugs]") {
  in_all_modes([] {
    emulator::options().race_detector = true;
    const auto run_variant = [](int variant) { launch(written, 1, 128, sizeof(Storage), nullptr, variant); };
    check(report_of([&] { run_variant(0); }), Bug::kProxyFence, {written_line + 12}, "the wgmma at");
    check(report_of([&] { run_variant(1); }), Bug::kRace, {written_line + 12}, "is not ordered");
    CHECK_NOTHROW(run_variant(2));
    CHECK_NOTHROW(run_variant(3));
  });
}

TEST_CASE("wgmma: a descriptor that does not fit its tile is reported", "[wgmma][bugs]") {
  Tensor tensor;
  struct Case {
    int variant;
    Bug bug;
    const char* part;
    bool needs_detector;
  };
  constexpr Case kCases[] = {
      {1, Bug::kSwizzle, "its swizzle is 64 bytes", true},
      {2, Bug::kSwizzle, "Are its leading or stride byte offset wrong", true},
      {3, Bug::kSwizzle, "Are its leading or stride byte offset wrong", true},
      {4, Bug::kDescriptor, "the stride byte offset 1536", false},
      {5, Bug::kDescriptor, "the leading byte offset 4352", false},
      {6, Bug::kDescriptor, "in row 4 of the swizzle's pattern", false},
      {7, Bug::kSharedOutOfBounds, "is at smem +", false},
      {8, Bug::kDescriptor, "it begins at column 8 of a row of 64", false},
      {9, Bug::kSwizzle, "its swizzle is 0 bytes", true},
      {10, Bug::kDescriptor, "it has bits that", false},
      {11, Bug::kSharedOutOfBounds, "is not in the launch's dynamic shared memory", false},
      {12, Bug::kSwizzle, "advanced too far", true},
      {13, Bug::kSwizzle, "element (64, k = 0) should be in row 16, column 64", true},
  };
  const auto run_variant = [&](auto kernel, int variant) {
    launch(kernel, 1, 128, variant == 7 ? sizeof(V) + 8 : 2 * sizeof(V), nullptr, tensor.v_map, variant,
           static_cast<void*>(tensor.data.get()));
  };
  in_all_modes([&] {
    for (const Case& c : kCases) {
      CAPTURE(c.variant);
      if (c.needs_detector && !emulator::options().race_detector) continue;
      const int line = c.variant == 11 ? described_line + 24 : described_line + 30;
      check(report_of([&] { run_variant(described<MN>, c.variant); }), c.bug, {line}, c.part);
    }
    CHECK_NOTHROW(run_variant(described<MN>, 0));
    if (!emulator::options().race_detector) return;
    // In the other major the next panel's rows are taken for those that follow.
    check(report_of([&] { run_variant(described<K>, 0); }), Bug::kSwizzle,
          {described_line + 30, described_line + 9}, "is its major the wrong one");
  });
}

TEST_CASE("wgmma: in a cluster a descriptor must not hold the CTA's rank", "[wgmma][bugs]") {
  Tensor tensor;
  const auto launch_in = [&](int cluster_size, auto kernel) {
    launch_clusters(cluster_size, kernel, dim3(4), dim3(128), 2 * sizeof(V), nullptr, tensor.v_map, 0,
                    nullptr);
  };
  in_all_modes([&] {
    CHECK_NOTHROW(launch_in(1, described<MN>));
    CHECK_NOTHROW(launch_in(1, described<MN, true>));
    for (const int size : {2, 4}) {
      check(report_of([&] { launch_in(size, described<MN>); }), Bug::kDescriptor, {described_line + 13},
            "Use make_smem_descriptor<true>");
      CHECK_NOTHROW(launch_in(size, described<MN, true>));
    }
  });
}

TEST_CASE("wgmma is counted", "[wgmma][counters]") {
  Tensor tensor;
  fresh_options();
  run<Mistake::kNone>(tensor);
  const emulator::Counters counted = emulator::last_counters();
  CHECK(counted.wgmma == 4 * 3);
  CHECK(counted.wgmma_flops == 3 * 2 * 64 * 64 * 16);
  CHECK(counted.wgmma_shared_bytes == 4 * 2 * 64 * 16);  // A once, B three times
  CHECK(counted.mma == 0);
}
