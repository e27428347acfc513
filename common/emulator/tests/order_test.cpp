// What orders CTAs of one launch among each other, and what does not: counters, fences, flags. And launches.
#include <algorithm>
#include <set>

#include "common/atomic_acq_rel.h"
#include "common/bulk_copy.h"
#include "common/emulator/tests/support.h"
#include "common/griddepcontrol.h"
#include "common/mbarrier.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "common/vector_add.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

enum class Mistake { kNone, kNoFence, kFenceTooEarly, kNoneWithoutFence };

// clang-format off
// The CTA that comes last to the counter adds up what all have written.
LINES_OF(last_one_sums);
__global__ void last_one_sums(float* partial, unsigned* counter, float* sum, Mistake mistake) {
  __shared__ bool is_last;
  if (mistake == Mistake::kFenceTooEarly) __threadfence();
  partial[blockIdx.x * 32 + threadIdx.x] = float(blockIdx.x);  // line 4
  if (mistake == Mistake::kNone) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = (mistake == Mistake::kNoneWithoutFence ? atomic_inc_acq_rel(counter, gridDim.x) : atomicAdd(counter, 1)) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  float total = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x * 32; i += 32) total += partial[i];  // line 11
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);
  if (threadIdx.x == 0) *sum = total;
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
}

// A CTA stays and takes one tile after the other, up to so many.
LINES_OF(takes_tiles);
__global__ void takes_tiles(float* out, unsigned* counter, unsigned num_tiles, int most, bool twice) {
  __shared__ unsigned tile;
  for (int taken = 0; taken < most; ++taken) {
    if (threadIdx.x == 0) tile = atomicAdd(counter, 1);
    __syncthreads();
    const unsigned mine = twice ? tile / 2 : tile;
    if (tile >= num_tiles) break;
    out[mine * 64 + threadIdx.x] = float(mine);  // line 8
    __syncthreads();
  }
}

// Each touches memory in another way.
enum class Touch { kRead, kWrite, kVolatileRead, kAtomic, kCopy };
using Row = SwizzledTile<uint16_t, 16, 64, 128>;
LINES_OF(touches);
__global__ void touches(int* value, Touch touch, bool waits, const __grid_constant__ TensorMap map) {
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(smem + sizeof(Row));
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  if (waits) griddepcontrol_wait();
  if (touch == Touch::kRead && value[0] == 7) __trap();  // line 6
  if (touch == Touch::kWrite) value[blockIdx.x] = 1;
  if (touch == Touch::kVolatileRead && *static_cast<volatile int*>(value) == 7) __trap();
  if (touch == Touch::kAtomic) atomicAdd(value, 1);
  if (touch != Touch::kCopy) return;
  mbarrier_arrive_expect_tx(barrier, sizeof(Row));
  tma_load_5d(smem, map, barrier, 0, 0, 0, 0, 0);  // line 12
  mbarrier_wait(barrier, 0);
}

// The CTAs hand a value on, each to the next one.
LINES_OF(hands_on);
__global__ void hands_on(int* value, int* flag, Mistake mistake) {
  while (*static_cast<volatile int*>(flag) != int(blockIdx.x)) {
  }
  *value += 1;  // line 4
  if (mistake == Mistake::kNone) __threadfence();
  *static_cast<volatile int*>(flag) = int(blockIdx.x) + 1;
}

__global__ void takes_tickets(unsigned* ticket, unsigned* owner) {
  owner[atomicAdd(ticket, 1)] = blockIdx.x;
}

// A CTA takes one ticket after the other, and a longer time for some than for others.
__global__ void shares_tickets(unsigned* ticket, unsigned* owner, unsigned num_tickets, bool volatile_too) {
  float* sum = shared_array<float>();
  for (unsigned mine; (mine = atomicAdd(ticket, 1)) < num_tickets;) {
    owner[mine] = blockIdx.x;
    for (unsigned i = 0; i < (mine * blockIdx.x) % 1000; ++i) sum[0] += 1;
    if (volatile_too) owner[mine] += 100 * *static_cast<volatile unsigned*>(ticket);
  }
}

// Each CTA touches the same 32 bytes, the first one as `first` says, all others as `others`.
enum class Use { kStore, kAdd, kAtomicAdd, kVectorAdd, kLoad, kRead };
enum class Turns { kTaken, kNotTaken, kPassedOnRelaxed, kPassedOnWhenRead };
LINES_OF(uses_in_turn);
__global__ void uses_in_turn(float* sums, unsigned* counter, Use first, Use others, Turns turns) {
  float* const mine = shared_array<float>();
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(smem + 32);
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  for (int i = 0; i < 8; ++i) mine[i] = 1.0f;
  fence_proxy_async();
  while (turns != Turns::kNotTaken && load_acquire(counter) != blockIdx.x) {
  }
  const Use use = blockIdx.x == 0 ? first : others;
  if (use == Use::kStore) bulk_store(sums, mine, 32);  // line 11
  if (use == Use::kAdd) bulk_add(sums, mine, 32);
  if (use == Use::kAtomicAdd) atomicAdd(&sums[5], 1.0f);
  if (use == Use::kVectorAdd) atomic_add_4(&sums[4], {1.0f, 1.0f, 1.0f, 1.0f});
  if (use == Use::kLoad) mbarrier_arrive_expect_tx(barrier, 32), bulk_load(mine, sums, 32, barrier);
  if (use == Use::kLoad) mbarrier_wait(barrier, 0);
  if (use == Use::kRead && sums[5] == 1e9f) __trap();  // line 17
  tma_store_commit();
  tma_store_wait_read<0>();
  if (turns != Turns::kPassedOnWhenRead) bulk_wait<0>();
  fence_proxy_async_global();
  if (turns == Turns::kPassedOnRelaxed) atomicAdd(counter, 1u);
  else atomic_add_acq_rel(counter, 1);
}
int line_of(Use use) { return use == Use::kRead ? 17 : 11 + int(use); }

// Thread 32 of CTA i waits for the counter to be `first_turn + i`, or gives up after so many reads, and the
// others wait for it at a barrier. Whoever has its turn passes it on, unless it is the turn of `keeper`.
LINES_OF(waits_for_its_turn);
__global__ void waits_for_its_turn(unsigned* counter, unsigned first_turn, unsigned keeper, int most_reads) {
  const unsigned turn = first_turn + blockIdx.x;
  if (threadIdx.x == 32) {
    while (load_acquire(counter) != turn && --most_reads != 0) {  // line 4
    }
    if (turn != keeper) atomic_add_acq_rel(counter, 1);
  }
  __syncthreads();  // line 8
}

// A CTA that runs for so long that the race detector's times run out: 20 bits.
LINES_OF(synchronises_for_ever);
__global__ void synchronises_for_ever(float* out, int times, bool barrier) {
  float* tile = shared_array<float>();
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < times; ++i) __syncwarp(1);
  }
  __syncthreads();
  tile[threadIdx.x] = float(threadIdx.x);  // line 9
  if (barrier) __syncthreads();
  out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];  // line 11
}

LINES_OF(copies_for_ever);
__global__ void copies_for_ever(const TensorMap map, float* out, int times, bool waits_at_the_end) {
  struct Shared {
    float tile[32];
    uint64_t barrier;
  };
  auto& shared = *reinterpret_cast<Shared*>(smem);
  mbarrier_init(&shared.barrier, 1);
  fence_mbarrier_init();
  for (int i = 0; i < times; ++i) {
    mbarrier_arrive_expect_tx(&shared.barrier, 128);
    tma_load_5d(shared.tile, map, &shared.barrier, 0, 0, 0, 0, 0);  // line 11
    if (i < times - 1 || waits_at_the_end) mbarrier_wait(&shared.barrier, i % 2);
  }
  out[0] = shared.tile[0];  // line 14
}

// clang-format on
__global__ void writes(float* data) { data[blockIdx.x * 32 + threadIdx.x] = float(blockIdx.x); }
__global__ void reads_what_others_wrote(const float* data, float* out) {
  const unsigned other = gridDim.x - 1 - blockIdx.x;
  out[blockIdx.x * 32 + threadIdx.x] = data[other * 32 + threadIdx.x];
}

std::vector<unsigned> owners_of(unsigned num_tickets, const auto& run) {
  Buffer<unsigned> ticket(1), owner(num_tickets);
  ticket[0] = 0;
  run(ticket.get(), owner.get());
  return std::vector<unsigned>(owner.get(), owner.get() + num_tickets);
}

}  // namespace

TEST_CASE("CTAs start in the order that the options ask for", "[order]") {
  const auto order = [] {
    return owners_of(12, [](unsigned* ticket, unsigned* owner) {
      launch(takes_tickets, 12, 1, 0, nullptr, ticket, owner);
    });
  };
  const std::vector<unsigned> ascending{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  fresh_options();
  CHECK(order() == ascending);
  emulator::options().last_cta_first = true;
  CHECK(order() == std::vector<unsigned>(ascending.rbegin(), ascending.rend()));
  std::set<std::vector<unsigned>> different;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    fresh_options().shuffle = true;
    emulator::options().seed = seed;
    const std::vector<unsigned> shuffled = order();
    CHECK(std::is_permutation(shuffled.begin(), shuffled.end(), ascending.begin()));
    different.insert(shuffled);
  }
  CHECK(different.size() == 5);
}

TEST_CASE("the same seed gives the same tickets to CTAs on different host threads", "[order]") {
  constexpr unsigned kTickets = 200;
  for (const bool volatile_too : {false, true}) {
    std::set<std::vector<unsigned>> different;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      std::vector<unsigned> first;
      for (const int host_threads : {1, 2, 7, 7}) {
        CAPTURE(seed, host_threads, volatile_too);
        fresh_options().shuffle = true;
        emulator::options().seed = seed;
        emulator::options().host_threads = host_threads;
        const std::vector<unsigned> owners = owners_of(kTickets, [&](unsigned* ticket, unsigned* owner) {
          launch(shares_tickets, 4, 1, 4, nullptr, ticket, owner, kTickets, volatile_too);
        });
        if (first.empty()) first = owners;
        CHECK(owners == first);
      }
      // Every CTA gets some.
      std::set<unsigned> ctas;
      for (const unsigned owner : first) ctas.insert(owner % 100);
      CHECK(ctas.size() == 4);
      different.insert(first);
    }
    CHECK(different.size() == 3);
  }
}

TEST_CASE("a fence and a counter let one CTA read what the others wrote", "[order]") {
  constexpr unsigned kCtas = 12;
  Buffer<float> partial(kCtas * 32), sum(1);
  Buffer<unsigned> counter(1);
  for (const int host_threads : {1, 4}) {
    CAPTURE(host_threads);
    fresh_options().host_threads = host_threads;
    emulator::options().race_detector = true;
    const auto run = [&](Mistake mistake) {
      launch(last_one_sums, kCtas, 32, 0, nullptr, partial.get(), counter.get(), sum.get(), mistake);
    };
    counter[0] = 0;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const Mistake none : {Mistake::kNone, Mistake::kNoneWithoutFence}) {
        CHECK_NOTHROW(run(none));
        CHECK(sum[0] == float(32 * kCtas * (kCtas - 1) / 2));
      }
    }
    for (const Mistake mistake : {Mistake::kNoFence, Mistake::kFenceTooEarly}) {
      counter[0] = 0;
      check_report(report_of([&] { run(mistake); }), Bug::kRace, last_one_sums_line, {4, 11});
    }
  }
}

TEST_CASE("a counter by itself orders nothing", "[order]") {
  constexpr unsigned kTiles = 5000;
  constexpr int kAll = int(kTiles);
  Buffer<float> out(kTiles * 64);
  Buffer<unsigned> counter(1);
  for (const int host_threads : {1, 4}) {
    CAPTURE(host_threads);
    fresh_options().host_threads = host_threads;
    emulator::options().race_detector = true;
    counter[0] = 0;
    CHECK_NOTHROW(launch(takes_tiles, 3, 64, 0, nullptr, out.get(), counter.get(), kTiles, kAll, false));
    size_t wrong = 0;
    for (size_t i = 0; i < kTiles * 64; ++i) wrong += out[i] != float(i / 64);
    CHECK(wrong == 0);
  }
  // The first CTA takes five tickets, of which two each are for the same tile.
  fresh_options().race_detector = true;
  counter[0] = 0;
  check_report(
      report_of([&] { launch(takes_tiles, 2, 64, 0, nullptr, out.get(), counter.get(), 100, 5, true); }),
      Bug::kRace, takes_tiles_line, {8});
}

TEST_CASE("a flag hands on what lies before a fence", "[order]") {
  Buffer<int> value(1), flag(1);
  fresh_options().race_detector = true;
  // In the first order each one waits for one that has started, in the others for one that may not have.
  enum class Order { kAscending, kDescending, kShuffled };
  for (const auto& [order, host_threads] : {std::pair(Order::kAscending, 1),
                                            {Order::kAscending, 3},
                                            {Order::kDescending, 1},
                                            {Order::kDescending, 3},
                                            {Order::kShuffled, 1},
                                            {Order::kShuffled, 3}}) {
    CAPTURE(order, host_threads);
    emulator::options().last_cta_first = order == Order::kDescending;
    emulator::options().shuffle = order == Order::kShuffled;
    emulator::options().host_threads = host_threads;
    const auto run = [&](Mistake mistake) {
      value[0] = flag[0] = 0;
      launch(hands_on, 10, 1, 0, nullptr, value.get(), flag.get(), mistake);
    };
    CHECK_NOTHROW(run(Mistake::kNone));
    CHECK(value[0] == 10);
    check_report(report_of([&] { run(Mistake::kNoFence); }), Bug::kRace, hands_on_line, {4});
  }
}

TEST_CASE("bulk copies and additions of CTAs need turns, and a turn that is passed on by the rules",
          "[order]") {
  Buffer<float> sums(8);
  Buffer<unsigned> counter(1);
  const auto run = [&](Use first, Use others, Turns turns) {
    std::fill_n(sums.get(), 8, 0.0f);
    counter[0] = 0;
    launch(uses_in_turn, 4, 1, 64, nullptr, sums.get(), counter.get(), first, others, turns);
  };
  for (int order = 0; order < 3; ++order) {
    fresh_options().race_detector = true;
    emulator::options().async = order == 1 ? emulator::AsyncMode::kLate : emulator::AsyncMode::kEarly;
    emulator::options().last_cta_first = order == 1;
    emulator::options().shuffle = order == 2;
    for (const auto& [first, others] : {std::pair(Use::kStore, Use::kAdd),
                                        {Use::kStore, Use::kStore},
                                        {Use::kStore, Use::kAtomicAdd},
                                        {Use::kStore, Use::kVectorAdd},
                                        {Use::kStore, Use::kLoad},
                                        {Use::kAdd, Use::kLoad},
                                        {Use::kAdd, Use::kRead},
                                        {Use::kVectorAdd, Use::kRead}}) {
      CAPTURE(order, first, others);
      CHECK_NOTHROW(run(first, others, Turns::kTaken));
      if (others == Use::kAdd) CHECK(sums[5] == 4.0f);
      const std::initializer_list<int> lines{line_of(first), line_of(others)};
      check_report(report_of([&] { run(first, others, Turns::kNotTaken); }), Bug::kRace, uses_in_turn_line,
                   lines, {"race between CTAs on global memory"});
      check_report(report_of([&] { run(first, others, Turns::kPassedOnRelaxed); }), Bug::kRace,
                   uses_in_turn_line, lines);
      if (first == Use::kVectorAdd) continue;  // nothing is left to wait for
      check_report(report_of([&] { run(first, others, Turns::kPassedOnWhenRead); }), Bug::kRace,
                   uses_in_turn_line, lines);
    }
    for (const Use use : {Use::kAdd, Use::kAtomicAdd, Use::kVectorAdd}) {
      for (const Use other : {Use::kAdd, Use::kAtomicAdd, Use::kVectorAdd})
        CHECK_NOTHROW(run(use, other, Turns::kNotTaken));
    }
  }
}

TEST_CASE("CTAs that wait for a counter for ever are a deadlock", "[order]") {
  Buffer<unsigned> counter(1);
  for (const bool shuffle : {false, true}) {
    for (const int host_threads : {1, 3}) {
      CAPTURE(shuffle, host_threads);
      fresh_options().host_threads = host_threads;
      emulator::options().race_detector = true;
      emulator::options().shuffle = shuffle;
      const auto run = [&](unsigned first_turn, unsigned keeper, int most_reads = 0, unsigned num_ctas = 6) {
        counter[0] = 0;
        launch(waits_for_its_turn, num_ctas, 64, 0, nullptr, counter.get(), first_turn, keeper, most_reads);
      };
      CHECK_NOTHROW(run(0, 6));
      CHECK(counter[0] == 6);
      CHECK_NOTHROW(run(100, 6, 10000));
      const std::initializer_list<int> lines{4, 8};
      check_report(report_of([&] { run(1, 0); }), Bug::kDeadlock, waits_for_its_turn_line, lines,
                   {"which always reads 0 at", "in global memory", "__syncthreads"});
      check_report(report_of([&] { run(0, 2); }), Bug::kDeadlock, waits_for_its_turn_line, lines,
                   {"which always reads 2 at"});
      if (shuffle) continue;  // 16 CTAs run at a time, and they may be the last ones
      check_report(report_of([&] { run(0, 2, 0, 40); }), Bug::kDeadlock, waits_for_its_turn_line, lines,
                   {"which always reads 2 at", "21 CTAs have not started"});
    }
  }
}

TEST_CASE("one launch may read what the launch before it wrote", "[order]") {
  Buffer<float> data(8 * 32), out(8 * 32);
  fresh_options().race_detector = true;
  for (int repeat = 0; repeat < 3; ++repeat) {
    CHECK_NOTHROW(launch(writes, 8, 32, 0, nullptr, data.get()));
    CHECK_NOTHROW(launch(reads_what_others_wrote, 8, 32, 0, nullptr, data.get(), out.get()));
    for (size_t i = 0; i < 8 * 32; ++i) CHECK(out[i] == float(7 - i / 32));
  }
}

TEST_CASE("a kernel that overlaps the previous one waits before it touches global memory", "[order]") {
  Buffer<int> value(2);
  Buffer<uint16_t> rows(16 * 64);
  const View<const uint16_t> view{.data = rows.get(),
                                  .batch = 1,
                                  .num_heads = 1,
                                  .num_rows = 16,
                                  .batch_stride = 1024,
                                  .head_stride = 1024,
                                  .row_stride = 64};
  fresh_options().race_detector = true;
  for (const Touch touch :
       {Touch::kRead, Touch::kWrite, Touch::kVolatileRead, Touch::kAtomic, Touch::kCopy}) {
    CAPTURE(touch);
    const auto run = [&](bool waits) {
      launch_overlapping(touches, 2, 1, sizeof(Row) + 8, nullptr, value.get(), touch, waits,
                         make_tensor_map<Row>(view));
    };
    CHECK_NOTHROW(run(true));
    const int line = touch == Touch::kCopy ? 12 : 6 + int(touch);
    check_report(report_of([&] { run(false); }), Bug::kRace, touches_line, {line}, {"the previous kernel"});
    CHECK_NOTHROW(launch(touches, 2, 1, sizeof(Row) + 8, nullptr, value.get(), touch, false,
                         make_tensor_map<Row>(view)));
  }
}

TEST_CASE("CTAs of 1024 threads, for longer than times last", "[order]") {
  constexpr int kLong = (1 << 20) + 1000;
  Buffer<float> out(1024);
  fresh_options().race_detector = true;
  for (const int times : {10, kLong}) {
    CAPTURE(times);
    const auto run = [&](bool barrier) {
      launch(synchronises_for_ever, 1, 1024, 4096, nullptr, out.get(), times, barrier);
    };
    CHECK_NOTHROW(run(true));
    CHECK(out[0] == 1023);
    check_report(report_of([&] { run(false); }), Bug::kRace, synchronises_for_ever_line, {9, 11});
  }
}

TEST_CASE("an mbarrier may track more copies than times last", "[order]") {
  constexpr int kLong = (1 << 20) + 10;
  Buffer<float> in(32), out(1);
  in[0] = 3.0f;
  const TensorMap map = make_tensor_map<SwizzledTile<float, 8, 4, 0>>(View{in.get(), 1, 1, 8, 0, 0, 4});
  fresh_options().race_detector = true;
  const auto run = [&](bool waits) {
    launch(copies_for_ever, 1, 1, 136, nullptr, map, out.get(), kLong, waits);
  };
  CHECK_NOTHROW(run(true));
  CHECK(out[0] == 3.0f);
  check_report(report_of([&] { run(false); }), Bug::kRace, copies_for_ever_line, {11, 14});
}
