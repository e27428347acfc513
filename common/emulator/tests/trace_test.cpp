// Traces of kernels whose times can be worked out by hand, from the costs in trace.h.
#include "common/emulator/trace.h"

#include "common/cp_async.h"
#include "common/elect.h"
#include "common/emulator/tests/support.h"
#include "common/ldmatrix.h"
#include "common/mbarrier.h"
#include "common/mma.h"
#include "common/named_barrier.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "common/wgmma.h"

using namespace flashsteps;
using emulator::AsyncMode;
using emulator::Trace;
using emulator::TraceEvent;

namespace {

using Tile = SwizzledTile<__half, 8, 64, 128>;  // 1024 bytes
using Lines = std::vector<std::string>;

// "warp 0: wait 8-440, mbarrier 0 phase 1", in the order of the trace.
Lines lines_of(const Trace& trace) {
  Lines lines;
  for (const TraceEvent& e : trace.events) {
    constexpr const char* kKinds[] = {"products", "memory", "work", "wait",
                                      "arrival",  "issue",  "copy", "wgmma"};
    std::string line = "warp " + std::to_string(e.warp) + ": " + kKinds[int(e.kind)] + " " +
                       std::to_string(e.begin) + "-" + std::to_string(e.end);
    if (e.mbarrier >= 0) line += ", mbarrier " + std::to_string(e.mbarrier);
    if (e.mbarrier >= 0) line += e.initial ? " new" : " phase " + std::to_string(e.phase);
    if (e.barrier >= 0) line += ", barrier " + std::to_string(e.barrier);
    if (e.bytes > 0) line += ", " + std::to_string(e.bytes) + " bytes";
    if (e.wgmma > 0) line += ", " + std::to_string(e.wgmma) + " wgmma";
    if (e.mma > 0) line += ", " + std::to_string(e.mma) + " mma " + std::to_string(e.ldmatrix) + " ldmatrix";
    lines.push_back(line);
  }
  return lines;
}

template <typename Launch>
Trace trace_of(Launch launch, uint64_t cta = 0) {
  Trace trace;
  emulator::options().trace = &trace;
  emulator::options().trace_cta = cta;
  launch();
  emulator::options().trace = nullptr;
  return trace;
}

// ---- A producer and a consumer, with one stage between them, in shared memory: tile, full, empty.

constexpr int kProductLine = __LINE__ + 3;
__device__ void multiply(float (&acc)[4], Tile& tile) {
  uint32_t fragment[4];
  ldmatrix_x4(fragment, tile.at(tile.offset_of(int(threadIdx.x % 8), int(threadIdx.x % 32 / 8 * 8)), 0, 0));
  mma_m16n8k16<__half>(acc, fragment, {fragment[0], fragment[1]});
  mma_m16n8k16<__half>(acc, fragment, {fragment[2], fragment[3]});
}

constexpr int kSoftmaxLine = __LINE__ + 2;
__device__ void exponentiate(float (&acc)[4]) {
  for (int i = 0; i < 3; ++i) acc[i] = exp2f(acc[i]);
}

__global__ void pipeline_kernel(const TensorMap map, float* out) {
  auto& tile = *reinterpret_cast<Tile*>(smem);
  auto* full = reinterpret_cast<uint64_t*>(smem + sizeof(Tile));
  uint64_t* empty = full + 1;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(empty, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x / 32 == 1) {
    if (elect_one()) {
      for (int i = 0; i < 2; ++i) {
        mbarrier_wait(empty, (i + 1) % 2);
        fence_proxy_async();
        mbarrier_arrive_expect_tx(full, sizeof(Tile));
        tma_load_5d(&tile, map, full, 0, 8 * i, 0, 0, 0);
      }
    }
    return;
  }
  float acc[4] = {};
  for (int i = 0; i < 2; ++i) {
    mbarrier_wait(full, i % 2);
    multiply(acc, tile);
    exponentiate(acc);
    __syncwarp();
    if (threadIdx.x == 0) mbarrier_arrive(empty);
  }
  out[blockIdx.x * 32 + threadIdx.x] = acc[0];
}

struct Pipeline {
  Buffer<__half> in{16 * 64};
  Buffer<float> out{64};
  Pipeline() {
    for (size_t i = 0; i < 16 * 64; ++i) in[i] = __half(float(i % 7) / 8);
  }
  void run(unsigned ctas = 1) {
    const TensorMap map = make_tensor_map<Tile>(View{in.get(), 1, 1, 16, 1024, 1024, 64});
    launch(pipeline_kernel, ctas, 64, sizeof(Tile) + 16, nullptr, map, out.get());
  }
};

// ldmatrix without conflicts is 4, an mma 8, an exponential 8. A copy takes 8 to issue, 1024 / 32 on the
// engine and 400 until it has landed. The result's 128 bytes are 4 sectors.
const Lines kPipeline = {
    "warp 0: wait 0-0, barrier 0",
    "warp 0: wait 0-440, mbarrier 0 phase 0",
    "warp 1: wait 0-0, barrier 0",
    "warp 1: wait 0-0, mbarrier 1 new",
    "warp 1: arrival 0-0, mbarrier 0 phase 0, 1024 bytes",
    "warp 1: issue 0-8, mbarrier 0 phase 0, 1024 bytes",
    "warp 1: wait 8-484, mbarrier 1 phase 0",
    "warp 1: copy 8-440, mbarrier 0 phase 0, 1024 bytes",
    "warp 0: products 440-460, 2 mma 1 ldmatrix",
    "warp 0: work 460-484",
    "warp 0: arrival 484-484, mbarrier 1 phase 0",
    "warp 0: wait 484-924, mbarrier 0 phase 1",
    "warp 1: arrival 484-484, mbarrier 0 phase 1, 1024 bytes",
    "warp 1: issue 484-492, mbarrier 0 phase 1, 1024 bytes",
    "warp 1: copy 492-924, mbarrier 0 phase 1, 1024 bytes",
    "warp 0: products 924-944, 2 mma 1 ldmatrix",
    "warp 0: work 944-968",
    "warp 0: arrival 968-968, mbarrier 1 phase 1",
    "warp 0: memory 968-972",
};

// ---- Other ways to wait

__global__ void barriers_kernel(float* memory) {
  const unsigned warp = threadIdx.x / 32;
  float x = float(threadIdx.x);
  if (warp == 0) x = exp2f(x * 0.001f) + __expf(x * 0.001f);  // 16
  if (warp == 1) x = __shfl_xor_sync(0xffffffff, x, 1);       // 2
  if (warp == 2) {
    exp2f(exp2f(exp2f(x)));
    return;  // counts as arrived, at 24
  }
  __syncthreads();
  if (warp == 0) {
    x = exp2f(x * 0.001f);     // 8
    x += memory[threadIdx.x];  // 400 and 4 sectors, charged at the next meeting
    bar_arrive(5, 64);         // at 32
  }
  if (warp == 1) bar_sync(5, 64);
  shared_array<float>()[threadIdx.x * 2] = x;  // stride 2: 2 wavefronts
  __syncthreads();
  if (warp == 3) x = exp2f(x * 0.001f);
  if (warp != 1) bar_sync(5, 64);
  memory[threadIdx.x] = x;
}

// Lanes of one warp go different ways: half of them wait for one mbarrier, half for the other, at which a
// second warp arrives at 8 and 16.
__global__ void divergent_kernel() {
  auto* barriers = reinterpret_cast<uint64_t*>(smem);
  if (threadIdx.x == 0) {
    mbarrier_init(&barriers[0], 1);
    mbarrier_init(&barriers[1], 1);
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    volatile float x = 0.5f;
    for (int i = 0; i < 2; ++i) {
      x = exp2f(x);
      __syncwarp();
      if (threadIdx.x == 32) mbarrier_arrive(&barriers[i]);
    }
  } else if (threadIdx.x < 16) {
    mbarrier_wait(&barriers[0], 0);
    __syncwarp(0x0000ffff);
  } else {
    mbarrier_wait(&barriers[1], 0);
    __syncwarp(0xffff0000);
  }
}

// What some lanes do and others do not.
constexpr int kLanesLine = __LINE__ + 1;
__global__ void lanes_kernel() {
  auto* barriers = reinterpret_cast<uint64_t*>(smem);
  const int lane = int(threadIdx.x % 32);
  volatile float x = 0.5f;
  if (threadIdx.x == 0) {
    mbarrier_init(&barriers[0], 2);
    mbarrier_init(&barriers[1], 1);
    mbarrier_init(&barriers[2], 100);
  }
  __syncthreads();
  if (threadIdx.x >= 32) {  // warp 1 arrives at 16, warp 2 at 0
    if (threadIdx.x < 64) x = exp2f(exp2f(x));
    if (lane == 0) mbarrier_arrive(&barriers[0]);
    return;
  }
  if (lane < 16) x = exp2f(x);
  mbarrier_wait(&barriers[0], 0);  // from 8 to 16
  __syncwarp();
  if (lane >= 16) x = exp2f(x);
  if (lane == 0) {
    mbarrier_arrive(&barriers[2]);
    mbarrier_arrive(&barriers[2]);
    mbarrier_arrive(&barriers[1]);
  }
  mbarrier_wait(&barriers[1], 0);  // passes at 24
  __syncwarp();
  mbarrier_wait(&barriers[1], 0);
  if (lane == 5) mbarrier_arrive(&barriers[2]);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(&barriers[2]);
  mbarrier_wait(&barriers[1], 0);
  __syncwarp();
  if (lane < 16) {
    x = __shfl_xor_sync(0x0000ffff, float(x), 1);
  } else {
    mbarrier_wait(&barriers[1], 0);
  }
}

// A stretch of accesses has one latency if something is loaded, and is that of what comes first in it.
constexpr int kMemoryLine = __LINE__ + 1;
__global__ void memory_kernel(const float* in, float* out) {
  float x = in[threadIdx.x];
  out[threadIdx.x] = x;
  __syncthreads();
  x += in[threadIdx.x] + in[threadIdx.x + 32];
  __syncthreads();
  x = exp2f(x);
  shared_array<float>()[threadIdx.x] = x;
  __syncthreads();
  shared_array<float>()[threadIdx.x] = x;
  __syncthreads();
}

__global__ void store_kernel(const TensorMap map) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 3 * sizeof(Tile));
  if (threadIdx.x != 0) return;
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  mbarrier_arrive_expect_tx(barrier, sizeof(Tile));
  tma_load_5d(smem + 2 * sizeof(Tile), map, barrier, 0, 0, 0, 0, 0);
  tma_store_5d(map, smem, 0, 8, 0, 0, 0);
  tma_store_commit();
  tma_store_5d(map, smem + sizeof(Tile), 0, 16, 0, 0, 0);
  tma_store_commit();
  tma_store_wait_read<1>();
  tma_store_wait_read<0>();
  mbarrier_wait(barrier, 0);
}

__global__ void two_stores_kernel(const TensorMap map) {
  if (threadIdx.x % 32 != 0) return;
  const int warp = int(threadIdx.x / 32);
  tma_store_5d(map, smem + size_t(warp) * sizeof(Tile), 0, 8 * warp, 0, 0, 0);
  tma_store_commit();
  tma_store_wait_read<0>();
}

// Two warps load a tile of 1024 bytes, 512 each, and a second one; each group is two copies of a lane. The
// wait is for the first one.
__global__ void lane_copies_kernel(const unsigned char* in, float* out) {
  for (int tile = 0; tile < 2; ++tile) {
    cp_async_16(smem + 1024 * tile + 16 * threadIdx.x, in + 1024 * tile + 16 * threadIdx.x);
    cp_async_commit();
  }
  const float x = exp2f(0.5f);
  cp_async_wait<1>();
  __syncthreads();
  out[threadIdx.x] = shared_array<float>()[4 * threadIdx.x] + x;
  cp_async_wait<0>();
}

__global__ void deadlock_kernel() {
  if (threadIdx.x < 32) bar_sync(1, 64);
}

}  // namespace

TEST_CASE("a trace has what a pipeline does, at the times that follow from it", "[trace]") {
  fresh_options();
  Pipeline pipeline;
  const Trace trace = trace_of([&] { pipeline.run(); });
  CHECK(trace.num_warps == 2);
  CHECK(lines_of(trace) == kPipeline);

  const TraceEvent& copy = trace.events[14];
  CHECK(copy.global == pipeline.in.get());
  CHECK(copy.origin[1] == 8);
  CHECK(copy.box[1] == 8);
  CHECK(copy.shared_offset == 0);
  CHECK(trace.events[6].mbarrier_offset == sizeof(Tile) + 8);
  const TraceEvent& products = trace.events[8];
  CHECK(products.line == kProductLine);
  CHECK(emulator::place_of(products) ==
        "common/emulator/tests/trace_test.cpp:" + std::to_string(kProductLine));
  CHECK(trace.events[9].line == kSoftmaxLine);
  CHECK(trace.events.back().global == pipeline.out.get());
}

TEST_CASE("a trace does not depend on how the emulator runs the kernel", "[trace]") {
  Pipeline pipeline;
  Buffer<float> memory(128);
  Buffer<__half> out(16 * 64);
  const TensorMap map = make_tensor_map<Tile>(View{out.get(), 1, 1, 16, 1024, 1024, 64});
  const auto* bytes = reinterpret_cast<const unsigned char*>(out.get());
  const auto trace_all = [&] {
    return std::vector<Lines>{
        lines_of(trace_of([&] { pipeline.run(); })),
        lines_of(trace_of([&] { launch(barriers_kernel, 1, 128, 1024, nullptr, memory.get()); })),
        lines_of(trace_of([] { launch(divergent_kernel, 1, 64, 16, nullptr); })),
        lines_of(trace_of([] { launch(lanes_kernel, 1, 96, 24, nullptr); })),
        lines_of(trace_of([&] { launch(lane_copies_kernel, 1, 64, 2048, nullptr, bytes, memory.get()); })),
        lines_of(trace_of([&] { launch(two_stores_kernel, 1, 64, 2 * sizeof(Tile), nullptr, map); })),
    };
  };
  fresh_options();
  const std::vector<Lines> expected = trace_all();
  for (const AsyncMode async : {AsyncMode::kEarly, AsyncMode::kLate, AsyncMode::kRandom}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      emulator::Options& options = fresh_options();
      options.async = async;
      options.shuffle = seed > 0;
      options.seed = seed;
      options.race_detector = seed % 2 == 0;
      CAPTURE(int(async), seed);
      CHECK(trace_all() == expected);
    }
  }
}

TEST_CASE("to trace a kernel changes neither its results nor its counters", "[trace]") {
  fresh_options().count = true;
  Pipeline plain, traced;
  plain.run(2);
  const emulator::Counters counters = emulator::last_counters();
  trace_of([&] { traced.run(2); });
  CHECK(emulator::last_counters() == counters);
  CHECK(std::memcmp(plain.out.get(), traced.out.get(), 64 * sizeof(float)) == 0);
  emulator::options().count = false;
  trace_of([&] { traced.run(2); });
  CHECK(emulator::last_counters() == counters);  // it implies them
}

TEST_CASE("who waits at a barrier goes on with the last one", "[trace]") {
  fresh_options();
  Buffer<float> memory(128);
  const Trace trace = trace_of([&] { launch(barriers_kernel, 1, 128, 1024, nullptr, memory.get()); });
  CHECK(lines_of(trace) == Lines{
                               "warp 0: work 0-16",
                               "warp 1: work 0-2",
                               "warp 2: work 0-24",
                               "warp 3: wait 0-24, barrier 0",
                               "warp 1: wait 2-24, barrier 0",
                               "warp 0: wait 16-24, barrier 0",
                               "warp 0: work 24-32",
                               "warp 1: wait 24-32, barrier 5",
                               "warp 3: work 24-26",
                               "warp 3: wait 26-438, barrier 0",
                               "warp 0: memory 32-438",
                               "warp 1: work 32-34",
                               "warp 1: wait 34-438, barrier 0",
                               "warp 0: wait 438-438, barrier 0",
                               "warp 0: wait 438-446, barrier 5",
                               "warp 1: memory 438-442",
                               "warp 3: work 438-446",
                               "warp 0: memory 446-450",
                               "warp 3: wait 446-446, barrier 5",
                               "warp 3: memory 446-450",
                           });
}

TEST_CASE("what single lanes do comes in their order, and the warp is as late as its last lane", "[trace]") {
  fresh_options();
  const Trace trace = trace_of([] { launch(lanes_kernel, 1, 96, 24, nullptr); });
  Lines lines;
  for (const std::string& line : lines_of(trace)) {
    if (line.starts_with("warp 0")) lines.push_back(line);
  }
  CHECK(lines == Lines{
                     "warp 0: wait 0-0, barrier 0",
                     "warp 0: work 0-8",
                     "warp 0: wait 8-16, mbarrier 0 phase 0",
                     "warp 0: arrival 16-16, mbarrier 2 phase 0",
                     "warp 0: arrival 16-16, mbarrier 2 phase 0",
                     "warp 0: arrival 16-16, mbarrier 1 phase 0",
                     "warp 0: work 16-24",
                     "warp 0: wait 24-24, mbarrier 1 phase 0",
                     "warp 0: wait 24-24, mbarrier 1 phase 0",
                     "warp 0: arrival 24-24, mbarrier 2 phase 0",
                     "warp 0: arrival 24-24, mbarrier 2 phase 0",
                     "warp 0: wait 24-24, mbarrier 1 phase 0",
                     "warp 0: wait 24-24, mbarrier 1 phase 0",
                     "warp 0: work 24-26",
                 });
  const auto work = [&](uint64_t begin) {
    for (const TraceEvent& e : trace.events) {
      if (e.warp == 0 && e.kind == TraceEvent::Kind::kWork && e.begin == begin) return e;
    }
    return TraceEvent{};
  };
  CHECK(work(0).line == kLanesLine + 15);
  CHECK(work(16).line == kLanesLine + 18);
}

TEST_CASE("accesses take their place from what comes after, exponentials have their own", "[trace]") {
  fresh_options();
  Buffer<float> in(64), out(32);
  const Trace trace = trace_of([&] { launch(memory_kernel, 1, 32, 256, nullptr, in.get(), out.get()); });
  Lines lines;
  for (const TraceEvent& e : trace.events) {
    if (e.kind == TraceEvent::Kind::kWait) continue;
    lines.push_back(std::to_string(e.begin) + "-" + std::to_string(e.end) + (e.after ? " before " : " at ") +
                    std::to_string(int(e.line) - kMemoryLine));
  }
  CHECK(lines == Lines{"0-408 before 3", "408-816 before 5", "816-825 at 6", "825-826 before 10"});
  CHECK(trace.events[0].global == in.get());
}

TEST_CASE("lanes that go different ways do not overlap on their warp's track", "[trace]") {
  fresh_options();
  const Trace trace = trace_of([] { launch(divergent_kernel, 1, 64, 16, nullptr); });
  CHECK(lines_of(trace) == Lines{
                               "warp 0: wait 0-0, barrier 0",
                               "warp 0: wait 0-8, mbarrier 0 phase 0",
                               "warp 1: wait 0-0, barrier 0",
                               "warp 1: work 0-8",
                               "warp 0: wait 8-16, mbarrier 1 phase 0",
                               "warp 1: arrival 8-8, mbarrier 0 phase 0",
                               "warp 1: work 8-16",
                               "warp 1: arrival 16-16, mbarrier 1 phase 0",
                           });
}

TEST_CASE("stores queue up behind stores only, and are waited for until they have read", "[trace]") {
  fresh_options();
  Buffer<__half> out(24 * 64);
  const TensorMap map = make_tensor_map<Tile>(View{out.get(), 1, 1, 24, 1536, 1536, 64});
  const Trace trace = trace_of([&] { launch(store_kernel, 1, 32, 3 * sizeof(Tile) + 8, nullptr, map); });
  CHECK(lines_of(trace) == Lines{
                               "warp 0: arrival 0-0, mbarrier 0 phase 0, 1024 bytes",
                               "warp 0: issue 0-8, mbarrier 0 phase 0, 1024 bytes",
                               "warp 0: issue 8-16, 1024 bytes",
                               "warp 0: copy 8-440, mbarrier 0 phase 0, 1024 bytes",
                               "warp 0: issue 16-24, 1024 bytes",
                               "warp 0: copy 16-448, 1024 bytes",
                               "warp 0: wait 24-48",
                               "warp 0: copy 24-480, 1024 bytes",
                               "warp 0: wait 48-80",
                               "warp 0: wait 80-440, mbarrier 0 phase 0",
                           });
  CHECK_FALSE(trace.events[3].store);
  CHECK(trace.events[5].store);
}

// A warp's two groups are 32 sectors and 8 wavefronts, charged when it meets. All lanes' copies of a group
// are one.
TEST_CASE("lanes wait for their own copies until these have landed", "[trace]") {
  fresh_options();
  Buffer<unsigned char> in(2048);
  Buffer<float> out(64);
  const Trace trace =
      trace_of([&] { launch(lane_copies_kernel, 1, 64, 2048, nullptr, in.get(), out.get()); });
  CHECK(lines_of(trace) == Lines{
                               "warp 0: work 0-8",
                               "warp 1: work 0-8",
                               "warp 0: copy 0-400, 1024 bytes",
                               "warp 0: copy 0-400, 1024 bytes",
                               "warp 0: wait 8-400",
                               "warp 1: wait 8-400",
                               "warp 0: memory 400-440",
                               "warp 1: memory 400-440",
                               "warp 0: wait 440-440, barrier 0",
                               "warp 0: wait 440-440",
                               "warp 0: memory 440-448",
                               "warp 1: wait 440-440, barrier 0",
                               "warp 1: wait 440-440",
                               "warp 1: memory 440-448",
                           });
  for (const unsigned group : {0u, 1u}) {
    const TraceEvent& copy = trace.events[2 + group];
    CHECK(copy.group == group);
    CHECK(copy.global == in.get() + 1024 * group);
    CHECK(copy.shared_offset == 1024 * group);
    CHECK(copy.box[1] == 0);
    CHECK_FALSE(copy.store);
  }
}

// Two groups under way, and exponentials beside them.
__global__ void wgmma_kernel(float* out) {
  const auto descriptor = make_smem_descriptor(reinterpret_cast<SwizzledTile<__half, 64, 64, 128>&>(*smem));
  float s[32], o[32], x = 0;
  warpgroup_arrive();
  for (int i = 0; i < 2; ++i) wgmma_m64k16<__half>(s, descriptor, descriptor, i > 0);
  warpgroup_commit_batch();
  wgmma_m64k16<__half>(o, descriptor, descriptor, false);
  warpgroup_commit_batch();
  for (int i = 0; i < 3; ++i) x = exp2f(x);
  warpgroup_wait<1>();
  for (int i = 0; i < 3; ++i) x = exp2f(x);
  warpgroup_wait<0>();
  warpgroup_wait<0>();
  if (x < 0) out[threadIdx.x] = x;
}

TEST_CASE("a trace shows wgmma beside what its warp does", "[trace][wgmma]") {
  for (const AsyncMode mode : {AsyncMode::kEarly, AsyncMode::kLate, AsyncMode::kRandom}) {
    fresh_options().async = mode;
    Buffer<float> out(128);
    const Trace trace = trace_of([&] { launch(wgmma_kernel, 1, 128, 8192, nullptr, out.get()); });
    // A wgmma of 64 columns is 8 times 5, an exponential 8.
    for (const std::string warp : {"warp 0: ", "warp 3: "}) {
      Lines lines;
      for (const std::string& line : lines_of(trace)) {
        if (line.starts_with(warp)) lines.push_back(line.substr(warp.size()));
      }
      CHECK(lines == Lines{
                         "work 0-24",
                         "wgmma 0-80, 2 wgmma",
                         "wait 24-80",
                         "work 80-104",
                         "wgmma 80-120, 1 wgmma",
                         "wait 104-120",
                         "wait 120-120",
                     });
    }
  }
}

TEST_CASE("one CTA of one launch is traced, and none that is given up", "[trace]") {
  fresh_options();
  Pipeline pipeline;
  const Trace second = trace_of([&] { pipeline.run(2); }, /*cta=*/1);
  CHECK(lines_of(second) == kPipeline);
  CHECK(second.events.back().global == pipeline.out.get() + 32);
  CHECK(trace_of([&] { pipeline.run(2); }, /*cta=*/2).num_warps == 0);
  // The first of two launches.
  const Trace first = trace_of([&] {
    pipeline.run();
    launch(divergent_kernel, 1, 64, 16, nullptr);
  });
  CHECK(lines_of(first) == kPipeline);
  const Trace none = trace_of([] { report_of([] { launch(deadlock_kernel, 1, 64, 0, nullptr); }); });
  CHECK(none.num_warps == 0);
  CHECK(none.events.empty());
}
