// v53: the backward pass with TMA and wgmma. A CTA keeps a tile of keys, with dK and dV in registers, and
// goes through the queries that see it. Scores are transposed, with a row for each key: then P^T is the A
// operand of dV straight from registers. Only dS goes through shared memory, as one tile that two products
// read. Each product is waited for before anything else.
//
//   S^T = K Q^T      P^T = exp(scale * S^T - LSE)      dV += P^T dO
//   dP^T = V dO^T    dS^T = P^T * (dP^T - D)           dK += dS^T Q      dQ += dS K
//
// Many CTAs add to the same rows of dQ, in FP32 in the workspace. So three kernels follow each other: the
// first computes D and clears these sums, the second is the one above, the third rounds dQ.
#include <type_traits>

#include "common/blocks/accumulator.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/operands.h"
#include "common/blocks/ring.h"
#include "common/blocks/uniform.h"
#include "common/bulk_copy.h"
#include "common/elect.h"
#include "common/exp2.h"
#include "common/named_barrier.h"
#include "common/pack.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/stmatrix.h"
#include "common/swizzle.h"
#include "common/unpack.h"
#include "common/vector_add.h"
#include "common/vector_copy.h"
#include "common/wgmma.h"

namespace STEP_NAMESPACE {

constexpr int NUM_WARPGROUPS = 2;  // that compute
constexpr int NUM_CONSUMERS = 128 * NUM_WARPGROUPS;
constexpr int WARPGROUP_N = 64;                        // keys per warpgroup: 16 for each of its warps
constexpr int BLOCK_N = NUM_WARPGROUPS * WARPGROUP_N;  // keys per CTA
constexpr int NUM_STAGES = 2;                          // of Q and dO, and of dS
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;

// Queries per tile. A warpgroup has 64 x BLOCK_M elements of S and of dP, 64 x D sums of dK and of dV, and
// half of the tile's BLOCK_M x D sums of dQ. At either D these are 224 for each thread.
__host__ __device__ constexpr int block_m(int head_dim) { return head_dim == 128 ? 64 : 128; }

// Half of a tile's dQ, for each warpgroup: at D = 128 the tile's 64 rows and 64 of the columns, at D = 64
// half of its rows. A thread has DQ_TILES * 4 elements.
constexpr int DQ_TILES = 64 / MMA_N;

// dS is computed from the rounded P. FP16 has 11 bits of a number only from 2^-14 on, and most of P may be
// smaller. So in FP16 P is 2^14 times as large, because LSE, in units of log2, is 14 less. dP - D, before P
// multiplies it, and dV in the end are divided by 2^14.
template <typename Element>
constexpr int P_EXPONENT = std::is_same_v<Element, __half> ? 14 : 0;
template <typename Element>
constexpr float UNSCALE_P = 1.0f / (1 << P_EXPONENT<Element>);

constexpr int NUM_THREADS = NUM_CONSUMERS + 128;
constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, 1);
constexpr int PRODUCER_REGISTERS = 24;
constexpr int CONSUMER_REGISTERS = 240;

// ---- The workspace: of each tile of queries the sums of dQ, LSE * kLog2e - P_EXPONENT, and D * UNSCALE_P

template <int HEAD_DIM>
struct Workspace {
  static constexpr int BLOCK_M = block_m(HEAD_DIM);
  static constexpr int TILE_BYTES = BLOCK_M * (HEAD_DIM + 2) * int(sizeof(float));
  float *dq, *lse, *delta;  // of the tile

  template <typename Element>
  __device__ Workspace(const BackwardParams<Element>& params, int batch, int head, int m_tile) {
    const int num_m_tiles = ceil_div(params.seqlen_q, BLOCK_M);
    const int64_t num_rows = int64_t(params.batch) * params.num_heads_q * num_m_tiles * BLOCK_M;
    const int64_t row = ((int64_t(batch) * params.num_heads_q + head) * num_m_tiles + m_tile) * BLOCK_M;
    float* const all = static_cast<float*>(params.workspace);
    dq = all + row * HEAD_DIM;
    lse = all + num_rows * HEAD_DIM + row;
    delta = lse + num_rows;
  }

  // The order of dQ: as the accumulators have it, so that a warp adds 512 consecutive bytes. Where a
  // thread's elements of columns 8 n to 8 n + 7 of its warpgroup's half are.
  static __device__ int dq_offset(int thread, int n) {
    return ((thread / 128 * DQ_TILES + n) * 128 + thread % 128) * 4;
  }
  // The order of LSE and D: what a lane needs for 16 columns of scores is 16 consecutive bytes. So of 16 rows
  // the order is 0, 1, 8, 9, 2, 3, 10, 11, ...
  static __device__ int row_offset(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
  }
};

size_t workspace_bytes(const AttentionCall& call) {
  const int rows = ceil_div(call.seqlen_q, block_m(call.head_dim)) * block_m(call.head_dim);
  return size_t(call.batch) * call.num_heads_q * rows * (call.head_dim + 2) * sizeof(float);
}

// ---- The first kernel: a CTA for each tile of queries

constexpr int ROWS_THREADS = 256;  // of the first and the last kernel

template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(ROWS_THREADS) prepare_kernel(const BackwardParams<Element> params) {
  constexpr int BLOCK_M = block_m(HEAD_DIM);
  constexpr int LANES = HEAD_DIM / 8;  // of a row: each has 16 bytes
  const int m_tile = blockIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const Workspace<HEAD_DIM> workspace(params, batch, head, m_tile);
  const int lane = threadIdx.x % LANES;

  for (int row = threadIdx.x / LANES; row < BLOCK_M; row += ROWS_THREADS / LANES) {
    const int query = m_tile * BLOCK_M + row;
    // P is exp2(score - LSE). An LSE of inf makes it 0: in a row that sees no key, for which the forward pass
    // has stored -inf, and in rows beyond the last.
    float delta = 0.0f, lse = INFINITY;
    if (query < params.seqlen_q) {
      const Element* const o_row = params.o_head(batch, head) + query * params.o.row_stride;
      const Element* const d_o_row = params.d_o_head(batch, head) + query * params.d_o.row_stride;
      const uint4 o = load_16_bytes(o_row + lane * 8), d_o = load_16_bytes(d_o_row + lane * 8);
      const auto add = [&](uint32_t of_o, uint32_t of_d_o) {
        const float2 x = unpack2<Element>(of_o), y = unpack2<Element>(of_d_o);
        delta += x.x * y.x + x.y * y.y;
      };
      add(o.x, d_o.x);
      add(o.y, d_o.y);
      add(o.z, d_o.z);
      add(o.w, d_o.w);
      const float natural = params.lse_head(batch, head)[query];
      if (natural != -INFINITY) lse = fmaf(natural, kLog2e, -float(P_EXPONENT<Element>));
    }
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) delta += __shfl_xor_sync(0xffffffff, delta, lanes);
    if (lane == 0) {
      workspace.lse[workspace.row_offset(row)] = lse;
      workspace.delta[workspace.row_offset(row)] = delta * UNSCALE_P<Element>;
    }
  }
  for (int i = threadIdx.x; i < BLOCK_M * HEAD_DIM / 4; i += ROWS_THREADS)
    store_16_bytes(&workspace.dq[i * 4], uint4{});
}

// ---- The second kernel: a CTA for each tile of keys

template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, block_m(HEAD_DIM), HEAD_DIM, 128>;  // of Q and dO
template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;
template <typename Element, int HEAD_DIM>
using DSTile = SwizzledTile<Element, BLOCK_N, block_m(HEAD_DIM), 128>;  // a row for each key

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  KVTile<Element, HEAD_DIM> k, v;  // in the end, dK and dV
  QTile<Element, HEAD_DIM> q[NUM_STAGES], d_o[NUM_STAGES];
  DSTile<Element, HEAD_DIM> ds[NUM_STAGES];
  float lse[NUM_STAGES][block_m(HEAD_DIM)];    // comes with Q
  float delta[NUM_STAGES][block_m(HEAD_DIM)];  // comes with dO
  uint64_t bar_kv_full;
  Ring<NUM_STAGES> ring_q, ring_d_o;
};

struct BackwardMaps {
  TensorMap q, k, v, d_o, dk, dv;
};

// A CTA's work: a tile of keys, and the tiles of queries that see some of it. These are, of each query head
// of the group in turn, the tiles from first_m_tile on.
struct Work {
  int batch, kv_head, first_key, kv_len;
  int first_m_tile, num_m_tiles;
  int num_steps;     // tiles of queries, of all heads
  int head, m_tile;  // of the current step

  __device__ void advance() {
    if (++m_tile < num_m_tiles) return;
    m_tile = first_m_tile;
    ++head;
  }
};

// Under a causal mask the first keys are seen by the most queries: their CTAs start first.
template <bool CAUSAL, int BLOCK_M, typename Element>
__device__ Work work_of_cta(const BackwardParams<Element>& params) {
  const int num_n_tiles = ceil_div(params.seqlen_kv, BLOCK_N);
  const int kv_head = int(blockIdx.x) / num_n_tiles % params.num_heads_kv;
  const int batch = int(blockIdx.x) / num_n_tiles / params.num_heads_kv;
  const int first_key = int(blockIdx.x) % num_n_tiles * BLOCK_N;
  const int kv_len = params.kv_length(batch);
  const int num_m_tiles = ceil_div(params.seqlen_q, BLOCK_M);
  const int first_m_tile =
      first_key < kv_len ? params.template first_query<CAUSAL>(first_key, kv_len) / BLOCK_M : num_m_tiles;
  return {.batch = batch,
          .kv_head = kv_head,
          .first_key = first_key,
          .kv_len = kv_len,
          .first_m_tile = first_m_tile,
          .num_m_tiles = num_m_tiles,
          .num_steps = (num_m_tiles - first_m_tile) * params.group_size(),
          .head = kv_head * params.group_size(),
          .m_tile = first_m_tile};
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    backward_kernel(const BackwardParams<Element> params, const __grid_constant__ BackwardMaps maps) {
  constexpr int BLOCK_M = block_m(HEAD_DIM);
  constexpr int S_TILES = BLOCK_M / MMA_N;
  constexpr int D_TILES = HEAD_DIM / MMA_N;
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  using DS = DSTile<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int warp_id = uniform(int(threadIdx.x / 32));
  const int lane_id = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_kv_full, 1);
    shared.ring_q.init(NUM_CONSUMERS / 32);
    shared.ring_d_o.init(NUM_CONSUMERS / 32);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producer.
  if (warp_id >= NUM_CONSUMERS / 32) {
    warpgroup_reg_dealloc<PRODUCER_REGISTERS, REGISTERS_AT_LAUNCH>();
    if (warp_id > NUM_CONSUMERS / 32 || !elect_one()) return;
    Work work = work_of_cta<CAUSAL, BLOCK_M>(params);
    if (work.num_steps == 0) return;
    mbarrier_arrive_expect_tx(&shared.bar_kv_full, 2 * sizeof(KV));
    tma_load_5d(&shared.k, maps.k, &shared.bar_kv_full, 0, work.first_key, 0, work.kv_head, work.batch);
    tma_load_5d(&shared.v, maps.v, &shared.bar_kv_full, 0, work.first_key, 0, work.kv_head, work.batch);
    for (int step = 0; step < work.num_steps; ++step, work.advance()) {
      const Workspace<HEAD_DIM> workspace(params, work.batch, work.head, work.m_tile);
      const int stage = step % NUM_STAGES;
      const int first_query = work.m_tile * BLOCK_M;
      uint64_t* const bar_q_full = shared.ring_q.producer_acquire(step, sizeof(Q) + sizeof(shared.lse[0]));
      tma_load_5d(&shared.q[stage], maps.q, bar_q_full, 0, first_query, 0, work.head, work.batch);
      bulk_load(shared.lse[stage], workspace.lse, sizeof(shared.lse[0]), bar_q_full);
      uint64_t* const bar_d_o_full =
          shared.ring_d_o.producer_acquire(step, sizeof(Q) + sizeof(shared.delta[0]));
      tma_load_5d(&shared.d_o[stage], maps.d_o, bar_d_o_full, 0, first_query, 0, work.head, work.batch);
      bulk_load(shared.delta[stage], workspace.delta, sizeof(shared.delta[0]), bar_d_o_full);
    }
    return;  // from here on, no __syncthreads
  }

  // Consumers.
  warpgroup_reg_alloc<CONSUMER_REGISTERS, REGISTERS_AT_LAUNCH>();
  Work work = work_of_cta<CAUSAL, BLOCK_M>(params);
  const int first_key = work.first_key;
  const int kv_len = work.kv_len;
  const int warpgroup = warp_id / 4;
  const int warpgroup_row = warpgroup * WARPGROUP_N;                // of the tile's keys
  const int warp_row = warpgroup_row + warp_id % 4 * 16;            // of the tile's keys
  const int key = first_key + warp_row + accumulator_row(lane_id);  // of this lane's first row
  const int acc_col = accumulator_col(lane_id);
  // Where this lane begins to store dS, and dK and dV.
  const int ds_offset = DS::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const int dkv_offset = KV::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const float scale = params.softmax_scale_log2;

  float acc_dk[1][D_TILES][4] = {}, acc_dv[1][D_TILES][4] = {};
  if (work.num_steps > 0) mbarrier_wait(&shared.bar_kv_full, 0);  // TMA has brought K and V

  // Rows at or beyond kv_len may hold NaN, and 0 * NaN is NaN. dQ = dS K sums over all keys of the tile, and
  // dS = P * (dP - D) of a key has its row of V in dP.
  if (work.num_steps > 0 && first_key + BLOCK_N > kv_len) {
    constexpr int CHUNK = 16 / sizeof(Element), CHUNKS = HEAD_DIM / CHUNK;
    for (int i = threadIdx.x; i < (first_key + BLOCK_N - kv_len) * CHUNKS; i += NUM_CONSUMERS) {
      const int offset = KV::offset_of(kv_len - first_key + i / CHUNKS, i % CHUNKS * CHUNK);
      store_16_bytes(shared.k.at(offset, 0, 0), uint4{});
      store_16_bytes(shared.v.at(offset, 0, 0), uint4{});
    }
    fence_proxy_async();         // wgmma sees what this thread has written
    bar_sync(1, NUM_CONSUMERS);  // the rows of all threads are zero
  }

  for (int step = 0; step < work.num_steps; ++step, work.advance()) {
    const int stage = step % NUM_STAGES;
    const int first_query = work.m_tile * BLOCK_M;

    // S^T = K Q^T.
    shared.ring_q.consumer_wait(step);  // TMA has brought Q and LSE
    float acc_s[1][S_TILES][4];
    warpgroup_arrive();
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += MMA_K) {
      wgmma_m64k16<Element>(wgmma_accumulator(acc_s), make_smem_descriptor(shared.k, warpgroup_row, d),
                            make_smem_descriptor(shared.q[stage], 0, d), d > 0);
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();  // S is complete

    // Of each key, columns before its first query are masked.
    const int last_key = first_key + warpgroup_row + WARPGROUP_N - 1;
    const bool needs_mask =
        last_key >= kv_len || params.template first_query<CAUSAL>(last_key, kv_len) > first_query;
    if (uniform(needs_mask)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int first_seen =
            key + r * 8 < kv_len
                ? params.template first_query<CAUSAL>(key + r * 8, kv_len) - first_query - acc_col
                : BLOCK_M;
#pragma unroll
        for (int i = 0; i < 2 * S_TILES; ++i) {
          if (i / 2 * MMA_N + i % 2 < first_seen) acc_s[0][i / 2][r * 2 + i % 2] = -INFINITY;
        }
      }
    }

    // P^T, rounded: the A operand of dV. A lane's columns are acc_col, acc_col + 1, acc_col + 8 and acc_col +
    // 9 of each 16, and the LSEs of these queries are four neighbours.
    uint32_t frag_p[BLOCK_M / MMA_K][4];
#pragma unroll
    for (int i = 0; i < BLOCK_M / MMA_K; ++i) {
      const float4 lse = *reinterpret_cast<const float4*>(&shared.lse[stage][i * 16 + acc_col * 2]);
      const auto p2 = [&](const float* s, float lse_0, float lse_1) {
        return pack2<Element>(exp2_approx(fmaf(s[0], scale, -lse_0)), exp2_approx(fmaf(s[1], scale, -lse_1)));
      };
      const float *left = acc_s[0][2 * i], *right = acc_s[0][2 * i + 1];
      frag_p[i][0] = p2(left, lse.x, lse.y);
      frag_p[i][1] = p2(left + 2, lse.x, lse.y);
      frag_p[i][2] = p2(right, lse.z, lse.w);
      frag_p[i][3] = p2(right + 2, lse.z, lse.w);
    }

    // dP^T = V dO^T.
    shared.ring_d_o.consumer_wait(step);  // TMA has brought dO and D
    float acc_dp[1][S_TILES][4];
    warpgroup_arrive();
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += MMA_K) {
      wgmma_m64k16<Element>(wgmma_accumulator(acc_dp), make_smem_descriptor(shared.v, warpgroup_row, d),
                            make_smem_descriptor(shared.d_o[stage], 0, d), d > 0);
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();  // dP is complete

    // dV += P^T dO. dO has a row per query, and B's N runs along it.
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < BLOCK_M / MMA_K; ++i) {
      wgmma_m64k16<Element, Major::kMN>(wgmma_accumulator(acc_dv), frag_p[i],
                                        make_smem_descriptor(shared.d_o[stage], i * MMA_K, 0), true);
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();  // wgmma has read dO and P

    // dS^T = P^T * (dP^T - D), rounded, to shared memory. Masked elements have P = 0.
    DS& ds = shared.ds[stage];
#pragma unroll
    for (int i = 0; i < BLOCK_M / MMA_K; ++i) {
      const float4 delta = *reinterpret_cast<const float4*>(&shared.delta[stage][i * 16 + acc_col * 2]);
      const auto ds2 = [&](uint32_t p, const float* dp, float delta_0, float delta_1) {
        const float2 p2 = unpack2<Element>(p);
        return pack2<Element>(p2.x * fmaf(dp[0], UNSCALE_P<Element>, -delta_0),
                              p2.y * fmaf(dp[1], UNSCALE_P<Element>, -delta_1));
      };
      const float *left = acc_dp[0][2 * i], *right = acc_dp[0][2 * i + 1];
      stmatrix_x4(
          ds.at(ds_offset, 0, i * 16),
          {ds2(frag_p[i][0], left, delta.x, delta.y), ds2(frag_p[i][1], left + 2, delta.x, delta.y),
           ds2(frag_p[i][2], right, delta.z, delta.w), ds2(frag_p[i][3], right + 2, delta.z, delta.w)});
    }
    shared.ring_d_o.warp_release(step, lane_id);
    fence_proxy_async();  // wgmma sees what this lane has written
    // Both warpgroups have written their keys' rows of dS. And both are done with dQ of the step before: the
    // next step may write to its dS.
    bar_sync(1, NUM_CONSUMERS);

    // dK += dS^T Q.
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < BLOCK_M / MMA_K; ++i) {
      wgmma_m64k16<Element, Major::kMN>(wgmma_accumulator(acc_dk),
                                        make_smem_descriptor(ds, warpgroup_row, i * MMA_K),
                                        make_smem_descriptor(shared.q[stage], i * MMA_K, 0), true);
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();  // wgmma has read Q
    shared.ring_q.warp_release(step, lane_id);

    // dQ = dS K, summed over all keys of the tile. dS has a row per key, too, so A's M runs along it. Each
    // warpgroup computes half of the tile: 64 of its columns, or 64 of its rows.
    constexpr bool SPLITS_COLUMNS = HEAD_DIM == 128;
    const int a_col = SPLITS_COLUMNS ? 0 : warpgroup * 64;
    const int b_col = SPLITS_COLUMNS ? warpgroup * 64 : 0;
    float acc_dq[1][DQ_TILES][4];
    warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < BLOCK_N; n += MMA_K) {
      wgmma_m64k16<Element, Major::kMN, Major::kMN>(wgmma_accumulator(acc_dq),
                                                    make_smem_descriptor(ds, n, a_col),
                                                    make_smem_descriptor(shared.k, n, b_col), n > 0);
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();  // dQ is complete
    float* const dq = Workspace<HEAD_DIM>(params, work.batch, work.head, work.m_tile).dq;
#pragma unroll
    for (int n = 0; n < DQ_TILES; ++n)
      atomic_add_4(&dq[Workspace<HEAD_DIM>::dq_offset(threadIdx.x, n)], acc_dq[0][n]);
  }

  // dK and dV, rounded, go where K and V were, to be stored by TMA.
  bar_sync(1, NUM_CONSUMERS);  // both warpgroups have computed dQ, which reads all of K
  const auto write = [&](KV& tile, const float(&acc)[1][D_TILES][4], float factor) {
#pragma unroll
    for (int n = 0; n < D_TILES; n += 2) {
      const float *left = acc[0][n], *right = acc[0][n + 1];
      stmatrix_x4(tile.at(dkv_offset, 0, n * MMA_N),
                  {scaled2<Element>(left, factor), scaled2<Element>(left + 2, factor),
                   scaled2<Element>(right, factor), scaled2<Element>(right + 2, factor)});
    }
  };
  write(shared.v, acc_dv, UNSCALE_P<Element>);
  write(shared.k, acc_dk, params.softmax_scale);
  fence_proxy_async();         // TMA sees what this lane has written
  bar_sync(1, NUM_CONSUMERS);  // dK and dV are complete
  if (threadIdx.x == 0) {      // rows beyond the end are left out
    tma_store_5d(maps.dv, &shared.v, 0, first_key, 0, work.kv_head, work.batch);
    tma_store_5d(maps.dk, &shared.k, 0, first_key, 0, work.kv_head, work.batch);
    tma_store_commit();
    tma_store_wait_read<0>();  // the CTA keeps its shared memory only until its last thread exits
  }
}

// ---- The third kernel: a CTA for each tile of queries

template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(ROWS_THREADS) finish_kernel(const BackwardParams<Element> params) {
  constexpr int BLOCK_M = block_m(HEAD_DIM);
  using Q = QTile<Element, HEAD_DIM>;
  auto& tile = *reinterpret_cast<Q*>(smem);
  const int m_tile = blockIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const float* const dq = Workspace<HEAD_DIM>(params, batch, head, m_tile).dq;

  // A thread takes what a thread of the second kernel has added.
  const int warpgroup = threadIdx.x / 128;
  const int lane_id = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 % 4 * 16 + (HEAD_DIM == 128 ? 0 : warpgroup * 64);
  const int first_col = HEAD_DIM == 128 ? warpgroup * 64 : 0;
  const int offset = Q::offset_of(warp_row + operand_row(lane_id), first_col + operand_col(lane_id));
  const float scale = params.softmax_scale;
#pragma unroll
  for (int n = 0; n < DQ_TILES; n += 2) {
    const auto sums = [&](int of) {
      return *reinterpret_cast<const float4*>(&dq[Workspace<HEAD_DIM>::dq_offset(threadIdx.x, of)]);
    };
    const float4 left = sums(n), right = sums(n + 1);
    stmatrix_x4(
        tile.at(offset, 0, n * MMA_N),
        {pack2<Element>(left.x * scale, left.y * scale), pack2<Element>(left.z * scale, left.w * scale),
         pack2<Element>(right.x * scale, right.y * scale), pack2<Element>(right.z * scale, right.w * scale)});
  }
  __syncthreads();  // the tile is complete
  const int first_query = m_tile * BLOCK_M;
  store_rows(tile, 0, min(BLOCK_M, params.seqlen_q - first_query),
             params.dq_head(batch, head) + first_query * params.dq.row_stride, params.dq.row_stride,
             threadIdx.x, ROWS_THREADS);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_backward(const BackwardParams<Element>& params, Stream stream) {
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  const BackwardMaps maps = {.q = make_tensor_map<Q>(params.q),
                             .k = make_tensor_map<KV>(params.k),
                             .v = make_tensor_map<KV>(params.v),
                             .d_o = make_tensor_map<Q>(params.d_o),
                             .dk = make_tensor_map<KV>(params.dk),
                             .dv = make_tensor_map<KV>(params.dv)};
  const dim3 query_tiles(ceil_div(params.seqlen_q, block_m(HEAD_DIM)), params.num_heads_q, params.batch);
  const dim3 key_tiles(ceil_div(params.seqlen_kv, BLOCK_N) * params.num_heads_kv * params.batch);
  launch(prepare_kernel<Element, HEAD_DIM>, query_tiles, dim3(ROWS_THREADS), 0, stream, params);
  launch(backward_kernel<Element, HEAD_DIM, CAUSAL>, key_tiles, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, maps);
  launch(finish_kernel<Element, HEAD_DIM>, query_tiles, dim3(ROWS_THREADS), sizeof(Q), stream, params);
}

constexpr StepInfo kStep = {
    .title = "The five products by wgmma, with scores transposed and dS in shared memory once",
    .removes = "operands that each warp loads for itself with ldmatrix, and mma.sync's limit",
    .part = Part::kBackward,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = workspace_bytes,
    .backward = true,
    .varies = "CTAs add to dQ in the order in which they get there",
};
REGISTER_STEP(launch_backward, kStep);

}  // namespace STEP_NAMESPACE
