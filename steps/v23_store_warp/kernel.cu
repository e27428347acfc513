// v23: a warp of its own stores O, so that warpgroups need not wait for the store before they go on to the
// next tile of queries. The loader takes that tile's number from a counter that no second kernel resets.
#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/ring.h"
#include "common/blocks/tensor_maps.h"
#include "common/blocks/tile_order.h"
#include "common/blocks/uniform.h"
#include "common/blocks/wgmma_products.h"
#include "common/elect.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int NUM_WARPGROUPS = 2;  // that compute
constexpr int NUM_WARPS = 4 * NUM_WARPGROUPS;
constexpr int WARPGROUP_M = 64;                        // query rows per warpgroup: 16 for each of its warps
constexpr int BLOCK_M = NUM_WARPGROUPS * WARPGROUP_M;  // query rows per tile
constexpr int BLOCK_N = 128;                           // keys per tile
constexpr int Q_STAGES = 2;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;

constexpr int NUM_THREADS = 32 * NUM_WARPS + 128;
constexpr int REGISTERS_AT_LAUNCH = registers_at_launch(NUM_THREADS, 1);
constexpr int PRODUCER_REGISTERS = 40;
constexpr int CONSUMER_REGISTERS = 232;

template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, WARPGROUP_M, HEAD_DIM, 128>;  // a warpgroup's rows
template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  static constexpr int K_STAGES = HEAD_DIM == 64 ? 4 : 2, V_STAGES = K_STAGES + 1;  // V is held longer
  QTile<Element, HEAD_DIM> q[Q_STAGES][NUM_WARPGROUPS];                             // after the loop, O
  KVTile<Element, HEAD_DIM> k[K_STAGES], v[V_STAGES];
  Work work[Q_STAGES];  // what Q is of
  Ring<Q_STAGES> ring_q;
  uint64_t bar_o_full[Q_STAGES];  // O has been written to its place
  Ring<K_STAGES> ring_k;
  Ring<V_STAGES> ring_v;
};

// At least one, so that all tiles of queries are alike: without keys it is one of zeros, and masked.
__device__ inline int num_tiles_of(const KeyRange& keys) { return max(1, keys.num_tiles(BLOCK_N)); }

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     TileOrder order, int num_tiles) {
  using Q = QTile<Element, HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  using Shared = SharedStorage<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<Shared*>(smem);
  const int lane_id = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    shared.ring_q.init(1);  // who stores O
    for (uint64_t& bar : shared.bar_o_full) mbarrier_init(&bar, NUM_WARPS);
    shared.ring_k.init(NUM_WARPS);
    shared.ring_v.init(NUM_WARPS);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producers: a warp loads, another stores.
  RingCursor<Q_STAGES> at_q;
  RingCursor<Shared::K_STAGES> at_k;
  RingCursor<Shared::V_STAGES> at_v;
  if (threadIdx.x >= 32 * NUM_WARPS) {
    warpgroup_reg_dealloc<PRODUCER_REGISTERS, REGISTERS_AT_LAUNCH>();
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 32 - NUM_WARPS, 0);
    if (role > 1 || !elect_one()) return;
    for (; role == 1; at_q.advance()) {
      shared.ring_q.consumer_wait(at_q);  // it is known which tile this is
      const auto [first_query, head, batch, kv_len] = shared.work[at_q.stage];
      if (batch == kNoMore) return;
      mbarrier_wait(&shared.bar_o_full[at_q.stage], at_q.phase);
      for (int w = 0; w < NUM_WARPGROUPS; ++w)  // rows beyond the end are left out
        tma_store_5d(maps.o, &shared.q[at_q.stage][w], 0, first_query + w * WARPGROUP_M, 0, head, batch);
      tma_store_commit();
      tma_store_wait_read<0>();  // the place of Q is free
      shared.ring_q.consumer_release(at_q);
    }

    int index = blockIdx.x;
    Work work = work_of<BLOCK_M>(params, index, order, num_tiles);
    for (;; at_q.advance()) {
      shared.ring_q.producer_wait(at_q);
      const auto [first_query, head, batch, kv_len] = work;
      shared.work[at_q.stage] = work;
      uint64_t* const bar_q_full = shared.ring_q.producer_announce(at_q, batch < 0 ? 0 : sizeof(shared.q[0]));
      if (batch == kNoMore) return;
      for (int w = 0; w < NUM_WARPGROUPS; ++w)
        tma_load_5d(&shared.q[at_q.stage][w], maps.q, bar_q_full, 0, first_query + w * WARPGROUP_M, 0, head,
                    batch);
      const KeyRange keys = key_range_within<CAUSAL>(params, kv_len, first_query, BLOCK_M);
      const int kv_head = params.kv_head(head), num_kv_tiles = num_tiles_of(keys);
      // Late: a tile that is fetched early is taken from a CTA that is free sooner. But in time.
      const int fetch_at = num_kv_tiles > 512 / BLOCK_N ? num_kv_tiles - 2 : 0;
#pragma unroll 1
      for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
        const int first_key = keys.first_key(kv_tile, BLOCK_N);
        uint64_t* const bar_k_full = shared.ring_k.producer_acquire(at_k, sizeof(KV));
        tma_load_5d(&shared.k[at_k.stage], maps.k, bar_k_full, 0, first_key, 0, kv_head, batch);
        uint64_t* const bar_v_full = shared.ring_v.producer_acquire(at_v, sizeof(KV));
        tma_load_5d(&shared.v[at_v.stage], maps.v, bar_v_full, 0, first_key, 0, kv_head, batch);
        at_k.advance();
        at_v.advance();
        if (kv_tile == fetch_at) {
          // The counter is 0 again after num_tiles fetches: as many as there are tiles, one while each loads.
          index = gridDim.x + (CAUSAL ? atomicInc(params.counters, num_tiles - 1)
                                      : index);  // without a mask all tiles are alike
          work = work_of<BLOCK_M>(params, index, order, num_tiles);
        }
      }
    }
  }

  // Consumers.
  warpgroup_reg_alloc<CONSUMER_REGISTERS, REGISTERS_AT_LAUNCH>();
  const int warpgroup = uniform(int(threadIdx.x / 128));
  const int warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's rows
  const int acc_row = opaque(warp_row + accumulator_row(lane_id));
  const int acc_col = accumulator_col(lane_id);
  const int o_offset = Q::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const float scale = params.softmax_scale_log2;

  // Of the rows acc_row + r * 8.
  float row_base[1][2];   // what P is relative to: a maximum so far, scaled
  float row_sum[1][2];    // of this lane's columns only: the lanes' sums are added after the loop
  float row_scale[1][2];  // that O needs when its base changes
  float acc_o[1][HEAD_DIM / MMA_N][4], acc_s[1][BLOCK_N / MMA_N][4];
  uint32_t frag_p[BLOCK_N / MMA_K][1][4];

  int kv_tile;        // of S
  int num_own_tiles;  // that some of this warpgroup's rows see
  int first_masked;   // that not all of these rows see whole
  const auto first_query_of = [&](const Work& work) { return work.first_query + warpgroup * WARPGROUP_M; };
  const auto begin_tile = [&] {  // of queries; false if there is none
    shared.ring_q.consumer_wait(at_q);
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), WARPGROUP_M);
    kv_tile = 0;
    num_own_tiles = num_tiles_of(keys);
    first_masked = keys.unmasked_end / BLOCK_N;
    row_base[0][0] = row_base[0][1] = -INFINITY;
    row_sum[0][0] = row_sum[0][1] = 0.0f;
    return true;
  };
  const auto check_base = [&] {  // Does it change?
    const bool needs_mask = kv_tile >= first_masked;
    const float growth = growth_bound(acc_s, row_base, scale);
    if (!uniform(needs_mask || growth > kMaxGrowth)) return false;
    if (needs_mask) {
      const Work work = shared.work[at_q.stage];
      mask_tile<CAUSAL, BLOCK_N>(acc_s, params, work.kv_len, kv_tile, first_query_of(work) + acc_row,
                                 acc_col);
    }
    change_base(acc_s, scale, row_base, row_sum, row_scale);
    return true;
  };
  // A warpgroup releases tiles of keys beyond its diagonal unread, when they have come.
  const auto skip_unseen = [&] {
    const Work work = shared.work[at_q.stage];
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, BLOCK_M);
#pragma unroll 1
    for (int unseen = num_tiles_of(keys) - num_own_tiles; uniform(unseen > 0); --unseen) {
      shared.ring_k.consumer_wait(at_k);
      shared.ring_k.warp_release(at_k, lane_id);
      at_k.advance();
      shared.ring_v.consumer_wait(at_v);
      shared.ring_v.warp_release(at_v, lane_id);
      at_v.advance();
    }
  };
  // O, rounded, goes where the tile's Q was.
  const auto write_o = [&] {
    const Work work = shared.work[at_q.stage];
    finish_rows(params, work.batch, work.head, first_query_of(work) + acc_row, lane_id, row_base, row_sum);
    stmatrix_normalised(shared.q[at_q.stage][warpgroup], opaque(o_offset), acc_o, row_sum);
    fence_proxy_async();  // makes what this lane has written visible to TMA
    __syncwarp();
    if (lane_id == 0) mbarrier_arrive(&shared.bar_o_full[at_q.stage]);
  };

  for (; begin_tile(); at_q.advance()) {
    const SmemDescriptor q = make_smem_descriptor(shared.q[at_q.stage][warpgroup]);
    // S and P of the first tile of keys.
    shared.ring_k.consumer_wait(at_k);
    start_qk<Q, KV>(acc_s, q, make_smem_descriptor(shared.k[at_k.stage]));
    wait_for<0>(acc_s);
    shared.ring_k.warp_release(at_k, lane_id);
    at_k.advance();
    check_base();
    exponentiate(acc_s, scale, row_base, row_sum);
    pack_p<Element>(frag_p, acc_s);

    // S and P of a tile of keys, while P V of the tile before runs.
    bool first = true;  // Is P the first? Then P V overwrites O.
#pragma unroll 1
    while (uniform(++kv_tile < num_own_tiles)) {
      shared.ring_k.consumer_wait(at_k);
      start_qk<Q, KV>(acc_s, q, make_smem_descriptor(shared.k[at_k.stage]));
      shared.ring_v.consumer_wait(at_v);
      start_pv<KV>(acc_o, frag_p, make_smem_descriptor(shared.v[at_v.stage]), first);
      first = false;
      wait_for<1>(acc_s);
      shared.ring_k.warp_release(at_k, lane_id);
      at_k.advance();
      const bool changes = check_base();
      exponentiate(acc_s, scale, row_base, row_sum);
      warpgroup_fence_operand(wgmma_accumulator(acc_s));  // all of this before the wait
      wait_for<0>(acc_o);
      shared.ring_v.warp_release(at_v, lane_id);
      at_v.advance();
      pack_p<Element>(frag_p, acc_s);
      if (changes) scale_rows(acc_o, row_scale);
    }

    // P V of the last tile of keys.
    shared.ring_v.consumer_wait(at_v);
    start_pv<KV>(acc_o, frag_p, make_smem_descriptor(shared.v[at_v.stage]), first);
    wait_for<0>(acc_o);
    shared.ring_v.warp_release(at_v, lane_id);
    at_v.advance();
    if constexpr (CAUSAL) skip_unseen();
    write_o();
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const int num_tiles = ceil_div(params.seqlen_q, BLOCK_M) * params.num_heads_q * params.batch;
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, dim3(min(num_tiles, num_sms())), dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params,
         make_tensor_maps<QTile<Element, HEAD_DIM>, KVTile<Element, HEAD_DIM>>(params),
         tile_order<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "A warp of its own stores O while the others begin the next tile of queries",
    .removes = "waits for the store of O, and a second kernel",
    .part = Part::kHopper,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .uses_counters = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
