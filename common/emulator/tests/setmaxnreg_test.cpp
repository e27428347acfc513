// setmaxnreg: the accounts that the emulator keeps, and what it reports.
#include "common/setmaxnreg.h"

#include "common/emulator/tests/support.h"
#include "common/named_barrier.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

// clang-format off
constexpr int AT_LAUNCH = registers_at_launch(384, 1);

// A producer and two warpgroups of consumers, which take what it gives back.
LINES_OF(producer_and_consumers);
template <int PRODUCER, int CONSUMER, bool BARRIER>
__global__ void producer_and_consumers(int* out) {
  if (threadIdx.x < 128) {
    if (BARRIER) __syncthreads();  // line 4
    warpgroup_reg_dealloc<PRODUCER, AT_LAUNCH>();  // line 5
  } else {
    warpgroup_reg_alloc<CONSUMER, AT_LAUNCH>();  // line 7
    if (BARRIER) __syncthreads();
    out[threadIdx.x] = int(threadIdx.x);
  }
}

LINES_OF(misuse);
template <int VARIANT>
__global__ void misuse(int*) {
  const int warp = threadIdx.x / 32;
  if (VARIANT == 0 && warp < 3) warpgroup_reg_dealloc<24, 128>();  // line 4
  if (VARIANT == 1) warp == 2 ? warpgroup_reg_dealloc<24, 128>() : warpgroup_reg_dealloc<32, 128>();  // line 5
  if (VARIANT == 2) warpgroup_reg_dealloc<136, 128>();  // line 6
  if (VARIANT == 3) warpgroup_reg_alloc<120, 128>();  // line 7
  if (VARIANT == 4 && threadIdx.x % 32 != 7) warpgroup_reg_dealloc<24, 128>();  // line 8
  if (VARIANT == 5) warp < 4 ? warpgroup_reg_dealloc<24, 128>() : warpgroup_reg_dealloc<24, 120>();  // line 9
  if (VARIANT == 6) warpgroup_reg_dealloc<24, 168>();  // line 10
  if (VARIANT == 7 && warp != 1) {
    warpgroup_reg_dealloc<32, 128>();  // line 12
    warpgroup_reg_dealloc<24, 128>();  // line 13
  }
  if (VARIANT == 8) {
    if (warp % 4 < 2) warpgroup_reg_dealloc<32, 128>();  // line 16
    else warpgroup_reg_dealloc<32, 128>();  // line 17
  }
  if (VARIANT == 9) {
    warpgroup_reg_dealloc<32, 128>();
    bar_sync(1 + warp / 4, 128);
    warpgroup_reg_dealloc<24, 128>();
    bar_sync(1 + warp / 4, 128);
    warpgroup_reg_alloc<128, 128>();
  }
}

// clang-format on

template <int VARIANT>
Report misused(unsigned threads) {
  return report_of([&] { launch(misuse<VARIANT>, 1, threads, 0, nullptr, nullptr); });
}

template <int VARIANT>
void check_misuse(Bug bug, int line, const char* words, unsigned threads = 256) {
  in_all_orders(6, [&] {
    CAPTURE(VARIANT);
    check_report(misused<VARIANT>(threads), bug, misuse_line, {line}, {words});
    CHECK_NOTHROW(launch(misuse<9>, 1, 256, 0, nullptr, nullptr));  // nothing is left of the mistake
  });
}

}  // namespace

// As nvcc 13 says with -Xptxas -v; but 255 where these are 256.
TEST_CASE("registers at launch are those of a scheduler by its warps", "[registers]") {
  CHECK(registers_at_launch(64, 1) == 256);
  CHECK(registers_at_launch(128, 3) == 168);
  CHECK(registers_at_launch(160, 2) == 168);
  CHECK(registers_at_launch(192, 3) == 96);
  CHECK(registers_at_launch(256, 1) == 256);
  CHECK(registers_at_launch(256, 2) == 128);
  CHECK(registers_at_launch(288, 1) == 168);
  CHECK(registers_at_launch(384, 1) == 168);
  CHECK(registers_at_launch(416, 1) == 128);
  CHECK(registers_at_launch(640, 1) == 96);
}

TEST_CASE("a warpgroup takes the registers that another gives back", "[registers]") {
  Buffer<int> out(384);
  in_all_orders(6, [&] {
    // 168 - 24 is 2 * (240 - 168).
    CHECK_NOTHROW(launch(producer_and_consumers<24, 240, false>, 1, 384, 0, nullptr, out.get()));
    for (int i = 128; i < 384; ++i) CHECK(out[size_t(i)] == i);
    CHECK_NOTHROW(launch(producer_and_consumers<24, 232, false>, 1, 384, 0, nullptr, out.get()));
    CHECK_NOTHROW(launch(producer_and_consumers<168, 168, true>, 1, 384, 0, nullptr, out.get()));
    CHECK_NOTHROW(launch(misuse<9>, 2, 512, 0, nullptr, nullptr));
  });
}

TEST_CASE("who waits for registers that nobody gives back is found", "[registers][bugs]") {
  Buffer<int> out(384);
  in_all_orders(6, [&] {
    // 4 * 32 * (168 - 32) registers are for seven warps of 72 * 32, and 1280 are left.
    check_report(
        report_of([&] { launch(producer_and_consumers<32, 240, false>, 1, 384, 0, nullptr, out.get()); }),
        Bug::kDeadlock, producer_and_consumers_line, {7},
        {"for 240 registers a thread, 72 more than it has: 2304 for the warp, and the CTA's pool has "
         "1280. "});
    check_report(
        report_of([&] { launch(producer_and_consumers<24, 240, true>, 1, 384, 0, nullptr, out.get()); }),
        Bug::kDeadlock, producer_and_consumers_line, {7, 4}, {"and the CTA's pool has 0"});
  });
}

TEST_CASE("setmaxnreg that not all of a warpgroup execute alike is found", "[registers][bugs]") {
  check_misuse<0>(Bug::kDivergence, 4,
                  "only warps 0, 1, 2 of their warpgroup executed the setmaxnreg.dec to 24", 128);
  check_misuse<1>(Bug::kDivergence, 5, "the four warps of a warpgroup must execute the same one");
  check_misuse<4>(Bug::kDivergence, 8, "needs all 32 lanes of the warp");
  check_misuse<7>(Bug::kDivergence, 13, "of the warpgroup have not executed the setmaxnreg.dec to 32");
  check_misuse<8>(Bug::kDivergence, 17, "must execute the same one");
  check_misuse<6>(Bug::kDivergence, 10, "needs a warpgroup, four warps, and the CTA has 3 warps in all", 96);
}

TEST_CASE("setmaxnreg in the wrong direction, or with other accounts, is found", "[registers][bugs]") {
  check_misuse<2>(Bug::kBadRegisters, 6,
                  "the warp has 128 registers a thread, and setmaxnreg.dec can only lower that");
  check_misuse<3>(Bug::kBadRegisters, 7,
                  "the warp has 128 registers a thread, and setmaxnreg.inc can only raise that");
  check_misuse<5>(Bug::kBadRegisters, 9, "registers at launch, but an earlier one said");
  check_misuse<6>(Bug::kBadRegisters, 10, "512 threads of 168 registers at launch are more than the 65536",
                  512);
}
