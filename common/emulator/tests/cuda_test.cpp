// The CUDA vocabulary beyond what the steps use: what docs/cuda_on_the_emulator.md promises, against values
// worked out by hand.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <mma.h>

#include <cmath>
#include <cstdint>

#include "common/emulator/tests/support.h"

namespace cg = cooperative_groups;
using emulator::Bug;
using namespace flashsteps;

namespace {

constexpr unsigned kAll = 0xffffffff;

// ---- Warps

__global__ void match_kernel(unsigned* out) {
  const int lane = threadIdx.x;
  int all_equal = -1;
  out[lane] = __match_any_sync(kAll, lane / 5);
  out[32 + lane] = __match_any_sync(kAll, lane == 3 ? -0.0f : 0.0f);  // other bits
  out[64 + lane] = __match_all_sync(kAll, uint64_t(1) << 40, &all_equal) + unsigned(all_equal);
  out[96 + lane] = __match_all_sync(kAll, uint64_t(lane == 9) << 40, &all_equal) + 10 * unsigned(all_equal);
  if (lane < 4) out[128 + lane] = __match_any_sync(0xf, lane & 1);
}

__global__ void reduce_kernel(int* out) {
  const int lane = threadIdx.x;
  out[0] = __reduce_add_sync(kAll, lane - 20);
  out[1] = __reduce_min_sync(kAll, lane - 20);
  out[2] = __reduce_max_sync(kAll, lane - 20);
  out[3] = int(__reduce_min_sync(kAll, unsigned(lane - 20)));  // unsigned: 0 is the least
  out[4] = int(__reduce_and_sync(kAll, 0xf0u | unsigned(lane)));
  out[5] = int(__reduce_or_sync(kAll, unsigned(lane)));
  out[6] = int(__reduce_xor_sync(kAll, lane == 7 ? 5u : 3u));
  if (lane >= 28) out[7] = __reduce_add_sync(0xf0000000, lane);
}

__global__ void active_mask_kernel(unsigned* out) {
  const int lane = threadIdx.x;
  out[lane] = __activemask();
  if (lane % 2 == 0) {
    out[32 + lane] = __activemask();
  } else {
    out[32 + lane] = __activemask();
  }
  if (lane == 5) return;
  out[64 + lane] = __activemask();
}

// One lane waits in __activemask while another spins for what it writes afterwards.
__global__ void active_mask_spin_kernel(int* flag) {
  if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0) == 0) {
    }
  } else {
    __activemask();
    atomicExch(flag, 1);
  }
}

template <typename T>
__global__ void shuffle_type_kernel(T* out) {
  out[threadIdx.x] = __shfl_xor_sync(kAll, T(float(threadIdx.x)), 1);
}

__global__ void shuffle_pairs_kernel(float* out) {
  const __half2 pair = __floats2half2_rn(float(threadIdx.x), -float(threadIdx.x));
  out[threadIdx.x] = __high2float(__shfl_down_sync(kAll, pair, 3));
  const signed char small = -7;
  static_assert(std::is_same_v<decltype(__shfl_sync(kAll, small, 0)), int>, "as in CUDA");
  out[32 + threadIdx.x] = float(__shfl_sync(kAll, small, 0));
}

// What CUDA's own examples do: the values that are read from outside of the mask never reach lane 0.
__global__ void half_warp_tree_kernel(float* out) {
  const int lane = threadIdx.x;
  if (lane >= 16) return;
  float sum = float(lane);
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffff, sum, offset);
  out[lane] = sum;
}

// Lanes that shuffle among themselves first, while others wait for them at what the whole warp does.
__global__ void half_first_kernel(int* out) {
  const int lane = threadIdx.x;
  int sum = lane;
  if (lane < 16) {
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffff, sum, step);
  }
  __syncwarp();
  if (lane % 2 == 0) sum = __shfl_xor_sync(0x55555555, sum, 2);
  out[lane] = __shfl_sync(kAll, sum, 31 - lane);
}

__global__ void exited_source_kernel(float* out) {
  if (threadIdx.x == 9) return;
  out[threadIdx.x] = __shfl_xor_sync(kAll, 1.0f, 1);
}

// ---- CTAs

__global__ void tally_kernel(int* out) {
  const int thread = threadIdx.x;
  int result = 0;
  if (thread >= 90) return;  // those that left do not vote
  result += __syncthreads_count(thread % 3 == 0);
  result += 1000 * __syncthreads_or(thread == 77);
  result += 2000 * __syncthreads_or(thread == 95);
  result += 4000 * __syncthreads_and(thread < 90);
  result += 8000 * __syncthreads_and(thread != 1);
  out[thread] = result;
}

__global__ void mixed_barriers_kernel(int* out) {
  if (threadIdx.x < 32) {
    out[0] = __syncthreads_or(1);
  } else {
    __syncthreads();
  }
}

__global__ void other_kernel(long long* out) {
  const long long begin = clock64();
  __nanosleep(100);
  __threadfence_system();
  out[threadIdx.x] = clock64() - begin;
}

__global__ void trap_kernel(int* out) {
  if (threadIdx.x == 3) __trap();
  out[threadIdx.x] = 1;
}

__constant__ float kTable[4] = {0.5f, 1.5f, 2.5f, 3.5f};
__constant__ const int kLength = 4;

__global__ void constant_kernel(float* out) { out[threadIdx.x] = kTable[threadIdx.x % kLength]; }

// ---- Atomics: each by all threads of four CTAs

struct Atomics {
  int add_int, sub_int, min_int, max_int;
  unsigned inc, dec, and_bits, or_bits, xor_bits;
  unsigned long long add_long, max_long;
  long long min_signed;
  float add_float, exchanged;
  double add_double;
  __half add_half[2];
  __half2 add_half2;
  __nv_bfloat162 add_bfloat162;
  unsigned short swapped[4];
  int lock, counter;
  unsigned by_swap;
};

__global__ void atomics_kernel(Atomics* a) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;  // 0 .. 255
  atomicAdd(&a->add_int, thread);
  atomicSub(&a->sub_int, 2);
  atomicMin(&a->min_int, 100 - thread);
  atomicMax(&a->max_int, thread - 300);
  atomicInc(&a->inc, 99);
  atomicDec(&a->dec, 99);
  atomicAnd(&a->and_bits, ~(1u << thread % 8));
  atomicOr(&a->or_bits, 1u << thread % 32);
  atomicXor(&a->xor_bits, unsigned(thread));
  atomicAdd(&a->add_long, 1ull << 40);
  atomicMax(&a->max_long, (unsigned long long)thread << 33);
  atomicMin(&a->min_signed, -(long long)thread);
  atomicAdd(&a->add_float, 0.5f);
  atomicExch(&a->exchanged, 3.5f);
  atomicAdd(&a->add_double, 0.25);
  atomicAdd(&a->add_half[1], __half(1.0f));
  atomicAdd(&a->add_half2, __floats2half2_rn(1.0f, -2.0f));
  atomicAdd(&a->add_bfloat162, __floats2bfloat162_rn(0.5f, 1.0f));
  atomicCAS(&a->swapped[thread % 2], (unsigned short)(0), (unsigned short)(thread + 7));
  while (atomicCAS(&a->lock, 0, 1) != 0) {
  }
  volatile int* const counter = &a->counter;
  *counter = *counter + 1;
  __threadfence();
  atomicExch(&a->lock, 0);
  // The usual loop for what CUDA has no function for: here, a maximum of floats.
  unsigned old = a->by_swap, seen;
  do {
    seen = old;
    const float larger = fmaxf(__uint_as_float(seen), float(thread));
    old = atomicCAS(&a->by_swap, seen, __float_as_uint(larger));
  } while (old != seen);
}

__global__ void old_value_kernel(int* out) { out[threadIdx.x] = atomicSub(&out[32], 1); }
__global__ void shared_atomic_kernel(int* out) {
  int* const count = shared_array<int>();
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  atomicMax(count, int(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) out[0] = *count;
}
__global__ void atomic_out_of_bounds_kernel(int* out) { atomicCAS(out + 33, 0, 1); }

// ---- Cooperative groups

__global__ void groups_kernel(int* out) {
  const cg::thread_block block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const auto tile = cg::tiled_partition<8>(warp);
  const int rank = int(block.thread_rank());
  out[rank] = int(tile.thread_rank() + 100 * tile.meta_group_rank() + 10000 * tile.meta_group_size());
  int* const values = shared_array<int>();
  values[rank] = rank;
  block.sync();
  int sum = values[(rank + 64) % 128];
  for (int offset = int(tile.size()) / 2; offset > 0; offset /= 2) sum += tile.shfl_down(sum, offset);
  out[128 + rank] = tile.shfl(sum, 0);
  out[256 + rank] = int(tile.ballot(rank % 3 == 0));
  out[384 + rank] = cg::reduce(warp, rank, cg::plus<int>()) + cg::reduce(tile, rank, cg::greater<int>());
  cg::sync(tile);
}

// ---- The rest

__global__ void hints_kernel(float4* out, const float4* in) {
  float4 value = __ldg(&in[threadIdx.x]);
  value.x += __ldcs(&in[threadIdx.x].y) + __ldca(&in[threadIdx.x].z) + __ldcg(&in[threadIdx.x].w);
  __stcs(&out[threadIdx.x], value);
  __stwt(&out[threadIdx.x].y, 7.0f);
}

// Further on, another allocation may lie.
__global__ void past_the_end_kernel(float* out) { out[0] = __ldcs(out + 32); }

__global__ void wmma_kernel(float* out) {
  using namespace nvcuda;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  wmma::fill_fragment(acc, 2.0f);
  wmma::store_matrix_sync(reinterpret_cast<float*>(smem), acc, 16, wmma::mem_row_major);
  __syncwarp();
  out[threadIdx.x] = reinterpret_cast<float*>(smem)[threadIdx.x];
}

// From and to global memory, in which there is a gap behind each row.
template <typename Byte>
__global__ void wmma_of_bytes(int* sums, const Byte* a, const Byte* b) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, Byte, wmma::row_major> frag_a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, Byte, wmma::col_major> frag_b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> acc;
  wmma::load_matrix_sync(frag_a, a + 8, 32);
  wmma::load_matrix_sync(frag_b, b, 32);
  wmma::load_matrix_sync(acc, sums, 20, wmma::mem_row_major);
  wmma::mma_sync(acc, frag_a, frag_b, acc);
  wmma::store_matrix_sync(sums, acc, 20, wmma::mem_row_major);
}

template <typename Byte>
void check_wmma_of_bytes() {
  Buffer<Byte> a(16 * 32), b(16 * 32);
  Buffer<int> sums(16 * 20);
  for (int i = 0; i < 16 * 32; ++i) a[size_t(i)] = Byte(i * 7), b[size_t(i)] = Byte(200 - i * 13);
  for (int i = 0; i < 16 * 20; ++i) sums[size_t(i)] = i;
  launch(wmma_of_bytes<Byte>, 1, 32, 0, nullptr, sums.get(), a.get(), b.get());
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 20; ++col) {
      int sum = row * 20 + col;
      for (int k = 0; k < 16 && col < 16; ++k)
        sum += int(a[size_t(row * 32 + 8 + k)]) * int(b[size_t(col * 32 + k)]);
      CHECK(sums[size_t(row * 20 + col)] == sum);
    }
  }
}

}  // namespace

TEST_CASE("__match_any_sync and __match_all_sync compare bits", "[cuda]") {
  fresh_options();
  Buffer<unsigned> out(132);
  launch(match_kernel, 1, 32, 0, nullptr, out.get());
  for (int lane = 0; lane < 32; ++lane) {
    CAPTURE(lane);
    CHECK(out[size_t(lane)] == 0x1fu << lane / 5 * 5);
    CHECK(out[size_t(32 + lane)] == (lane == 3 ? 0x8u : ~0x8u));
    CHECK(out[size_t(64 + lane)] == kAll + 1);
    CHECK(out[size_t(96 + lane)] == 0);
  }
  for (unsigned lane = 0; lane < 4; ++lane) CHECK(out[128 + lane] == 0x5u << lane % 2);
}

TEST_CASE("__reduce", "[cuda]") {
  fresh_options();
  Buffer<int> out(8);
  launch(reduce_kernel, 1, 32, 0, nullptr, out.get());
  const int expected[] = {31 * 16 - 640, -20, 11, 0, 0xf0, 31, 6, 28 + 29 + 30 + 31};
  for (size_t i = 0; i < 8; ++i) CHECK(out[i] == expected[i]);
  CHECK(emulator::last_counters().votes == 8);
}

TEST_CASE("__activemask has the lanes that come to the same line", "[cuda]") {
  for (const bool shuffle : {false, true}) {
    fresh_options().shuffle = shuffle;
    Buffer<unsigned> out(96);
    launch(active_mask_kernel, 1, 32, 0, nullptr, out.get());
    for (size_t lane = 0; lane < 32; ++lane) {
      CHECK(out[lane] == kAll);
      CHECK(out[32 + lane] == (lane % 2 == 0 ? 0x55555555u : 0xaaaaaaaau));
      if (lane != 5) CHECK(out[64 + lane] == ~(1u << 5));
    }
    Buffer<int> flag(1);
    flag[0] = 0;
    launch(active_mask_spin_kernel, 1, 2, 0, nullptr, flag.get());
    CHECK(flag[0] == 1);
  }
}

TEMPLATE_TEST_CASE("shuffles of every type that CUDA has", "[cuda]", __half, __nv_bfloat16, long long, double,
                   unsigned) {
  fresh_options();
  Buffer<TestType> out(32);
  launch(shuffle_type_kernel<TestType>, 1, 32, 0, nullptr, out.get());
  for (int lane = 0; lane < 32; ++lane) CHECK(float(out[size_t(lane)]) == float(lane ^ 1));
}

TEST_CASE("shuffles of pairs and of small integers", "[cuda]") {
  fresh_options();
  Buffer<float> out(64);
  launch(shuffle_pairs_kernel, 1, 32, 0, nullptr, out.get());
  for (int lane = 0; lane < 32; ++lane) {
    CHECK(out[size_t(lane)] == -float(lane < 29 ? lane + 3 : lane));
    CHECK(out[size_t(32 + lane)] == -7.0f);
  }
}

TEST_CASE("a shuffle from a lane that takes no part gives poison", "[cuda]") {
  for (const auto poison : {emulator::Poison::kNan, emulator::Poison::kLarge}) {
    fresh_options().poison = poison;
    float undefined;
    std::memset(&undefined, int(poison), sizeof(undefined));
    Buffer<float> out(32);
    launch(half_warp_tree_kernel, 1, 32, 0, nullptr, out.get());
    CHECK(out[0] == 120.0f);
    CHECK(std::memcmp(&out[16], "\xff\xff\xff\xff", 4) == 0);  // not written
    // Lane 8 reads lanes 16, 12, 10, 9.
    if (poison == emulator::Poison::kNan) CHECK(std::isnan(out[8]));
    if (poison == emulator::Poison::kLarge) CHECK(out[8] > 1e36f);

    launch(exited_source_kernel, 1, 32, 0, nullptr, out.get());
    CHECK(out[7] == 1.0f);
    CHECK(std::memcmp(&out[8], &undefined, sizeof(undefined)) == 0);
  }
}

TEST_CASE("some lanes may do something together while the others wait for them", "[cuda]") {
  for (const uint64_t seed : {0, 1, 2, 3, 4}) {
    fresh_options().shuffle = seed > 0;
    emulator::options().seed = seed;
    Buffer<int> out(32);
    launch(half_first_kernel, 1, 32, 0, nullptr, out.get());
    for (int lane = 0; lane < 32; ++lane) {
      const int source = 31 - lane, other = source % 2 == 0 ? source ^ 2 : source;
      CHECK(out[size_t(lane)] == (other < 16 ? 120 : other));
    }
  }
}

TEST_CASE("barriers that count", "[cuda]") {
  for (const bool shuffle : {false, true}) {
    fresh_options().shuffle = shuffle;
    Buffer<int> out(128);
    launch(tally_kernel, 1, 128, 0, nullptr, out.get());
    for (size_t thread = 0; thread < 90; ++thread) CHECK(out[thread] == 30 + 1000 + 4000);
    check_report(report_of([&] { launch(mixed_barriers_kernel, 1, 64, 0, nullptr, out.get()); }),
                 Bug::kBadBarrier, 0, {}, {"__syncthreads_or at common/emulator/tests/cuda_test.cpp"});
  }
}

TEST_CASE("clock64, __nanosleep, fences, __trap, __constant__", "[cuda]") {
  fresh_options();
  Buffer<long long> clocks(32);
  launch(other_kernel, 1, 32, 0, nullptr, clocks.get());
  for (size_t lane = 0; lane < 32; ++lane) CHECK(clocks[lane] > 0);
  Buffer<int> out(32);
  check_report(report_of([&] { launch(trap_kernel, 1, 32, 0, nullptr, out.get()); }), Bug::kTrap, 0, {},
               {"warp 0 lane 3: __trap() at common/emulator/tests/cuda_test.cpp:"});
  Buffer<float> values(32);
  launch(constant_kernel, 1, 32, 0, nullptr, values.get());
  for (size_t lane = 0; lane < 32; ++lane) CHECK(values[lane] == 0.5f + float(lane % 4));
}

TEST_CASE("atomic operations", "[cuda]") {
  for (const bool shuffle : {false, true}) {
    fresh_options().shuffle = shuffle;
    emulator::options().host_threads = 2;
    Buffer<Atomics> buffer(1);
    Atomics& a = buffer[0];
    std::memset(static_cast<void*>(&a), 0, sizeof(a));
    a.and_bits = 0xffff;
    a.max_int = -1000;
    launch(atomics_kernel, 4, 64, 0, nullptr, buffer.get());
    CHECK(a.add_int == 255 * 128);
    CHECK(a.sub_int == -512);
    CHECK(a.min_int == -155);
    CHECK(a.max_int == -45);
    CHECK(a.inc == 56);  // modulo 100
    CHECK(a.dec == 44);
    CHECK(a.and_bits == 0xff00);
    CHECK(a.or_bits == kAll);
    CHECK(a.xor_bits == 0);
    CHECK(a.add_long == 256ull << 40);
    CHECK(a.max_long == 255ull << 33);
    CHECK(a.min_signed == -255);
    CHECK(a.add_float == 128.0f);
    CHECK(a.exchanged == 3.5f);
    CHECK(a.add_double == 64.0);
    CHECK(float(a.add_half[0]) == 0.0f);
    CHECK(float(a.add_half[1]) == 256.0f);
    CHECK(__low2float(a.add_half2) == 256.0f);
    CHECK(__high2float(a.add_half2) == -512.0f);
    CHECK(__low2float(a.add_bfloat162) == 128.0f);
    CHECK(a.swapped[0] >= 7);
    CHECK(a.swapped[0] % 2 == 1);
    CHECK(a.swapped[1] % 2 == 0);
    CHECK(a.swapped[2] == 0);
    CHECK(a.counter == 256);
    CHECK(__uint_as_float(a.by_swap) == 255.0f);
  }
}

TEST_CASE("atomic operations return the old value, in any memory that a kernel has", "[cuda]") {
  fresh_options();
  Buffer<int> out(33);
  out[32] = 0;
  launch(old_value_kernel, 1, 32, 0, nullptr, out.get());
  for (int lane = 0; lane < 32; ++lane) CHECK(out[size_t(lane)] == -lane);
  launch(shared_atomic_kernel, 1, 96, 64, nullptr, out.get());
  CHECK(out[0] == 95);
  check_report(report_of([&] { launch(atomic_out_of_bounds_kernel, 1, 1, 0, nullptr, out.get()); }),
               Bug::kGlobalOutOfBounds, 0, {}, {"common/emulator/tests/cuda_test.cpp"});
}

TEST_CASE("cooperative groups: the block and tiles of its warps", "[cuda]") {
  fresh_options();
  Buffer<int> out(512);
  launch(groups_kernel, 1, dim3(16, 8), 1024, nullptr, out.get());
  for (int rank = 0; rank < 128; ++rank) {
    CAPTURE(rank);
    CHECK(out[size_t(rank)] == rank % 8 + 100 * (rank / 8 % 4 + rank / 32 * 4) + 160000);
    const int first = (rank / 8 * 8 + 64) % 128;
    CHECK(out[size_t(128 + rank)] == 8 * first + 28);
    unsigned ballot = 0;
    for (int i = 0; i < 8; ++i) ballot |= unsigned((rank / 8 * 8 + i) % 3 == 0) << i;
    CHECK(out[size_t(256 + rank)] == int(ballot));
    CHECK(out[size_t(384 + rank)] == 32 * (rank / 32 * 32) + 496 + rank / 8 * 8 + 7);
  }
}

TEST_CASE("integer intrinsics and conversions", "[cuda]") {
  CHECK(__brev(0x80000001u) == 0x80000001u);
  CHECK(__brev(0x6u) == 0x60000000u);
  CHECK(__byte_perm(0x33221100, 0x77665544, 0x7410) == 0x77441100);
  CHECK(__funnelshift_l(0x80000000, 0x00000001, 1) == 0x3);
  CHECK(__funnelshift_r(0x80000000, 0x00000001, 31) == 0x3);
  CHECK(__umulhi(0x80000000u, 6) == 3);
  CHECK(__mulhi(-1, 1) == -1);
  CHECK(__popcll(~0ull) == 64);
  CHECK(__clzll(1) == 63);
  CHECK(__ffsll(0) == 0);
  CHECK(__ffsll(1ll << 40) == 41);
  CHECK(__float2int_rn(2.5f) == 2);
  CHECK(__float2int_rz(-2.5f) == -2);
  CHECK(__float2int_rd(-2.5f) == -3);
  CHECK(__float2int_ru(2.25f) == 3);
  CHECK(__float2int_rn(1e20f) == INT32_MAX);
  CHECK(__float2int_rn(-1e20f) == INT32_MIN);
  CHECK(__float2int_rn(NAN) == 0);
  CHECK(__float2uint_rz(-1.0f) == 0);
  CHECK(__float2uint_rn(1e20f) == UINT32_MAX);
  CHECK(__saturatef(NAN) == 0.0f);
  CHECK(__saturatef(1.5f) == 1.0f);
  CHECK(__saturatef(-0.5f) == 0.0f);
  CHECK(__frsqrt_rn(4.0f) == 0.5f);
  const float third = 1.0f / 3, exact_below = 1 - 0x1p-24f;  // third is more than 1 / 3
  CHECK(__fmul_rd(third, 3) == 1.0f);
  CHECK(__fmul_ru(third, 3) == 1.0f + 0x1p-23f);
  CHECK(__fmul_rz(-third, 3) == -1.0f);
  CHECK(__fmul_rz(exact_below, exact_below) == 1 - 0x1p-23f);
  CHECK(__fmul_rd(-exact_below, exact_below) == -exact_below);
  CHECK(__fmul_ru(-0.0f, 1) == 0.0f);
  CHECK(std::signbit(__fmul_ru(-0.0f, 1)));
  const float tiny = 0x1p-40f, above = 1 + 0x1p-23f, huge = 0x1.fffffep127f;
  CHECK(__fadd_rd(1, tiny) == 1);
  CHECK(__fadd_ru(1, tiny) == above);
  CHECK(__fadd_rz(-1, -tiny) == -1);
  CHECK(__fadd_rz(huge, huge) == huge);
  CHECK(std::signbit(__fadd_rd(1, -1)));
  CHECK(__fsub_ru(-1, tiny) == -1);
  CHECK(__fdiv_rz(1, 3) == third - 0x1p-25f);
  CHECK(__fmaf_ru(exact_below, above, 0) == above);
  CHECK(__fmaf_rd(tiny, tiny, 1) == 1);
  CHECK(__frcp_rd(3) == third - 0x1p-25f);
  CHECK(__fsqrt_ru(2) == __fsqrt_rd(2) + 0x1p-23f);
  CHECK(__dadd_ru(1, tiny * tiny) == 1 + 0x1p-52);
  CHECK(__dmul_rz(1 - 0x1p-53, 1 - 0x1p-53) == 1 - 0x1p-52);
  CHECK(__ddiv_ru(1, 3) == __ddiv_rd(1, 3) + 0x1p-54);
  CHECK(__fma_rn(third, 3, -1) == 0x1p-25);
  CHECK(__dp4a(int(0x80ff0201), 0x7f020304, -1) == -1 + 4 + 6 - 2 - 128 * 127);
  CHECK(__dp4a(make_char4(1, -2, 3, 4), make_char4(5, 6, 7, -8), 9) == 9 + 5 - 12 + 21 - 32);
  CHECK(__dp4a(0x80ff0201u, 0x7f020304u, ~0u) == 4 + 6 + 510 + 128 * 127 - 1);
  CHECK(umax(1u, ~0u) == ~0u);
  CHECK(__vimax3_s32(-3, -1, -2) == -1);
  CHECK(__vimax3_s16x2(0x8000fffe, 0xffff0003, 0x80018000) == 0xffff0003);
  CHECK(__vimin3_s16x2(0x8000fffe, 0xffff0003, 0x80018000) == 0x80008000);
  CHECK(-CUDART_INF_F == -INFINITY);
  CHECK(sizeof(float3) == 12);
  CHECK(alignof(float3) == 4);
  CHECK(alignof(uchar4) == 4);
  CHECK(alignof(ushort4) == 8);
  CHECK(alignof(double2) == 16);
  CHECK(make_short4(1, 2, 3, -4).w == -4);
}

TEST_CASE("loads and stores with hints are looked at like any others", "[cuda]") {
  fresh_options();
  Buffer<float4> in(32), out(32);
  for (int i = 0; i < 32; ++i) in[size_t(i)] = make_float4(float(i), 1, 2, 3);
  emulator::options().count = true;
  launch(hints_kernel, 1, 32, 0, nullptr, out.get(), in.get());
  for (int i = 0; i < 32; ++i) {
    CHECK(out[size_t(i)].x == float(i) + 6);
    CHECK(out[size_t(i)].y == 7);
    CHECK(out[size_t(i)].w == 3);
  }
  CHECK(emulator::last_counters().global_requests == 6);
  Buffer<float> small(32);
  check_report(report_of([&] { launch(past_the_end_kernel, 1, 1, 0, nullptr, small.get()); }),
               Bug::kGlobalOutOfBounds, 0, {}, {"common/emulator/tests/cuda_test.cpp"});
}

TEST_CASE("<mma.h> has nvcuda::wmma", "[cuda]") {
  fresh_options();
  Buffer<float> out(32);
  launch(wmma_kernel, 1, 32, 1024, nullptr, out.get());
  CHECK(out[31] == 2.0f);
  check_wmma_of_bytes<signed char>();
  check_wmma_of_bytes<unsigned char>();
}
