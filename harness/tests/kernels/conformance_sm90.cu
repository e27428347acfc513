// What conformance.cu does, for the headers of sm_90 and newer: TMA, swizzles, mbarriers, clusters,
// elect.sync, griddepcontrol. (Named barriers are older, and here because only warps that specialise need
// them.)
#include "common/cluster.h"
#include "common/elect.h"
#include "common/griddepcontrol.h"
#include "common/ldmatrix.h"
#include "common/mbarrier.h"
#include "common/named_barrier.h"
#include "common/step.h"
#include "common/stmatrix.h"
#include "common/swizzle.h"
#include "common/tma.h"
#include "harness/tests/kernels/conformance.h"

namespace STEP_NAMESPACE {

constexpr const char* needs_sm = "90";  // the build looks for these very words

// A tensor [2, 2, NUM_ROWS, COLS] of 16-bit elements whose rows, heads and batches have gaps between them.
constexpr int BATCH = 2, HEADS = 2, NUM_ROWS = 20, GAP = 8;
template <typename Tile>
constexpr int ROW_STRIDE = Tile::COLS + GAP;
template <typename Tile>
constexpr int HEAD_STRIDE = NUM_ROWS* ROW_STRIDE<Tile> + GAP;
template <typename Tile>
constexpr int BATCH_STRIDE = HEADS* HEAD_STRIDE<Tile> + GAP;
template <typename Tile>
constexpr int TENSOR_WORDS = BATCH* BATCH_STRIDE<Tile> / 2;
template <typename Tile>
constexpr int TILE_WORDS = sizeof(Tile) / 4;

template <typename Tile>
TensorMap map_of(const void* tensor) {
  return make_tensor_map<Tile>(View{static_cast<const uint16_t*>(tensor), BATCH, HEADS, NUM_ROWS,
                                    BATCH_STRIDE<Tile>, HEAD_STRIDE<Tile>, ROW_STRIDE<Tile>});
}

// ---- TMA loads: two boxes on one mbarrier, one of them over the end of a head, then all of shared memory as
// it lies there.
template <typename Tile>
struct LoadStorage {
  Tile tile[2];
  uint64_t bar_full;
};

template <typename Tile>
__device__ void load_two_boxes(LoadStorage<Tile>& shared, const TensorMap& map, int first_row) {
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(&shared.bar_full, sizeof(shared.tile));
    tma_load_5d(&shared.tile[0], map, &shared.bar_full, 0, first_row, 0, 1, 0);
    tma_load_5d(&shared.tile[1], map, &shared.bar_full, 0, NUM_ROWS - 5, 0, 0, 1);
  }
  __syncwarp();
  mbarrier_wait(&shared.bar_full, 0);
}

template <typename Tile>
__global__ void tma_load(const __grid_constant__ TensorMap map, int first_row, uint32_t* out) {
  auto& shared = *reinterpret_cast<LoadStorage<Tile>*>(smem);
  load_two_boxes(shared, map, first_row);
  for (int i = threadIdx.x; i < 2 * TILE_WORDS<Tile>; i += 32)
    out[i] = reinterpret_cast<const uint32_t*>(shared.tile)[i];
}

template <typename Tile, int FIRST_ROW>
void run_load(const AttentionCall& call, void* stream) {
  launch(tma_load<Tile>, dim3(1), dim3(32), sizeof(LoadStorage<Tile>), static_cast<Stream>(stream),
         map_of<Tile>(call.q.data), FIRST_ROW, static_cast<uint32_t*>(call.o.data));
}

// ---- ldmatrix from a tile that TMA has swizzled: all blocks of 16 x 16, through offset_of() and at().
template <typename Tile>
__global__ void swizzled_ldmatrix(const __grid_constant__ TensorMap map, uint32_t* out) {
  auto& shared = *reinterpret_cast<LoadStorage<Tile>*>(smem);
  load_two_boxes(shared, map, 1);
  const int lane = threadIdx.x;
  const int offset = Tile::offset_of(lane % 16, lane / 16 * 8);
#pragma unroll
  for (int col = 0; col < Tile::COLS; col += 16) {
    uint32_t registers[4];
    ldmatrix_x4(registers, shared.tile[0].at(offset, 0, col));
    for (int i = 0; i < 4; ++i) out[col * 8 + 4 * lane + i] = registers[i];
  }
}

template <typename Tile>
void run_ldmatrix(const AttentionCall& call, void* stream) {
  launch(swizzled_ldmatrix<Tile>, dim3(1), dim3(32), sizeof(LoadStorage<Tile>), static_cast<Stream>(stream),
         map_of<Tile>(call.q.data), static_cast<uint32_t*>(call.o.data));
}

// ---- stmatrix: to 32 rows of 4 words, apart from each other and handed in in another order.
template <bool TRANSPOSED>
__global__ void stmatrix(const uint32_t* in, uint32_t* out) {
  constexpr int STRIDE = 20;  // words
  uint32_t* const tile = reinterpret_cast<uint32_t*>(smem);
  const int lane = threadIdx.x;
  uint32_t* const row = &tile[(11 * lane + 7) % 32 * STRIDE];
  const uint32_t registers[4] = {in[4 * lane], in[4 * lane + 1], in[4 * lane + 2], in[4 * lane + 3]};
  if (TRANSPOSED) {
    stmatrix_x4_trans(row, registers);
  } else {
    stmatrix_x4(row, registers);
  }
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = tile[lane * STRIDE + i];
}

// ---- TMA store: from shared memory as it is, over the end of a head. What lies between rows and behind the
// last one must keep what it was.
template <typename Tile>
__global__ void tma_store(const uint32_t* in, const __grid_constant__ TensorMap map) {
  auto& tile = *reinterpret_cast<Tile*>(smem);
  for (int i = threadIdx.x; i < TILE_WORDS<Tile>; i += 32) reinterpret_cast<uint32_t*>(&tile)[i] = in[i];
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    tma_store_5d(map, &tile, 0, NUM_ROWS - 11, 0, 1, 0);
    tma_store_5d(map, &tile, 0, 2, 0, 0, 1);
    tma_store_commit();
    tma_store_wait_read<0>();
  }
}

template <typename Tile>
void run_store(const AttentionCall& call, void* stream) {
  launch(tma_store<Tile>, dim3(1), dim3(32), sizeof(Tile), static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), map_of<Tile>(call.o.data));
}

// ---- mbarriers: words go from warp 0 to warp 1 through a ring of two stages, and a word's place depends on
// the round.
constexpr int ROUNDS = 7, STAGES = 2;
struct RingStorage {
  uint32_t words[STAGES][32];
  uint64_t bar_full[STAGES], bar_empty[STAGES];
};

__global__ void mbarrier_ring(const uint32_t* in, uint32_t* out) {
  auto& shared = *reinterpret_cast<RingStorage*>(smem);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(&shared.bar_full[stage], 32);
      mbarrier_init(&shared.bar_empty[stage], 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int round = 0; round < ROUNDS; ++round) {
    const int stage = round % STAGES;
    const int phase = round / STAGES % 2;
    if (threadIdx.x < 32) {
      mbarrier_wait(&shared.bar_empty[stage], phase ^ 1);
      shared.words[stage][(lane + round) % 32] = in[32 * round + lane];
      mbarrier_arrive(&shared.bar_full[stage]);
    } else {
      mbarrier_wait(&shared.bar_full[stage], phase);
      out[32 * round + lane] = shared.words[stage][lane];
      mbarrier_arrive(&shared.bar_empty[stage]);
    }
  }
}

// ---- Named barriers: pairs of warps exchange words, each pair at a barrier of its own.
__global__ void named_barriers(const uint32_t* in, uint32_t* out) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(smem);
  const int warp = threadIdx.x / 32;
  words[threadIdx.x] = in[threadIdx.x];
  bar_sync(1 + warp / 2, 64);
  out[threadIdx.x] = words[threadIdx.x ^ 32];
}

// ---- Two warps take turns: each writes when the other has read.
__global__ void turns(const uint32_t* in, uint32_t* out) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(smem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  words[threadIdx.x] = 0;
  __syncthreads();
  if (warp == 1) bar_arrive(1, 64);
  for (int round = 0; round < 4; ++round) {
    bar_sync(1 + warp, 64);
    words[lane] = 3 * words[lane] + in[64 * round + threadIdx.x];
    if (warp == 0 || round < 3) bar_arrive(2 - warp, 64);
  }
  if (warp == 1) out[lane] = words[lane];
}

// ---- elect.sync: whoever it is, it is one.
__global__ void elected(const uint32_t* in, uint32_t* out) {
  const bool mine = elect_one();
  const unsigned winners = __ballot_sync(0xffffffff, mine);
  if (mine) {
    for (int i = 0; i < 32; ++i) out[i] = in[i] + __popc(winners);
  }
}

// ---- Clusters: CTAs exchange words in global memory, across the barrier.
constexpr int CLUSTER_SIZE = 4;
__global__ void cluster_exchange(const uint32_t* in, uint32_t* out) {
  const int rank = cluster_ctarank(), lane = threadIdx.x;
  const int first = blockIdx.x / CLUSTER_SIZE * CLUSTER_SIZE;
  uint32_t* const words = out;
  uint32_t* const exchanged = out + 32 * 2 * CLUSTER_SIZE;
  words[32 * (first + rank) + lane] = in[32 * blockIdx.x + lane] + rank;
  cluster_arrive();
  cluster_wait();
  exchanged[32 * blockIdx.x + lane] = words[32 * (first + (rank + 1) % CLUSTER_SIZE) + lane];
}

// ---- A word goes round the CTAs of a cluster; each hands it to the next by an arrival there.
__global__ void remote_arrivals(const uint32_t* in, uint32_t* out) {
  uint64_t* const bar = reinterpret_cast<uint64_t*>(smem);
  const int rank = cluster_ctarank(), lane = threadIdx.x;
  if (lane == 0) {
    mbarrier_init(bar, 1);
    fence_mbarrier_init();
  }
  if (rank == 0) out[lane] = 0;
  cluster_arrive();
  cluster_wait();
  for (int round = 0; round < ROUNDS; ++round) {
    if (rank > 0) {
      mbarrier_wait_cluster(bar, round % 2);
    } else if (round > 0) {
      mbarrier_wait_cluster(bar, (round - 1) % 2);
    }
    out[lane] = 3 * out[lane] + in[32 * (CLUSTER_SIZE * round + rank) + lane];
    __syncwarp();
    const bool last = rank == CLUSTER_SIZE - 1 && round == ROUNDS - 1;
    if (lane == 0 && !last) mbarrier_arrive_cluster(bar, (rank + 1) % CLUSTER_SIZE);
  }
}

// ---- All CTAs arrive at all of them, round after round; a word tells how many rounds have passed.
__global__ void all_arrive(const uint32_t* in, uint32_t* out) {
  uint64_t* const bar = reinterpret_cast<uint64_t*>(smem);
  const int rank = cluster_ctarank(), lane = threadIdx.x;
  if (lane == 0) {
    mbarrier_init(bar, CLUSTER_SIZE);
    fence_mbarrier_init();
  }
  cluster_arrive();
  cluster_wait();
  uint32_t word = in[32 * rank + lane];
  for (int round = 0; round < ROUNDS; ++round) {
    __syncwarp();  // all lanes have seen the phase before: the next one cannot pass them by
    if (lane < CLUSTER_SIZE) mbarrier_arrive_cluster_relaxed(bar, lane);
    mbarrier_wait(bar, round % 2);
    word = 3 * word + round;
  }
  out[32 * rank + lane] = word;
  cluster_arrive();
  cluster_wait();
}

// ---- Words go to three other CTAs of the cluster, 1, 2 and 4 at a time.
struct StoredWords {
  uint4 four[32];
  uint2 two[32];
  uint32_t one[32];
};

__global__ void cluster_stores(const uint32_t* in, uint32_t* out) {
  constexpr int NUM_WORDS = sizeof(StoredWords) / 4;
  auto& shared = *reinterpret_cast<StoredWords*>(smem);
  const int rank = cluster_ctarank(), lane = threadIdx.x, to = (11 * lane + 7) % 32;
  const uint32_t* const words = in + NUM_WORDS * blockIdx.x + 7 * lane;
  cluster_arrive();  // all CTAs have begun
  cluster_wait();
  store_cluster(&shared.one[to], words[0], (rank + 1) % CLUSTER_SIZE);
  store_cluster(&shared.two[to], make_uint2(words[1], words[2]), (rank + 2) % CLUSTER_SIZE);
  store_cluster(&shared.four[to], make_uint4(words[3], words[4], words[5], words[6]),
                (rank + lane) % CLUSTER_SIZE);
  cluster_arrive();  // and stored
  cluster_wait();
  for (int i = lane; i < NUM_WORDS; i += 32)
    out[NUM_WORDS * blockIdx.x + i] = reinterpret_cast<const uint32_t*>(&shared)[i];
}

template <auto KERNEL, int NUM_CLUSTERS, int SMEM_BYTES>
void run_clusters(const AttentionCall& call, void* stream) {
  launch_clusters(CLUSTER_SIZE, KERNEL, dim3(NUM_CLUSTERS * CLUSTER_SIZE), dim3(32), SMEM_BYTES,
                  static_cast<Stream>(stream), static_cast<const uint32_t*>(call.q.data),
                  static_cast<uint32_t*>(call.o.data));
}

// ---- griddepcontrol: a kernel lets the next one begin, and only then computes what the next one reads. One
// thread waits for all of its CTA.
constexpr int NUM_WRITERS = 2;
__global__ void written_late(const uint32_t* in, uint32_t* out) {
  griddepcontrol_launch_dependents();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  uint32_t word = in[i];
  for (int round = 0; round < 1 << 12; ++round) {  // tens of microseconds, and nothing the compiler shortens
    word ^= word << 13;
    word ^= word >> 17;
    word ^= word << 5;
  }
  out[i] = word;
}
__global__ void read_early(uint32_t* out) {
  const int num_words = NUM_WRITERS * blockDim.x;
  if (threadIdx.x == 0) griddepcontrol_wait();
  __syncthreads();
  for (int i = threadIdx.x; i < num_words; i += blockDim.x) out[num_words + i] = 3 * out[num_words - 1 - i];
}

void run_overlapping(const AttentionCall& call, void* stream) {
  const auto out = static_cast<uint32_t*>(call.o.data);
  launch(written_late, dim3(NUM_WRITERS), dim3(64), 0, static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), out);
  launch_overlapping(read_early, dim3(1), dim3(64), 0, static_cast<Stream>(stream), out);
}

// ---- The table
template <auto KERNEL, int NUM_THREADS, int SMEM_BYTES>
void run(const AttentionCall& call, void* stream) {
  launch(KERNEL, dim3(1), dim3(NUM_THREADS), SMEM_BYTES, static_cast<Stream>(stream),
         static_cast<const uint32_t*>(call.q.data), static_cast<uint32_t*>(call.o.data));
}

template <int COLS, int SWIZZLE_BYTES>
using Tile16 = SwizzledTile<uint16_t, 16, COLS, SWIZZLE_BYTES>;
using D128 = Tile16<128, 128>;
using D64 = Tile16<64, 128>;
using D64By64 = Tile16<64, 64>;
using D64By32 = Tile16<64, 32>;
using D64Plain = Tile16<64, 0>;
using enum Words;

template <typename Tile, int FIRST_ROW>
constexpr ConformanceCase load_case(const char* name) {
  return {name, {{kBits, TENSOR_WORDS<Tile>}}, 2 * TILE_WORDS<Tile>, 0, run_load<Tile, FIRST_ROW>, needs_sm};
}
template <typename Tile>
constexpr ConformanceCase ldmatrix_case(const char* name) {
  return {name, {{kBits, TENSOR_WORDS<Tile>}}, 8 * Tile::COLS, 0, run_ldmatrix<Tile>, needs_sm};
}
template <typename Tile>
constexpr ConformanceCase store_case(const char* name) {
  return {name, {{kBits, TILE_WORDS<Tile>}}, TENSOR_WORDS<Tile>, 0, run_store<Tile>, needs_sm};
}

constexpr ConformanceCase kCases[] = {
    load_case<D128, 2>("tma_load_5d, 2 panels of 128 bytes"),
    load_case<D64, 2>("tma_load_5d, 128-byte swizzle"),
    load_case<D64, -3>("tma_load_5d, begins before the tensor"),
    load_case<D64By64, 2>("tma_load_5d, 64-byte swizzle"),
    load_case<D64By32, 2>("tma_load_5d, 32-byte swizzle"),
    load_case<D64Plain, 2>("tma_load_5d, no swizzle"),
    ldmatrix_case<D128>("SwizzledTile, 2 panels of 128 bytes"),
    ldmatrix_case<D64By64>("SwizzledTile, 64 bytes"),
    ldmatrix_case<D64By32>("SwizzledTile, 32 bytes"),
    store_case<D128>("tma_store_5d, 2 panels of 128 bytes"),
    store_case<D64By32>("tma_store_5d, 32-byte swizzle"),
    store_case<D64Plain>("tma_store_5d, no swizzle"),
    {"stmatrix_x4", {{kBits, 128}}, 128, 0, run<stmatrix<false>, 32, 2560>, needs_sm},
    {"stmatrix_x4_trans", {{kBits, 128}}, 128, 0, run<stmatrix<true>, 32, 2560>, needs_sm},
    {"mbarrier",
     {{kBits, 32 * ROUNDS}},
     32 * ROUNDS,
     0,
     run<mbarrier_ring, 64, sizeof(RingStorage)>,
     needs_sm},
    {"bar_sync", {{kBits, 128}}, 128, 0, run<named_barriers, 128, 512>, needs_sm},
    {"bar_arrive", {{kBits, 256}}, 32, 0, run<turns, 64, 256>, needs_sm},
    {"elect_one", {{kBits, 32}}, 32, 0, run<elected, 32, 0>, needs_sm},
    {"cluster_arrive, cluster_wait",
     {{kBits, 32 * 2 * CLUSTER_SIZE}},
     2 * 32 * 2 * CLUSTER_SIZE,
     0,
     run_clusters<cluster_exchange, 2, 0>,
     needs_sm},
    {"store_cluster",
     {{kBits, sizeof(StoredWords) / 4 * 2 * CLUSTER_SIZE}},
     sizeof(StoredWords) / 4 * 2 * CLUSTER_SIZE,
     0,
     run_clusters<cluster_stores, 2, sizeof(StoredWords)>,
     needs_sm},
    {"mbarrier_arrive_cluster",
     {{kBits, 32 * CLUSTER_SIZE* ROUNDS}},
     32,
     0,
     run_clusters<remote_arrivals, 1, sizeof(uint64_t)>,
     needs_sm},
    {"mbarrier_arrive_cluster_relaxed",
     {{kBits, 32 * CLUSTER_SIZE}},
     32 * CLUSTER_SIZE,
     0,
     run_clusters<all_arrive, 1, sizeof(uint64_t)>,
     needs_sm},
    {"griddepcontrol", {{kBits, 64 * NUM_WRITERS}}, 2 * 64 * NUM_WRITERS, 0, run_overlapping, needs_sm},
};

}  // namespace STEP_NAMESPACE

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
std::span<const ConformanceCase> conformance_cases_sm90() { return STEP_NAMESPACE::kCases; }
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
