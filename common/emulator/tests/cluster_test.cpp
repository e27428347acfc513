// Clusters: what their CTAs do to each other, and each mistake, which must be reported in every async mode
// and every order.
#include "common/cluster.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "common/emulator/tests/support.h"
#include "common/mbarrier.h"
#include "common/swizzle.h"
#include "common/tma.h"

using namespace flashsteps;
using emulator::Bug;
using emulator::Report;

namespace {

// clang-format off
// ---- Warp 0 of each CTA loads its part of every tile for all of them, warps 1 and 2 add the tiles up.

enum Mistake {
  kNone,
  kNoBarrierAtStart, kNoInitFence, kNoBarrierAtEnd, kAnnouncesOwnPart,
  kReleasesOwnOnly, kCountsOwnOnly, kReleasesPeersEarly, kReleasesRelaxed, kWaitsAtCtaScope, kReadersDoNotFence,
  kProducerFences, kMaskBeyond, kMaskEmpty, kPeerBeyond,
};

constexpr int SIZE = 2, STAGES = 2, PART_ROWS = 8;
using Part = SwizzledTile<float, PART_ROWS, 32, 0>;
struct Shared {
  Part stages[STAGES][SIZE];
  uint64_t full[STAGES];
  uint64_t empty[STAGES];
};
constexpr int PART_BYTES = sizeof(Part), PART_FLOATS = PART_BYTES / 4;

LINES_OF(pipeline);
template <Mistake MISTAKE>
__global__ void pipeline(const TensorMap in, float* out, int num_tiles) {
  auto& shared = *reinterpret_cast<Shared*>(smem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_ctarank();
  if (threadIdx.x == 32) {
    for (uint64_t& barrier : shared.full) mbarrier_init(&barrier, 1);  // line 6
    for (uint64_t& barrier : shared.empty) mbarrier_init(&barrier, MISTAKE == kCountsOwnOnly ? 2 : 2 * SIZE);  // line 7
    if (MISTAKE != kNoInitFence) fence_mbarrier_init();
  }
  if (MISTAKE == kNoBarrierAtStart) __syncthreads();
  if (MISTAKE != kNoBarrierAtStart) cluster_arrive();
  if (MISTAKE != kNoBarrierAtStart) cluster_wait();
  if (threadIdx.x == 0) {
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % STAGES, parity = tile / STAGES % 2 ^ 1;
      if (MISTAKE == kWaitsAtCtaScope) mbarrier_wait(&shared.empty[stage], parity);
      else mbarrier_wait_cluster(&shared.empty[stage], parity);  // line 17
      if (MISTAKE == kProducerFences) fence_proxy_async();
      mbarrier_arrive_expect_tx(&shared.full[stage], MISTAKE == kAnnouncesOwnPart ? PART_BYTES : SIZE * PART_BYTES);  // line 19
      const int mask = MISTAKE == kMaskBeyond ? 7 : MISTAKE == kMaskEmpty ? 0 : 3;
      tma_load_5d_multicast(&shared.stages[stage][rank], in, &shared.full[stage], uint16_t(mask), 0, PART_ROWS * (SIZE * tile + rank), 0, 0, 0);  // line 21
    }
  } else if (warp > 0) {
    float sum = 0;
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % STAGES;
      mbarrier_wait(&shared.full[stage], tile / STAGES % 2);  // line 27
      const auto release = [&] {
        if (MISTAKE != kReadersDoNotFence && MISTAKE != kProducerFences) fence_proxy_async();
        __syncwarp();
        const int to = MISTAKE == kReleasesOwnOnly || MISTAKE == kCountsOwnOnly ? rank : MISTAKE == kPeerBeyond ? lane + 1 : lane;
        const bool arrives = MISTAKE == kReleasesOwnOnly || MISTAKE == kCountsOwnOnly ? lane == 0 : lane < SIZE;
        if (arrives) MISTAKE == kReleasesRelaxed ? mbarrier_arrive_cluster_relaxed(&shared.empty[stage], to) : mbarrier_arrive_cluster(&shared.empty[stage], to);  // line 33
      };
      if (MISTAKE == kReleasesPeersEarly) release();
      for (int i = threadIdx.x - 32; i < SIZE * PART_FLOATS; i += 64)
        sum += reinterpret_cast<const float*>(shared.stages[stage])[i];  // line 37
      if (MISTAKE != kReleasesPeersEarly) release();
    }
    out[64 * blockIdx.x + threadIdx.x - 32] = sum;
  }
  if (MISTAKE == kNoBarrierAtEnd) return;
  cluster_arrive();
  cluster_wait();  // line 44
}

// ---- Small ones

LINES_OF(barrier_misuse);
__global__ void barrier_misuse(int variant) {
  if (variant == 0) cluster_wait();  // line 2
  cluster_arrive();  // line 3
  if (variant == 1) cluster_arrive();  // line 4
  cluster_wait();
}

LINES_OF(one_does_not_come);
__global__ void one_does_not_come(int variant) {
  uint64_t* const barrier = shared_array<uint64_t>();
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);  // line 3
  if (threadIdx.x == 0 && blockIdx.x % 2 == 1 && variant == 1) mbarrier_wait(barrier, 0);  // line 4
  if (threadIdx.x == 9 && variant == 2) return;  // who exits has arrived
  cluster_arrive();
  if (threadIdx.x == 8 && variant == 2) return;  // and who has arrived may exit
  cluster_wait();  // line 8
}

LINES_OF(arrives_at_exited);
__global__ void arrives_at_exited(int variant) {
  uint64_t* const barrier = shared_array<uint64_t>();
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  cluster_arrive();
  cluster_wait();
  if (cluster_ctarank() == 0) mbarrier_arrive_cluster(barrier, 1);  // line 7
  if (cluster_ctarank() == 1 && variant == 1) mbarrier_wait_cluster(barrier, 0);
  if (variant == 2) mbarrier_wait(barrier, cluster_ctarank() == 1 ? 0 : 1);  // hears nothing of other CTAs
}

LINES_OF(loads_into_exited);
__global__ void loads_into_exited(const TensorMap map) {
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(smem + PART_BYTES);
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  cluster_arrive();
  cluster_wait();
  if (cluster_ctarank() == 1) return;
  mbarrier_arrive_expect_tx(barrier, PART_BYTES);
  tma_load_5d_multicast(smem, map, barrier, 3, 0, 0, 0, 0, 0);  // line 9
  mbarrier_wait(barrier, 0);
}

// What a CTA has heard it may tell a third one.
__global__ void told_by_a_third(const TensorMap map, float* out) {
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(smem + PART_BYTES);  // 0: the tile, 1: the turn
  auto* const values = reinterpret_cast<volatile float*>(smem);
  const int rank = cluster_ctarank();
  mbarrier_init(&barriers[0], 1);
  mbarrier_init(&barriers[1], 1);
  fence_mbarrier_init();
  if (rank == 0) reinterpret_cast<float*>(smem)[3] = 1.0f;  // CTA 2 loads over it
  if (rank == 0) fence_proxy_async();
  if (rank == 0) mbarrier_arrive_expect_tx(&barriers[0], PART_BYTES);
  cluster_arrive();
  cluster_wait();
  if (rank == 0) out[0] = reinterpret_cast<float*>(smem)[3];
  if (rank == 0) fence_proxy_async();
  if (rank > 0 && rank < 3) mbarrier_wait_cluster(&barriers[1], 0);
  if (rank == 2) tma_load_5d_multicast(smem, map, &barriers[0], 1, 0, 0, 0, 0, 0);
  if (rank < 2) mbarrier_arrive_cluster(&barriers[1], rank + 1);
  if (rank == 0) mbarrier_wait(&barriers[0], 0);
  if (rank == 0) out[1] = values[3];
}

// ---- Every thread stores a value in all CTAs; after that each adds up what its neighbour has got from all.

enum StoreMistake {
  kStoresRight, kStoresAtOnce, kStoresOverOwn, kStoresInOnePlace, kReadsAtOnce, kReadsAfterCtaBarrier, kStoresAndExits,
  kStoresBeyond, kStoresMisaligned, kStoresOutside,
};

constexpr int NUM_CTAS = 4, NUM_STORED = 64;  // values from a CTA, one per thread
using Stored = float[NUM_CTAS][NUM_STORED];

LINES_OF(stores);
template <StoreMistake MISTAKE>
__global__ void stores(float* out) {
  auto& values = *reinterpret_cast<Stored*>(smem);
  const int rank = cluster_ctarank(), thread = threadIdx.x;
  for (float* value = &values[0][thread]; value < values[NUM_CTAS]; value += NUM_STORED) *value = -1;  // line 5
  if (MISTAKE != kStoresAtOnce) cluster_arrive();
  if (MISTAKE != kStoresAtOnce) cluster_wait();
  if (MISTAKE == kStoresOverOwn) values[rank][thread ^ 1] = 0;  // line 8
  float* const to = &values[MISTAKE == kStoresInOnePlace ? 0 : rank][thread];
  float* const place = MISTAKE == kStoresMisaligned ? reinterpret_cast<float*>(smem + 2) : MISTAKE == kStoresOutside ? values[NUM_CTAS] : to;
  for (int cta = MISTAKE == kStoresBeyond ? 1 : 0; cta < NUM_CTAS + (MISTAKE == kStoresBeyond ? 1 : 0); ++cta)
    store_cluster(place, float(100 * rank + thread), cta);  // line 12
  if (MISTAKE == kStoresAndExits) return;
  cluster_arrive();
  if (MISTAKE == kReadsAtOnce) out[NUM_STORED * blockIdx.x + thread] = values[(rank + 1) % NUM_CTAS][thread ^ 1];  // line 15
  if (MISTAKE == kReadsAfterCtaBarrier) __syncthreads();
  if (MISTAKE == kReadsAfterCtaBarrier) out[NUM_STORED * blockIdx.x + thread] = values[(rank + 1) % NUM_CTAS][thread ^ 1];  // line 17
  cluster_wait();
  float sum = 0;
  for (int cta = 0; cta < NUM_CTAS; ++cta) sum += values[cta][thread ^ 1];
  out[NUM_STORED * blockIdx.x + thread] = sum;
}

// CTA 0 hands a value of each lane to CTA 1, which waits at an mbarrier.
enum HandOver { kByRelease, kByRelaxed, kNoSyncwarp, kPlainWait };
LINES_OF(hands_over);
template <HandOver WAY>
__global__ void hands_over(float* out) {
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(smem);
  float4* const values = reinterpret_cast<float4*>(smem + 16);
  const int lane = threadIdx.x;
  if (lane == 0) mbarrier_init(barrier, 1);
  if (lane == 0) fence_mbarrier_init();
  cluster_arrive();
  cluster_wait();
  if (cluster_ctarank() == 0) {
    store_cluster(&values[lane], make_float4(lane, 1, 2, 3), 1);  // line 11
    if (WAY != kNoSyncwarp) __syncwarp();
    if (lane == 0) WAY == kByRelaxed ? mbarrier_arrive_cluster_relaxed(barrier, 1) : mbarrier_arrive_cluster(barrier, 1);
  } else {
    WAY == kPlainWait ? mbarrier_wait(barrier, 0) : mbarrier_wait_cluster(barrier, 0);
    out[lane] = values[31 - lane].x + values[31 - lane].w;  // line 16
  }
  cluster_arrive();
  cluster_wait();
}

// TMA stores what the other CTA has stored here.
LINES_OF(stores_for_copy);
__global__ void stores_for_copy(const TensorMap map, bool fences) {
  for (int i = threadIdx.x; i < PART_FLOATS / 2; i += 32) reinterpret_cast<float2*>(smem)[i] = make_float2(0, 0);
  cluster_arrive();
  cluster_wait();
  for (int i = threadIdx.x; i < PART_FLOATS / 2; i += 32)
    store_cluster(&reinterpret_cast<float2*>(smem)[i], make_float2(2 * i, 2 * i + 1), 1 - cluster_ctarank());  // line 6
  cluster_arrive();
  cluster_wait();
  if (fences) fence_proxy_async();
  __syncwarp();
  if (threadIdx.x > 0) return;
  tma_store_5d(map, smem, 0, PART_ROWS * cluster_ctarank(), 0, 0, 0);  // line 12
  tma_store_commit();
  tma_store_wait_read<0>();
}

LINES_OF(static_shared);
__global__ void static_shared(float* out) {
  __shared__ float values[32];
  values[threadIdx.x] = 1.0f;  // line 3
  __syncthreads();
  *out = values[31 - threadIdx.x];
}

__global__ void ranks(int* out) {
  out[blockIdx.y * gridDim.x + blockIdx.x] = 100 * cluster_ctarank() + int(blockIdx.x);
}

// Spins on global memory until the other CTA of its cluster has written.
__global__ void spins(volatile int* flags) {
  if (cluster_ctarank() == 0) {
    while (flags[blockIdx.x + 1] != 1) {
    }
  }
  flags[blockIdx.x] = 1;
}
// clang-format on

constexpr int NUM_TILES = 5, ROWS = NUM_TILES * SIZE * PART_ROWS;

struct Run {
  Buffer<float> in{size_t(ROWS) * 32}, out{2 * 2 * 64};
  Run() {
    for (size_t i = 0; i < size_t(ROWS) * 32; ++i) in[i] = float(i % 97);
  }
  TensorMap map() {
    return make_tensor_map<Part>(View<const float>{in.get(), 1, 1, ROWS, ROWS * 32, ROWS * 32, 32});
  }
  template <Mistake MISTAKE>
  void launch_pipeline(int num_clusters = 1) {
    launch_clusters(SIZE, pipeline<MISTAKE>, dim3(unsigned(SIZE * num_clusters)), dim3(96), sizeof(Shared),
                    nullptr, map(), out.get(), NUM_TILES);
  }
};

struct Expected {
  Bug bug;
  std::string text;  // that the report contains
  int line;          // of `pipeline`, that it names
};

template <StoreMistake MISTAKE>
void launch_stores(float* out) {
  launch_clusters(NUM_CTAS, stores<MISTAKE>, dim3(2 * NUM_CTAS), dim3(NUM_STORED), sizeof(Stored), nullptr,
                  out);
}

// The report names all of these lines of `stores`.
template <StoreMistake MISTAKE>
void check_store_mistake(const std::vector<Bug>& bugs, const std::string& text,
                         const std::vector<int>& lines) {
  in_all_modes(3, [&] {
    Buffer<float> out(2 * NUM_CTAS * NUM_STORED);
    const Report report = report_of([&] { launch_stores<MISTAKE>(out.get()); });
    INFO(report.what());
    CHECK(std::count(bugs.begin(), bugs.end(), report.bug) == 1);
    CHECK(contains(report.what(), text));
    for (const int line : lines) CHECK(names_line(report, __FILE__, stores_line + line));
  });
}

template <Mistake MISTAKE>
void check_mistake(const std::vector<Expected>& expected) {
  in_all_modes(3, [&] {
    Run run;
    const Report report = report_of([&] { run.launch_pipeline<MISTAKE>(); });
    INFO(report.what());
    bool found = false;
    for (const Expected& e : expected) {
      found = found || (report.bug == e.bug && contains(report.what(), e.text) &&
                        names_line(report, __FILE__, pipeline_line + e.line));
    }
    CHECK(found);
  });
}

}  // namespace

TEST_CASE("the CTAs of a cluster are neighbours in x") {
  fresh_options();
  Buffer<int> out(3 * 8);
  launch_clusters(4, ranks, dim3(8, 3), dim3(1), 0, nullptr, out.get());
  for (int i = 0; i < 24; ++i) CHECK(out[size_t(i)] == 100 * (i % 4) + i % 8);
  launch(ranks, dim3(8, 3), dim3(1), 0, nullptr, out.get());
  for (int i = 0; i < 24; ++i) CHECK(out[size_t(i)] == i % 8);
}

TEST_CASE("clusters that CUDA would refuse") {
  fresh_options();
  Buffer<int> out(16);
  for (const int size : {0, 3, 16}) {
    const Report report =
        report_of([&] { launch_clusters(size, ranks, dim3(48), dim3(1), 0, nullptr, out.get()); });
    check_report(report, Bug::kLaunch, 0, {}, {"a cluster of " + std::to_string(size) + " CTAs"});
  }
  const Report report =
      report_of([&] { launch_clusters(2, ranks, dim3(3), dim3(1), 0, nullptr, out.get()); });
  check_report(report, Bug::kLaunch, 0, {}, {"grid.x is 3, not a multiple"});
}

TEST_CASE("multicast brings every CTA all parts, and each is read from global memory once") {
  for (const int host_threads : {1, 2}) {
    in_all_modes(3, [&] {
      emulator::options().host_threads = host_threads;
      Run run;
      run.launch_pipeline<kNone>(2);
      for (int thread = 0; thread < 64; ++thread) {
        float sum = 0;
        for (int i = thread; i < ROWS * 32; i += 64) sum += run.in[size_t(i)];
        for (int cta = 0; cta < 4; ++cta) CHECK(run.out[size_t(64 * cta + thread)] == sum);
      }
      CHECK(emulator::last_counters().tma_loads == 2 * NUM_TILES * SIZE);
      CHECK(emulator::last_counters().tma_load_bytes == 2 * sizeof(float) * ROWS * 32);
    });
  }
  // And where the hooks let most accesses pass.
  fresh_options();
  Run run;
  run.launch_pipeline<kNone>(2);
  CHECK(run.out[0] == run.out[64]);
}

TEST_CASE("a cluster's mbarriers must be ready before others use them") {
  check_mistake<kNoBarrierAtStart>(
      {{Bug::kBadMbarrier, "Is the mbarrier_init missing, or the cluster_arrive() and cluster_wait()", 21},
       {Bug::kBadMbarrier, "Is the mbarrier_init missing, or the cluster_arrive() and cluster_wait()", 33},
       {Bug::kRace, "Is a cluster_arrive() and cluster_wait() of all threads missing", 21},
       {Bug::kProxyFence, "is not known to the copy engine", 21}});
  check_mistake<kNoInitFence>({{Bug::kProxyFence, "is not known to the copy engine", 21}});
}

TEST_CASE("a CTA must not exit while others use its shared memory") {
  check_mistake<kNoBarrierAtEnd>({{Bug::kCluster, "has exited, and its shared memory with it", 33},
                                  {Bug::kCluster, "has not heard of the arrival at its mbarrier", 33}});
  for (const int variant : {0, 1, 2}) {
    in_all_modes(3, [&] {
      const auto run = [&] { launch_clusters(2, arrives_at_exited, dim3(2), dim3(1), 8, nullptr, variant); };
      if (variant == 1) return run();
      check_report(report_of(run), Bug::kCluster, arrives_at_exited_line, {7},
                   {"block (1, 0, 0)", variant == 2 ? "has not heard of the arrival at its mbarrier" : ""});
    });
  }
  in_all_modes(3, [&] {
    Run run;
    const Report report = report_of(
        [&] { launch_clusters(2, loads_into_exited, dim3(2), dim3(1), PART_BYTES + 8, nullptr, run.map()); });
    INFO(report.what());
    CHECK((report.bug == Bug::kCluster || report.bug == Bug::kUnfinishedCopy));
    CHECK(names_line(report, __FILE__, loads_into_exited_line + 9));
  });
}

TEST_CASE("each CTA announces the bytes of all") {
  check_mistake<kAnnouncesOwnPart>({{Bug::kBadExpectTx, "", 21},
                                    {Bug::kRace, "overwrites what the read at", 21},
                                    {Bug::kRace, "brings, and this thread has not waited for that", 21}});
}

TEST_CASE("a multicast must not overwrite what another CTA still reads") {
  check_mistake<kCountsOwnOnly>({{Bug::kRace, "overwrites what the read at", 21},
                                 {Bug::kRace, "brings, and this thread has not waited for that", 21},
                                 {Bug::kRace, "overwrites what the read at", 37}});
  check_mistake<kReleasesPeersEarly>({{Bug::kRace, "overwrites what the read at", 37},
                                      {Bug::kRace, "brings, and this thread has not waited for that", 37},
                                      {Bug::kProxyFence, "no fence_proxy_async() lies", 37}});
  // Its threads read by plain loads, of which a relaxed arrival does not tell.
  check_mistake<kReleasesRelaxed>({{Bug::kRace, "overwrites what the read at", 37}});
  check_mistake<kWaitsAtCtaScope>(
      {{Bug::kRace, "overwrites what the read at", 37}, {Bug::kRace, "touches what the copy issued at", 21}});
  check_mistake<kReadersDoNotFence>(
      {{Bug::kProxyFence, ", in that CTA", 37}, {Bug::kProxyFence, "no fence_proxy_async() lies", 37}});
  // Of the producer it is for its own CTA only.
  check_mistake<kProducerFences>({{Bug::kProxyFence, ", in that CTA", 37}});
}

TEST_CASE("ranks and masks beyond the cluster") {
  check_mistake<kMaskBeyond>({{Bug::kCluster, "there is no CTA 2, the cluster's size is 2", 21}});
  check_mistake<kMaskEmpty>({{Bug::kCluster, "its mask names no CTA", 21}});
  check_mistake<kPeerBeyond>({{Bug::kCluster, "there is no CTA 2, the cluster's size is 2", 33}});
}

TEST_CASE("a deadlock of a cluster names its CTAs") {
  check_mistake<kReleasesOwnOnly>({{Bug::kDeadlock, "lacks 2 of 4 arrivals", 17}});
  in_all_modes(3, [&] {
    const auto run = [&](int variant) {
      launch_clusters(2, one_does_not_come, dim3(2), dim3(32), 8, nullptr, variant);
    };
    run(0);
    run(2);
    check_report(report_of([&] { run(1); }), Bug::kDeadlock, one_does_not_come_line, {4, 8},
                 {"block (0, 0, 0) to block (1, 0, 0), a cluster: deadlock", "In block (1, 0, 0): Waiting in",
                  "where 1 threads of the cluster have not arrived"});
  });
}

TEST_CASE("cluster_arrive and cluster_wait come in pairs") {
  in_all_modes(3, [&] {
    for (const int variant : {0, 1}) {
      const Report report =
          report_of([&] { launch_clusters(2, barrier_misuse, dim3(2), dim3(32), 0, nullptr, variant); });
      check_report(report, Bug::kBadBarrier, barrier_misuse_line, {variant == 0 ? 2 : 4},
                   {variant == 0 ? "has not arrived" : "has not waited since"});
    }
    launch_clusters(2, barrier_misuse, dim3(2), dim3(32), 0, nullptr, 2);
    launch(barrier_misuse, dim3(2), dim3(32), 0, nullptr, 2);  // a cluster of one
  });
}

TEST_CASE("knowledge goes from CTA to CTA") {
  in_all_modes(3, [&] {
    Run run;
    launch_clusters(4, told_by_a_third, dim3(4), dim3(1), PART_BYTES + 16, nullptr, run.map(), run.out.get());
    CHECK(run.out[0] == 1.0f);
    CHECK(run.out[1] == run.in[3]);
  });
}

TEST_CASE("a thread stores in the shared memory of other CTAs") {
  for (const int host_threads : {1, 2}) {
    in_all_modes(3, [&] {
      emulator::options().host_threads = host_threads;
      Buffer<float> out(2 * NUM_CTAS * NUM_STORED);
      launch_stores<kStoresRight>(out.get());
      for (int i = 0; i < 2 * NUM_CTAS * NUM_STORED; ++i)
        CHECK(out[size_t(i)] == 600 + 4 * (i % NUM_STORED ^ 1));
    });
  }
  // Each thread writes -1 four times, stores and adds up as many.
  fresh_options().count = true;
  Buffer<float> out(2 * NUM_CTAS * NUM_STORED);
  launch_stores<kStoresRight>(out.get());
  CHECK(emulator::last_counters().shared_requests == 2 * NUM_CTAS * 2 * 12);
}

TEST_CASE("stores to another CTA need an order") {
  check_store_mistake<kStoresAtOnce>({Bug::kCluster}, "may not have begun", {12});
  check_store_mistake<kStoresOverOwn>({Bug::kRace}, "race on shared memory", {8, 12});
  check_store_mistake<kStoresInOnePlace>({Bug::kRace},
                                         "Is a cluster_arrive() and cluster_wait() of all threads", {12});
  check_store_mistake<kReadsAtOnce>({Bug::kRace}, "Is a cluster_arrive() and cluster_wait() of all threads",
                                    {12, 15});
  check_store_mistake<kReadsAfterCtaBarrier>(
      {Bug::kRace}, "Is a cluster_arrive() and cluster_wait() of all threads", {12, 17});
  check_store_mistake<kStoresAndExits>({Bug::kCluster}, "", {12});
  check_store_mistake<kStoresBeyond>({Bug::kCluster}, "there is no CTA 4, the cluster's size is 4", {12});
  check_store_mistake<kStoresMisaligned>({Bug::kMisaligned}, "smem + 2 is not a multiple of 4", {12});
  check_store_mistake<kStoresOutside>({Bug::kSharedOutOfBounds}, "write of 4 bytes at smem + 1024", {12});
}

TEST_CASE("an mbarrier hands stored values to another CTA") {
  const auto check = [](auto kernel, bool is_right) {
    in_all_modes(3, [&] {
      Buffer<float> out(32);
      const auto run = [&] { launch_clusters(2, kernel, dim3(2), dim3(32), 16 + 512, nullptr, out.get()); };
      if (!is_right) {
        check_report(report_of(run), Bug::kRace, hands_over_line, {11, 16},
                     {"by block (0, 0, 0) warp 0 lane"});
        return;
      }
      run();
      for (int lane = 0; lane < 32; ++lane) CHECK(out[size_t(lane)] == 34 - lane);
    });
  };
  check(hands_over<kByRelease>, true);
  check(hands_over<kByRelaxed>, false);
  check(hands_over<kNoSyncwarp>, false);
  check(hands_over<kPlainWait>, false);
}

TEST_CASE("a proxy fence lies between a store from another CTA and TMA") {
  in_all_modes(3, [&] {
    Run run;
    const auto launch = [&](bool fences) {
      launch_clusters(2, stores_for_copy, dim3(2), dim3(32), PART_BYTES, nullptr, run.map(), fences);
    };
    launch(true);
    for (size_t i = 0; i < 2 * PART_FLOATS; ++i) CHECK(run.in[i] == i % PART_FLOATS);
    const Report report = report_of([&] { launch(false); });
    check_report(report, Bug::kProxyFence, stores_for_copy_line, {6, 12});
  });
}

TEST_CASE("a CTA of a cluster may wait for another in global memory") {
  in_all_modes(3, [&] {
    Buffer<int> flags(4);
    launch_clusters(2, spins, dim3(4), dim3(1), 0, nullptr, flags.get());
    for (size_t i = 0; i < 4; ++i) CHECK(flags[i] == 1);
  });
}

TEST_CASE("static __shared__ variables are not for clusters here") {
  fresh_options();
  Buffer<float> out(1);
  const Report report =
      report_of([&] { launch_clusters(2, static_shared, dim3(2), dim3(32), 0, nullptr, out.get()); });
  check_report(report, Bug::kCluster, static_shared_line, {3});
  launch(static_shared, dim3(1), dim3(32), 0, nullptr, out.get());
}
