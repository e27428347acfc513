// TMA, mbarriers, named barriers and elect.sync: what they do, against models that are too simple to be
// wrong.
#include <vector>

#include "common/elect.h"
#include "common/emulator/tests/support.h"
#include "common/mbarrier.h"
#include "common/named_barrier.h"
#include "common/swizzle.h"
#include "common/tma.h"

using namespace flashsteps;
using emulator::AsyncMode;
using emulator::Bug;

namespace {

// ---- Boxes

template <typename Tile>
auto& element(Tile& tile, int row, int col) {
  return *tile.at(tile.offset_of(row, col), 0, 0);
}

// A tensor [batch, heads, rows, COLS] with gaps between rows, heads and batch. Elements count up; the gaps
// hold NaN.
template <typename Element, int COLS>
struct Tensor {
  static constexpr int BATCH = 2, HEADS = 3;
  int rows;
  int64_t row_stride = COLS + 16, head_stride = row_stride * rows + 64,
          batch_stride = head_stride * HEADS + 8;
  Buffer<Element> elements{size_t(batch_stride * BATCH)};

  explicit Tensor(int num_rows) : rows(num_rows) {
    for (int batch = 0; batch < BATCH; ++batch) {
      for (int head = 0; head < HEADS; ++head) {
        for (int row = 0; row < rows; ++row) {
          for (int col = 0; col < COLS; ++col) *at(batch, head, row, col) = value(batch, head, row, col);
        }
      }
    }
  }

  Element* at(int batch, int head, int row, int col) {
    return elements.get() + batch * batch_stride + head * head_stride + row * row_stride + col;
  }
  static Element value(int batch, int head, int row, int col) {
    return Element(float((batch * 7 + head * 5 + row * 3 + col) % 1999 + 1));
  }
  template <typename Tile>
  TensorMap map() {
    return make_tensor_map<Tile>(
        View{elements.get(), BATCH, HEADS, rows, batch_stride, head_stride, row_stride});
  }
};

template <typename Tile>
__global__ void load_kernel(const TensorMap map, Tile* out, int row, int head, int batch) {
  auto& tile = *reinterpret_cast<Tile*>(smem);
  auto* barrier = reinterpret_cast<uint64_t*>(smem + sizeof(Tile));
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, sizeof(Tile));
    tma_load_5d(&tile, map, barrier, 0, row, 0, head, batch);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (size_t i = threadIdx.x; i < sizeof(Tile) / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(&out[blockIdx.x])[i] = reinterpret_cast<uint4*>(&tile)[i];
  }
}

template <typename Element, int COLS, int SWIZZLE_BYTES>
void check_loads() {
  constexpr int BOX_ROWS = 32;
  using Tile = SwizzledTile<Element, BOX_ROWS, COLS, SWIZZLE_BYTES>;
  constexpr int NUM_ROWS = 77;
  Tensor<Element, COLS> tensor(NUM_ROWS);
  const TensorMap map = tensor.template map<Tile>();
  Buffer<Tile> out(1);
  // Whole; ragged; one row; none; and a box that begins before the tensor.
  for (const int first : {0, 32, 64, 76, 77, 1000, -5, -32}) {
    const int head = (first + 32) % 3, batch = first % 2 == 0;
    launch(load_kernel<Tile>, 1, 64, sizeof(Tile) + 8, nullptr, map, out.get(), first, head, batch);
    int wrong = 0;
    for (int row = 0; row < BOX_ROWS; ++row) {
      for (int col = 0; col < COLS; ++col) {
        const bool inside = first + row >= 0 && first + row < NUM_ROWS;
        const float expected = inside ? float(tensor.value(batch, head, first + row, col)) : 0.0f;
        wrong += float(element(*out.get(), row, col)) != expected;
      }
    }
    CAPTURE(COLS, SWIZZLE_BYTES, first);
    CHECK(wrong == 0);
  }
}

template <typename Tile>
__global__ void store_kernel(const TensorMap map, const Tile* in, int row, int head, int batch) {
  auto& tile = *reinterpret_cast<Tile*>(smem);
  for (size_t i = threadIdx.x; i < sizeof(Tile) / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(&tile)[i] = reinterpret_cast<const uint4*>(in)[i];
  }
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 5) {
    tma_store_5d(map, &tile, 0, row, 0, head, batch);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}

template <typename Element, int COLS, int SWIZZLE_BYTES>
void check_stores() {
  constexpr int BOX_ROWS = 16;
  using Tile = SwizzledTile<Element, BOX_ROWS, COLS, SWIZZLE_BYTES>;
  constexpr int NUM_ROWS = 37;
  Buffer<Tile> in(1);
  for (int row = 0; row < BOX_ROWS; ++row) {
    for (int col = 0; col < COLS; ++col) element(*in.get(), row, col) = Element(float(-row * 8 - col - 1));
  }
  for (const int first : {0, 16, 32, 36, 37, -3}) {
    Tensor<Element, COLS> tensor(NUM_ROWS), untouched(NUM_ROWS);
    const int head = (first + 3) % 3, batch = first % 2 == 0;
    launch(store_kernel<Tile>, 1, 64, sizeof(Tile), nullptr, tensor.template map<Tile>(), in.get(), first,
           head, batch);
    for (int row = 0; row < BOX_ROWS; ++row) {
      if (first + row < 0 || first + row >= NUM_ROWS) continue;
      for (int col = 0; col < COLS; ++col) {
        *untouched.at(batch, head, first + row, col) = Element(float(-row * 8 - col - 1));
      }
    }
    CAPTURE(COLS, SWIZZLE_BYTES, first);
    const size_t bytes = size_t(tensor.batch_stride * 2) * sizeof(Element);
    CHECK(std::memcmp(tensor.elements.get(), untouched.elements.get(), bytes) == 0);
  }
}

// ---- Phases

__global__ void phases_kernel(int* answers) {
  auto* barriers = reinterpret_cast<uint64_t*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&barriers[0], 3);
    mbarrier_init(&barriers[1], 1);
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    for (int phase = 0; phase < 4; ++phase) {
      // Of the phase before, or of none: it has completed.
      mbarrier_wait(&barriers[0], (phase + 1) % 2);
      mbarrier_arrive(&barriers[0]);
      mbarrier_arrive(&barriers[0]);
      answers[phase] = 1;
      mbarrier_arrive(&barriers[1]);
    }
  } else if (threadIdx.x == 0) {
    for (int phase = 0; phase < 4; ++phase) {
      mbarrier_wait(&barriers[1], phase % 2);
      answers[phase] += 10;  // ordered behind the other thread's write, or it is a race
      mbarrier_arrive(&barriers[0]);
      mbarrier_wait(&barriers[0], phase % 2);
    }
  }
}

// A thread that looks a few times and goes on, because what it looks for is its own to do.
__global__ void look_and_go_on_kernel(int* looks) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem);
  mbarrier_init(barrier, 1);
  *looks = 0;
  for (int phase = 0; phase < 3; ++phase) {
    int tries = 0;
    while (tries < 5 && !mbarrier_try_wait(barrier, phase % 2)) ++tries;
    if (tries < 5) continue;
    *looks += 1;
    mbarrier_arrive(barrier);
    mbarrier_wait(barrier, phase % 2);
  }
}

// How often a wait says no although the phase has completed: it may.
__global__ void count_time_outs_kernel(int* time_outs) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem);
  mbarrier_init(barrier, 1);
  *time_outs = 0;
  for (int i = 0; i < 100; ++i) *time_outs += !mbarrier_try_wait(barrier, 1);
}

// Parts of what is announced come from several copies; and the announcement may come behind them.
__global__ void two_copies_kernel(const TensorMap map, float* out, bool announce_last) {
  using Tile = SwizzledTile<float, 8, 32, 128>;
  auto* tiles = reinterpret_cast<Tile*>(smem);
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 2 * sizeof(Tile));
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    if (!announce_last) mbarrier_arrive_expect_tx(barrier, 2 * sizeof(Tile));
    tma_load_5d(&tiles[0], map, barrier, 0, 0, 0, 0, 0);
    tma_load_5d(&tiles[1], map, barrier, 0, 8, 0, 0, 0);
    if (announce_last) mbarrier_arrive_expect_tx(barrier, 2 * sizeof(Tile));
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int row = 0; row < 16; ++row)
    out[row * 32 + threadIdx.x] = element(tiles[row / 8], row % 8, int(threadIdx.x));
}

// What a thread sees that does not wait.
__global__ void look_at_once_kernel(const TensorMap map, float* out) {
  auto* tile = reinterpret_cast<float*>(smem);
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 1024);
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  tile[0] = 5.0f;
  mbarrier_arrive_expect_tx(barrier, 1024);
  tma_load_5d(tile, map, barrier, 0, 0, 0, 0, 0);
  out[0] = tile[0];
  mbarrier_wait(barrier, 0);
  out[1] = tile[0];
}

// When the store has read its tile: at once, or when somebody waits.
__global__ void overwrite_source_kernel(const TensorMap map) {
  auto* tile = reinterpret_cast<float*>(smem);
  for (int i = 0; i < 512; ++i) tile[i] = 1.0f;
  tma_store_5d(map, tile, 0, 0, 0, 0, 0);
  tma_store_commit();
  tma_store_5d(map, tile + 256, 0, 8, 0, 0, 0);
  tma_store_commit();
  tma_store_wait_read<1>();
  for (int i = 0; i < 512; ++i) tile[i] = 2.0f;
  tma_store_wait_read<0>();
}

// What an mbarrier answers after each thing that happens to it: try_wait for parity 0, and for parity 1.
// Copies are done at once, and the one thread goes on when the answer is no.
struct Asked {
  uint64_t* barrier;
  int* answers;
  void ask() {
    *answers++ = mbarrier_try_wait(barrier, 0);
    *answers++ = mbarrier_try_wait(barrier, 1);
  }
};

__global__ void parities_kernel(int* answers, int arrivals) {
  Asked asked{reinterpret_cast<uint64_t*>(smem), answers};
  mbarrier_init(asked.barrier, arrivals);
  asked.ask();
  for (int i = 0; i < 3 * arrivals; ++i) {
    mbarrier_arrive(asked.barrier);
    asked.ask();
  }
}

__global__ void bytes_kernel(const TensorMap map, int* answers, bool announce_last) {
  Asked asked{reinterpret_cast<uint64_t*>(smem + 2048), answers};
  mbarrier_init(asked.barrier, 1);
  fence_mbarrier_init();
  if (!announce_last) mbarrier_arrive_expect_tx(asked.barrier, 2048);
  asked.ask();
  for (int copy = 0; copy < 2; ++copy) {
    tma_load_5d(smem + 1024 * copy, map, asked.barrier, 0, 0, 0, 0, 0);
    asked.ask();
  }
  if (announce_last) mbarrier_arrive_expect_tx(asked.barrier, 2048);
  asked.ask();
  mbarrier_arrive(asked.barrier);
  asked.ask();
}

// Spins on plain memory until a thread that waits for a copy says so.
__global__ void spin_kernel(const TensorMap map) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 1024);
  volatile int* done = reinterpret_cast<volatile int*>(smem + 1032);
  if (threadIdx.x == 0) {
    *done = 0;
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 1024);
    tma_load_5d(smem, map, barrier, 0, 0, 0, 0, 0);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_wait(barrier, 0);
    *done = 1;
  } else {
    while (*done == 0) {
    }
  }
}

__global__ void elect_kernel(int* out) {
  if (elect_one()) out[threadIdx.x / 32] += 1 + int(threadIdx.x % 32);
}

__global__ void bar_sync_kernel(int* out) {
  auto* values = shared_array<int>();
  if (threadIdx.x >= 64) return;
  values[threadIdx.x] = int(threadIdx.x);
  bar_sync(3, 64);
  out[threadIdx.x] = values[63 - threadIdx.x];
}

// CTAs that stay: a counter hands out tiles of 128 rows. Each warp stores its own 32 rows, which lie in the
// middle of both panels of the CTA's tile, and waits for nobody but itself.
using Rows128 = SwizzledTile<__half, 128, 128, 128>;

__global__ void __launch_bounds__(128, 2)
    own_rows_kernel(const TensorMap map, int* counter, int num_tiles, int* stored) {
  auto& tile = *reinterpret_cast<Rows128*>(smem);
  auto* work = reinterpret_cast<int4*>(smem + sizeof(Rows128));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool any = false;
  while (true) {
    if (threadIdx.x == 0) *work = make_int4(atomicAdd(counter, 1), 7, 8, 9);
    __syncthreads();
    const int4 mine = *work;
    __syncthreads();  // the next one may be written
    const int index = mine.x * (mine.y + mine.z + mine.w == 24);
    if (index >= num_tiles) break;
    if (any && lane == 0) tma_store_wait_read<0>();
    __syncwarp();
    for (int col = 0; col < 128; ++col) {
      element(tile, 32 * warp + lane, col) = __half(float((index * 128 + 32 * warp + lane + col) % 2000));
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      for (int panel = 0; panel < 2; ++panel) {
        tma_store_5d(map, &element(tile, 32 * warp, 64 * panel), 0, index * 128 + 32 * warp, panel, 0, 0);
      }
      tma_store_commit();
    }
    any = true;
    if (__any_sync(0xffffffff, lane == warp) && __all_sync(0xffffffff, any) &&
        __ballot_sync(0xffffffff, lane < 2) == 3 && lane == 0) {
      atomicAdd(stored, 1);
    }
  }
  if (lane == 0) tma_store_wait_read<0>();
}

}  // namespace

TEST_CASE("a load brings the box, swizzled, and zeros beyond the tensor", "[copy]") {
  in_all_modes(3, [] {
    check_loads<__half, 64, 128>();
    check_loads<__half, 64, 64>();
    check_loads<__half, 64, 32>();
    check_loads<__half, 64, 0>();
  });
  fresh_options();
  check_loads<__nv_bfloat16, 128, 128>();
  check_loads<__half, 128, 64>();
  check_loads<__half, 128, 32>();
  check_loads<__half, 128, 0>();
  check_loads<float, 64, 128>();
  check_loads<float, 64, 64>();
  check_loads<float, 64, 0>();
}

TEST_CASE("a store writes the box, unswizzled, and nothing beyond the tensor", "[copy]") {
  in_all_modes(3, [] {
    check_stores<__half, 64, 128>();
    check_stores<__half, 64, 64>();
    check_stores<__half, 64, 32>();
    check_stores<__half, 64, 0>();
  });
  fresh_options();
  check_stores<__nv_bfloat16, 128, 128>();
  check_stores<__half, 128, 64>();
  check_stores<float, 64, 128>();
  check_stores<float, 64, 0>();
}

TEST_CASE("warps of CTAs that stay store their own rows of a tile", "[copy]") {
  constexpr int NUM_TILES = 7, NUM_ROWS = 128 * NUM_TILES - 50;
  Buffer<__half> out(128 * 128 * NUM_TILES);
  Buffer<int> counters(2);
  const TensorMap map = encode_tensor_map({.base = out.get(),
                                           .element_bytes = 2,
                                           .size = {64, NUM_ROWS, 2, 1, 1},
                                           .stride = {2, 256, 128, 16, 16},
                                           .box = {64, 32, 1, 1, 1},
                                           .swizzle_bytes = 128});
  in_all_modes(3, [&] {
    for (const int host_threads : {1, 3}) {
      CAPTURE(host_threads);
      emulator::options().host_threads = host_threads;
      std::memset(out.get(), 0, 128 * 128 * NUM_TILES * sizeof(__half));
      counters[0] = counters[1] = 0;
      launch(own_rows_kernel, 3, 128, sizeof(Rows128) + 16, nullptr, map, counters.get(), NUM_TILES,
             counters.get() + 1);
      CHECK(counters[0] == NUM_TILES + 3);
      CHECK(counters[1] == 4 * NUM_TILES);
      int wrong = 0;
      for (int row = 0; row < 128 * NUM_TILES; ++row) {
        for (int col = 0; col < 128; ++col) {
          const float expected = row < NUM_ROWS ? float((row + col) % 2000) : 0.0f;
          wrong += float(out[size_t(128 * row + col)]) != expected;
        }
      }
      CHECK(wrong == 0);
    }
  });
}

// Spelled out, from the figures in PTX ISA, "Swizzling modes".
TEST_CASE("chunks of 16 bytes change places by the bits of their address", "[copy]") {
  fresh_options();
  // In chunks, from the beginning of the tile.
  const auto place_of_chunk = [](const auto& tile, int row, int chunk) {
    return tile.offset_of(row, chunk * 8) / 16;
  };
  const SwizzledTile<__half, 8, 64, 128> wide = {};
  CHECK(place_of_chunk(wide, 0, 5) == 5);
  CHECK(place_of_chunk(wide, 1, 0) == 8 + 1);
  CHECK(place_of_chunk(wide, 7, 0) == 56 + 7);
  CHECK(place_of_chunk(wide, 7, 6) == 56 + 1);
  const SwizzledTile<__half, 8, 32, 64> middle = {};
  CHECK(place_of_chunk(middle, 1, 3) == 4 + 3);
  CHECK(place_of_chunk(middle, 2, 0) == 8 + 1);
  CHECK(place_of_chunk(middle, 7, 3) == 28 + 0);
  const SwizzledTile<__half, 8, 16, 32> narrow = {};
  CHECK(place_of_chunk(narrow, 3, 1) == 6 + 1);
  CHECK(place_of_chunk(narrow, 4, 0) == 8 + 1);
  CHECK(place_of_chunk(narrow, 7, 1) == 14 + 0);
}

TEST_CASE("TMA's limits are checked when the map is made", "[copy]") {
  const TensorMapShape good{.base = nullptr,
                            .element_bytes = 2,
                            .size = {64, 100, 1, 2, 3},
                            .stride = {2, 128, 128, 12800, 25600},
                            .box = {64, 32, 1, 1, 1},
                            .swizzle_bytes = 128};
  CHECK_NOTHROW(encode_tensor_map(good));
  CHECK(alignof(TensorMap) == 64);
  const auto refusal = [&](auto change) -> std::string {
    TensorMapShape shape = good;
    change(shape);
    try {
      encode_tensor_map(shape);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  using Shape = TensorMapShape;
  CHECK(contains(refusal([](Shape& s) { s.base = reinterpret_cast<void*>(8); }), "multiple of 16 bytes"));
  CHECK(contains(refusal([](Shape& s) { s.stride[1] = 130; }), "row strides that are multiples of 16 bytes"));
  CHECK(contains(refusal([](Shape& s) { s.stride[4] = uint64_t(1) << 40; }), "2^40"));
  CHECK(contains(refusal([](Shape& s) { s.stride[0] = 4; }), "contiguous"));
  CHECK(contains(refusal([](Shape& s) { s.size[2] = 0; }), "sizes from 1 to 2^32"));
  CHECK(contains(refusal([](Shape& s) { s.size[1] = (uint64_t(1) << 32) + 1; }), "sizes from 1 to 2^32"));
  CHECK(contains(refusal([](Shape& s) { s.box[1] = 257; }), "boxes of 1 to 256"));
  CHECK(contains(refusal([](Shape& s) { s.box[3] = 0; }), "boxes of 1 to 256"));
  CHECK(contains(refusal([](Shape& s) { s.box[0] = 60; }), "a multiple of 16 bytes long"));
  CHECK(contains(refusal([](Shape& s) { s.swizzle_bytes = 64; }), "no longer than the swizzle"));
  CHECK(contains(refusal([](Shape& s) { s.swizzle_bytes = 16; }), "32, 64 or 128"));
  CHECK(contains(refusal([](Shape& s) { s.element_bytes = 3; }), "1, 2, 4 or 8 bytes"));
  CHECK(refusal([](Shape& s) { s.swizzle_bytes = 0; }).empty());
  CHECK(refusal([](Shape& s) { s.size[1] = uint64_t(1) << 32; }).empty());
}

TEST_CASE("mbarriers go from phase to phase, and order what is around them", "[copy]") {
  Buffer<int> answers(4);
  in_all_modes(3, [&] {
    launch(phases_kernel, 1, 64, 64, nullptr, answers.get());
    for (int phase = 0; phase < 4; ++phase) CHECK(answers[size_t(phase)] == 11);
    launch(look_and_go_on_kernel, 1, 1, 64, nullptr, answers.get());
    CHECK(answers[0] == 3);
    launch(count_time_outs_kernel, 1, 1, 64, nullptr, answers.get());
    CHECK((answers[0] > 0) == emulator::options().shuffle);
    CHECK(answers[0] < 60);
    CHECK(emulator::last_counters().mbarrier_waits == uint64_t(100 - answers[0]));
  });
}

// What docs/copies.md says, and its drawings show.
TEST_CASE("try_wait tells the parity of the last phase that has completed", "[copy]") {
  Buffer<int> answers(32);
  const auto completed_phases = [&](size_t moment) {  // modulo 2, by what was answered then
    CHECK(answers[2 * moment] == 1 - answers[2 * moment + 1]);
    return answers[2 * moment];
  };
  fresh_options().race_detector = true;
  for (const int arrivals : {1, 4}) {
    CAPTURE(arrivals);
    launch(parities_kernel, 1, 1, 64, nullptr, answers.get(), arrivals);
    // On a new mbarrier, a wait for parity 1 passes. After that the answers change with each phase.
    for (int arrived = 0; arrived <= 3 * arrivals; ++arrived) {
      CHECK(completed_phases(size_t(arrived)) == arrived / arrivals % 2);
    }
  }
  Buffer<float> in(512);
  const TensorMap map =
      make_tensor_map<SwizzledTile<float, 8, 32, 128>>(View{in.get(), 1, 1, 16, 512, 512, 32});
  for (const bool announce_last : {false, true}) {
    CAPTURE(announce_last);
    launch(bytes_kernel, 1, 1, 2056, nullptr, map, answers.get(), announce_last);
    // With some of the bytes, or with all of them and no arrival, phase 0 goes on.
    CHECK(completed_phases(0) == 0);
    CHECK(completed_phases(1) == 0);
    CHECK(completed_phases(2) == (announce_last ? 0 : 1));
    CHECK(completed_phases(3) == 1);
    CHECK(completed_phases(4) == 0);  // phase 1 needs an arrival, and no bytes
  }
}

TEST_CASE("a phase waits for all bytes, announced before or after they come", "[copy]") {
  Buffer<float> in(512), out(512);
  for (size_t i = 0; i < 512; ++i) in[i] = float(i);
  const TensorMap map =
      make_tensor_map<SwizzledTile<float, 8, 32, 128>>(View{in.get(), 1, 1, 16, 512, 512, 32});
  in_all_modes(3, [&] {
    for (const bool announce_last : {false, true}) {
      std::memset(out.get(), 0, 512 * sizeof(float));
      launch(two_copies_kernel, 1, 32, 2056, nullptr, map, out.get(), announce_last);
      CHECK(std::memcmp(in.get(), out.get(), 512 * sizeof(float)) == 0);
    }
  });
}

TEST_CASE("copies come at once, or as late as they may", "[copy]") {
  Buffer<float> in(512), out(2);
  for (size_t i = 0; i < 512; ++i) in[i] = 3.0f;
  const TensorMap map =
      make_tensor_map<SwizzledTile<float, 8, 32, 0>>(View{in.get(), 1, 1, 16, 512, 512, 32});
  fresh_options();
  launch(look_at_once_kernel, 1, 1, 1032, nullptr, map, out.get());
  CHECK(out[0] == 3.0f);
  emulator::options().async = AsyncMode::kLate;
  launch(look_at_once_kernel, 1, 1, 1032, nullptr, map, out.get());
  CHECK(out[0] != out[0]);  // neither the old value nor the new one
  CHECK(out[1] == 3.0f);
  emulator::options().poison = emulator::Poison::kLarge;
  launch(look_at_once_kernel, 1, 1, 1032, nullptr, map, out.get());
  CHECK(out[0] > 1e36f);
  CHECK(out[1] == 3.0f);
  launch(spin_kernel, 1, 33, 1036, nullptr, map);

  launch(overwrite_source_kernel, 1, 1, 2048, nullptr, map);
  CHECK(in[0] == 1.0f);
  CHECK(in[255] == 1.0f);
  CHECK(in[256] == 2.0f);
  fresh_options();
  launch(overwrite_source_kernel, 1, 1, 2048, nullptr, map);
  CHECK(in[256] == 1.0f);
}

TEST_CASE("a random mode finds different moments", "[copy]") {
  Buffer<float> in(512), out(2);
  for (size_t i = 0; i < 512; ++i) in[i] = 3.0f;
  const TensorMap map =
      make_tensor_map<SwizzledTile<float, 8, 32, 0>>(View{in.get(), 1, 1, 16, 512, 512, 32});
  int second_store_was_late = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulator::Options& options = fresh_options();
    options.async = AsyncMode::kRandom;
    options.shuffle = true;
    options.seed = seed;
    launch(overwrite_source_kernel, 1, 1, 2048, nullptr, map);
    CHECK(in[0] == 1.0f);
    second_store_was_late += in[256] == 2.0f;
  }
  CHECK(second_store_was_late > 0);
  CHECK(second_store_was_late < 20);
}

TEST_CASE("one lane is elected, not always the same", "[copy]") {
  Buffer<int> out(2);
  fresh_options();
  out[0] = out[1] = 0;
  launch(elect_kernel, 1, 64, 0, nullptr, out.get());
  CHECK(out[0] == 1);
  CHECK(out[1] == 1);
  bool other_lane = false;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    emulator::options().shuffle = true;
    emulator::options().seed = seed;
    out[0] = out[1] = 0;
    launch(elect_kernel, 1, 64, 0, nullptr, out.get());
    for (const int lane : {out[0] - 1, out[1] - 1}) {
      CHECK(lane >= 0);
      CHECK(lane < 32);
      other_lane = other_lane || lane != 0;
    }
  }
  CHECK(other_lane);
}

TEST_CASE("bar_sync is a barrier of some warps", "[copy]") {
  Buffer<int> out(64);
  in_all_modes(3, [&] {
    launch(bar_sync_kernel, 1, 96, 256, nullptr, out.get());
    CHECK(out[0] == 63);
    CHECK(out[63] == 0);
  });
}

TEST_CASE("copies, arrivals and waits are counted, whatever the mode", "[copy][counters]") {
  Tensor<__half, 64> tensor(77);
  using Tile = SwizzledTile<__half, 32, 64, 128>;
  Buffer<Tile> tiles(3);
  Buffer<int> answers(4);
  in_all_modes(3, [&] {
    // The box reaches beyond the tensor; it counts as a whole.
    launch(load_kernel<Tile>, 3, 64, sizeof(Tile) + 8, nullptr, tensor.map<Tile>(), tiles.get(), 64, 0, 0);
    emulator::Counters counted = emulator::last_counters();
    CHECK(counted.tma_loads == 3);
    CHECK(counted.tma_load_bytes == 3 * sizeof(Tile));
    CHECK(counted.tma_stores == 0);
    CHECK(counted.mbarrier_arrivals == 3);
    CHECK(counted.mbarrier_waits == 3 * 64);

    launch(store_kernel<Tile>, 1, 64, sizeof(Tile), nullptr, tensor.map<Tile>(), tiles.get(), 64, 0, 0);
    counted = emulator::last_counters();
    CHECK(counted.tma_loads == 0);
    CHECK(counted.tma_stores == 1);
    CHECK(counted.tma_store_bytes == sizeof(Tile));
    CHECK(counted.mbarrier_arrivals == 0);
    CHECK(counted.mbarrier_waits == 0);

    launch(phases_kernel, 1, 64, 64, nullptr, answers.get());
    counted = emulator::last_counters();
    CHECK(counted.mbarrier_arrivals == 4 * 4);
    CHECK(counted.mbarrier_waits == 4 * 3);
  });
}
