// Shuffles, votes and __syncwarp against values worked out by hand.
#include "common/emulator/tests/support.h"

using namespace flashsteps;

namespace {

enum class Op { kIndex, kXor, kDown, kUp };

template <typename T>
__global__ void shuffle_kernel(T* out, Op op, int operand, int width) {
  const T value = T(threadIdx.x + 100);
  T result = 0;
  if (op == Op::kIndex) result = __shfl_sync(0xffffffff, value, operand, width);
  if (op == Op::kXor) result = __shfl_xor_sync(0xffffffff, value, operand, width);
  if (op == Op::kDown) result = __shfl_down_sync(0xffffffff, value, operand, width);
  if (op == Op::kUp) result = __shfl_up_sync(0xffffffff, value, operand, width);
  out[threadIdx.x] = result;
}

template <typename T>
void check_shuffle(Op op, int operand, int width, int (*expected_lane)(int lane)) {
  fresh_options();
  Buffer<T> out(32);
  launch(shuffle_kernel<T>, 1, 32, 0, nullptr, out.get(), op, operand, width);
  for (int lane = 0; lane < 32; ++lane) {
    CAPTURE(lane, operand, width);
    CHECK(out[size_t(lane)] == T(expected_lane(lane) + 100));
  }
}

__global__ void own_source_kernel(int* out) {
  out[threadIdx.x] = __shfl_sync(~0u, int(threadIdx.x), 31 - int(threadIdx.x));
}

__global__ void halves_kernel(int* out) {
  // The two halves of the warp shuffle on their own, and need not meet.
  const bool low = threadIdx.x < 16;
  const unsigned mask = low ? 0x0000ffff : 0xffff0000;
  int sum = int(threadIdx.x);
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
  if (low) sum += 1000 * int(__ballot_sync(mask, threadIdx.x % 2));
  out[threadIdx.x] = sum;
}

__global__ void vote_kernel(unsigned* out) {
  const int lane = threadIdx.x;
  out[0] = __ballot_sync(0xffffffff, lane % 3 == 0);
  out[1] = unsigned(__any_sync(0xffffffff, lane == 17));
  out[2] = unsigned(__any_sync(0xffffffff, lane > 31));
  out[3] = unsigned(__all_sync(0xffffffff, lane < 32));
  out[4] = unsigned(__all_sync(0xffffffff, lane != 4));
}

__global__ void partial_warp_kernel(unsigned* out) {
  // The second warp has 8 lanes: a full mask names lanes that do not exist.
  if (threadIdx.x < 32) return;
  out[threadIdx.x - 32] = __ballot_sync(0xffffffff, 1) + unsigned(__all_sync(0xffffffff, 1));
}

__global__ void exited_lanes_kernel(int* out) {
  if (threadIdx.x >= 20) return;
  __syncwarp();
  out[threadIdx.x] = __shfl_sync(0xffffffff, int(threadIdx.x), 19);
}

__global__ void late_exit_kernel(int* out) {
  // Lane 31 is scheduled last and leaves while the others wait for it.
  if (threadIdx.x == 31) return;
  const unsigned votes = __ballot_sync(0xffffffff, 1);
  out[threadIdx.x] = int(votes);
}

}  // namespace

TEST_CASE("__shfl_sync reads the named lane of its segment", "[warp]") {
  check_shuffle<int>(Op::kIndex, 5, 32, [](int) { return 5; });
  check_shuffle<int>(Op::kIndex, 5, 8, [](int lane) { return lane / 8 * 8 + 5; });
  check_shuffle<int>(Op::kIndex, 13, 8, [](int lane) { return lane / 8 * 8 + 5; });  // modulo width
  check_shuffle<double>(Op::kIndex, 31, 32, [](int) { return 31; });
}

TEST_CASE("__shfl_xor_sync swaps lanes", "[warp]") {
  check_shuffle<float>(Op::kXor, 1, 32, [](int lane) { return lane ^ 1; });
  check_shuffle<float>(Op::kXor, 16, 32, [](int lane) { return lane ^ 16; });
  // Across segments: a lower one can be read, a higher one cannot.
  check_shuffle<float>(Op::kXor, 8, 8, [](int lane) { return (lane & 8) != 0 ? lane ^ 8 : lane; });
}

TEST_CASE("__shfl_down_sync and __shfl_up_sync stop at the segment's end", "[warp]") {
  check_shuffle<unsigned>(Op::kDown, 3, 32, [](int lane) { return lane + 3 < 32 ? lane + 3 : lane; });
  check_shuffle<uint64_t>(Op::kDown, 3, 16, [](int lane) { return lane % 16 + 3 < 16 ? lane + 3 : lane; });
  check_shuffle<unsigned>(Op::kUp, 3, 32, [](int lane) { return lane >= 3 ? lane - 3 : lane; });
  check_shuffle<uint64_t>(Op::kUp, 3, 4, [](int lane) { return lane % 4 >= 3 ? lane - 3 : lane; });
}

TEST_CASE("every lane can name a source of its own", "[warp]") {
  fresh_options();
  Buffer<int> out(32);
  launch(own_source_kernel, 1, 32, 0, nullptr, out.get());
  for (int lane = 0; lane < 32; ++lane) CHECK(out[size_t(lane)] == 31 - lane);
}

TEST_CASE("parts of a warp shuffle independently", "[warp]") {
  fresh_options();
  Buffer<int> out(32);
  launch(halves_kernel, 1, 32, 0, nullptr, out.get());
  for (int lane = 0; lane < 16; ++lane) CHECK(out[size_t(lane)] == 120 + 1000 * 0xaaaa);
  for (int lane = 16; lane < 32; ++lane) CHECK(out[size_t(lane)] == 120 + 256);
}

TEST_CASE("votes", "[warp]") {
  fresh_options();
  Buffer<unsigned> out(5);
  launch(vote_kernel, 1, 32, 0, nullptr, out.get());
  CHECK(out[0] == 0x49249249u);
  CHECK(out[1] == 1);
  CHECK(out[2] == 0);
  CHECK(out[3] == 1);
  CHECK(out[4] == 0);
}

TEST_CASE("lanes that do not exist or have left are not waited for", "[warp]") {
  fresh_options();
  Buffer<unsigned> votes(8);
  launch(partial_warp_kernel, 1, 40, 0, nullptr, votes.get());
  for (size_t lane = 0; lane < 8; ++lane) CHECK(votes[lane] == 0xff + 1);

  Buffer<int> out(32);
  launch(exited_lanes_kernel, 1, 32, 0, nullptr, out.get());
  for (size_t lane = 0; lane < 20; ++lane) CHECK(out[lane] == 19);
  launch(late_exit_kernel, 1, 32, 0, nullptr, out.get());
  for (size_t lane = 0; lane < 31; ++lane) CHECK(out[lane] == 0x7fffffff);
}

TEST_CASE("warp-wide operations are counted once per warp", "[warp]") {
  fresh_options();
  Buffer<int> out(32);
  launch(halves_kernel, 1, 32, 0, nullptr, out.get());
  CHECK(emulator::last_counters().shuffles == 8);  // four steps in each half
  CHECK(emulator::last_counters().votes == 1);
}
