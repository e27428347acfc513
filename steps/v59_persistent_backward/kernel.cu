// v59: a CTA stays on its SM and takes one tile of keys after the other. While its warpgroups end a tile, one
// warp brings the first queries of the next one, and the adders still wait for their turns. The warp that
// loads K and V also draws the numbers that v58's CTAs drew when they started. In each CTA they rise. So a
// CTA still waits only for lower numbers, and the kernel ends.
#include <algorithm>

#include "common/atomic_acq_rel.h"
#include "common/blocks/backward_rows.h"
#include "common/blocks/backward_tiles.h"
#include "common/blocks/ring.h"
#include "common/blocks/wgmma_products.h"
#include "common/bulk_copy.h"
#include "common/elect.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int NUM_STAGES = 2;  // of Q and dO, and of dS

constexpr int NUM_ADDERS = 2;

// Warps of the last warpgroup.
constexpr int KEY_LOADER = kConsumerWarps;  // of K and V
constexpr int QUERY_LOADER = kConsumerWarps + 1;
constexpr int FIRST_ADDER = kConsumerWarps + 2;

// Heads of K and V that alternate in the order of work: each has a first tile of keys, then each has a second
// one, and so on. With 16 heads and 132 SMs about eight CTAs of each head run at the same time, and the last
// of these waits for seven others before its first addition. With more heads it would wait less. But each CTA
// reads all of its head's Q and dO, and adds to all of its dQ: those of the group should fit L2.
constexpr int MAX_HEADS_IN_GROUP = 16;
constexpr int64_t L2_BYTES = 48 << 20;  // an H100 has 50 MB, an H200 60

template <int HEAD_DIM, typename Element>
int heads_in_group(const BackwardParams<Element>& params) {
  const int64_t rows = int64_t(params.num_heads_q / params.num_heads_kv) * params.seqlen_q;
  const int64_t bytes_of_head = rows * HEAD_DIM * (2 * sizeof(Element) + sizeof(float));
  return int(std::clamp<int64_t>(L2_BYTES / std::max<int64_t>(bytes_of_head, 1), 1, MAX_HEADS_IN_GROUP));
}

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  using Tiles = BackwardTiles<Element, HEAD_DIM>;
  typename Tiles::KV k, v;  // in the end, dK and dV
  typename Tiles::Q q[NUM_STAGES], d_o[NUM_STAGES];
  typename Tiles::DS ds[NUM_STAGES];
  float dq[NUM_ADDERS][2][kDQHalf];         // of each warpgroup
  float lse[NUM_STAGES][Tiles::BLOCK_M];    // comes with Q
  float delta[NUM_STAGES][Tiles::BLOCK_M];  // comes with dO
  uint64_t bar_kv_full, bar_kv_empty;
  uint64_t bar_ds_full[NUM_STAGES];  // all warps have written their keys' rows of dS
  // Of each adder and warpgroup: dQ is complete; it has been read.
  uint64_t bar_dq_full[NUM_ADDERS][2], bar_dq_empty[NUM_ADDERS][2];
  Ring<NUM_STAGES> ring_q, ring_d_o;
  Ring<1> ring_number;
  int number;  // of the CTA's tile of keys

  // A warp says that it has written its rows of dS, and whatever else it has written before its proxy fence.
  __device__ void ds_is_written(int stage, int lane_id) {
    __syncwarp();
    if (lane_id == 0) mbarrier_arrive(&bar_ds_full[stage]);
  }
};

// Of each tile of queries: how many CTAs have added to its dQ. And behind these, how many tiles of keys have
// been taken. They lie behind LSE and D, where D of one more batch would begin.
template <int HEAD_DIM>
struct Counters {
  unsigned *num_added, *num_taken;

  template <typename Element>
  __device__ Counters(const BackwardParams<Element>& params, int batch, int head, int m_tile) {
    const int num_m_tiles = ceil_div(params.seqlen_q, backward_block_m(HEAD_DIM));
    unsigned* const all =
        reinterpret_cast<unsigned*>(BackwardWorkspace<HEAD_DIM>(params, params.batch, 0, 0).delta);
    num_added = all + (int64_t(batch) * params.num_heads_q + head) * num_m_tiles + m_tile;
    num_taken = all + int64_t(params.batch) * params.num_heads_q * num_m_tiles;
  }
};

size_t workspace_bytes(const AttentionCall& call) {
  const int num_m_tiles = ceil_div(call.seqlen_q, backward_block_m(call.head_dim));
  return backward_workspace_bytes(call) +
         (size_t(call.batch) * call.num_heads_q * num_m_tiles + 1) * sizeof(unsigned);
}

// Of a head, tiles with earlier keys have lower numbers. A tile's queries come in descending order. So under
// a causal mask, too, all CTAs of a head begin with the same queries, and the tiles with the most of them are
// taken first.
struct Work : BackwardWork {
  int turn;  // how many CTAs add to the tiles before this one

  __device__ void advance() {
    if (--m_tile >= first_m_tile) return;
    m_tile = num_m_tiles - 1;
    ++head;
  }
};
template <bool CAUSAL, int BLOCK_M, typename Element>
__device__ Work work_of_number(const BackwardParams<Element>& params, int heads_in_group, int number) {
  const int num_n_tiles = ceil_div(params.seqlen_kv, kBlockN);
  const int group_head = number / (heads_in_group * num_n_tiles) * heads_in_group;
  const int num_heads = min(heads_in_group, params.batch * params.num_heads_kv - group_head);
  const int in_group = number - group_head * num_n_tiles;
  const int n_tile = uniform(in_group / num_heads);
  Work work{work_of_tile<CAUSAL, BLOCK_M>(params, n_tile, group_head + in_group % num_heads), n_tile};
  work.m_tile = work.num_m_tiles - 1;
  return work;
}

template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(kRowsThreads) prepare_kernel(const BackwardParams<Element> params) {
  prepare_rows<HEAD_DIM>(params);
  if (threadIdx.x > 0) return;
  const Counters<HEAD_DIM> counters(params, blockIdx.z, blockIdx.y, blockIdx.x);
  *counters.num_added = 0;
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) *counters.num_taken = 0;
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const BackwardParams<Element> params, const __grid_constant__ BackwardMaps maps,
                    int num_tiles, int heads_in_group) {
  using Tiles = BackwardTiles<Element, HEAD_DIM>;
  using Q = typename Tiles::Q;
  using KV = typename Tiles::KV;
  using Workspace = BackwardWorkspace<HEAD_DIM>;
  constexpr int BLOCK_M = Tiles::BLOCK_M;
  constexpr int D_TILES = HEAD_DIM / kAccumulatorCols;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int warp_id = uniform(int(threadIdx.x / 32));
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_kv_full, 1);
    mbarrier_init(&shared.bar_kv_empty, 1);
    for (uint64_t& bar : shared.bar_ds_full) mbarrier_init(&bar, kConsumerWarps);
    for (int i = 0; i < NUM_ADDERS * 2; ++i) {
      mbarrier_init(&shared.bar_dq_full[i / 2][i % 2], 4);  // warps
      mbarrier_init(&shared.bar_dq_empty[i / 2][i % 2], 1);
    }
    shared.ring_q.init(kConsumerWarps);
    shared.ring_d_o.init(kConsumerWarps);
    shared.ring_number.init(2 + NUM_ADDERS + kConsumerWarps);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  if (warp_id >= kConsumerWarps) {
    warpgroup_reg_dealloc<kProducerRegisters, kBackwardRegistersAtLaunch>();
    for (int i = 0, step = 0;; ++i) {
      if (warp_id == KEY_LOADER && elect_one()) {
        shared.ring_number.producer_wait(i);  // all warps have read the number before
        shared.number = int(atomicAdd(Counters<HEAD_DIM>(params, 0, 0, 0).num_taken, 1u));
        mbarrier_arrive(&shared.ring_number.bar_full[0]);
      }
      shared.ring_number.consumer_wait(i);
      const int number = uniform(shared.number);
      __syncwarp();  // all lanes have read it, before one of them says so
      if (number >= num_tiles) return;
      Work work = work_of_number<CAUSAL, BLOCK_M>(params, heads_in_group, number);
      const int end_step = step + work.num_steps;
      if (warp_id == KEY_LOADER && elect_one()) {
        shared.ring_number.consumer_release(i);
        mbarrier_wait(&shared.bar_kv_empty, i % 2 ^ 1);  // dK and dV of the tile before have been read
        mbarrier_arrive_expect_tx(&shared.bar_kv_full, 2 * sizeof(KV));
        tma_load_5d(&shared.k, maps.k, &shared.bar_kv_full, 0, work.first_key, 0, work.kv_head, work.batch);
        tma_load_5d(&shared.v, maps.v, &shared.bar_kv_full, 0, work.first_key, 0, work.kv_head, work.batch);
      }
      if (warp_id == QUERY_LOADER && elect_one()) {
        for (; step < end_step; ++step, work.advance()) {
          const Workspace workspace(params, work.batch, work.head, work.m_tile);
          const int stage = step % NUM_STAGES;
          const int first_query = work.m_tile * BLOCK_M;
          uint64_t* const bar_q_full =
              shared.ring_q.producer_acquire(step, sizeof(Q) + sizeof(shared.lse[0]));
          tma_load_5d(&shared.q[stage], maps.q, bar_q_full, 0, first_query, 0, work.head, work.batch);
          bulk_load(shared.lse[stage], workspace.lse, sizeof(shared.lse[0]), bar_q_full);
          uint64_t* const bar_d_o_full =
              shared.ring_d_o.producer_acquire(step, sizeof(Q) + sizeof(shared.delta[0]));
          tma_load_5d(&shared.d_o[stage], maps.d_o, bar_d_o_full, 0, first_query, 0, work.head, work.batch);
          bulk_load(shared.delta[stage], workspace.delta, sizeof(shared.delta[0]), bar_d_o_full);
        }
        shared.ring_number.consumer_release(i);  // not before: another CTA may be free earlier
      }
      if (warp_id >= FIRST_ADDER && elect_one()) {
        shared.ring_number.consumer_release(i);
        const int adder = warp_id - FIRST_ADDER;
        for (; step < end_step; ++step, work.advance()) {
          if (step % NUM_ADDERS != adder) continue;
          float* const dq = Workspace(params, work.batch, work.head, work.m_tile).dq;
          unsigned* const num_added =
              Counters<HEAD_DIM>(params, work.batch, work.head, work.m_tile).num_added;
          while (load_acquire(num_added) != unsigned(work.turn)) {
          }
          fence_proxy_async_global();  // the additions of other CTAs come before this one's
          for (int w = 0; w < 2; ++w) {
            const float* const sums = shared.dq[adder][w];
            mbarrier_wait(&shared.bar_dq_full[adder][w], step / NUM_ADDERS % 2);  // warpgroup w wrote it
            if (work.turn == 0)
              bulk_store(&dq[w * kDQHalf], sums, sizeof(shared.dq[adder][w]));
            else
              bulk_add(&dq[w * kDQHalf], sums, sizeof(shared.dq[adder][w]));
            tma_store_commit();
          }
          tma_store_wait_read<1>();
          mbarrier_arrive(&shared.bar_dq_empty[adder][0]);
          tma_store_wait_read<0>();
          mbarrier_arrive(&shared.bar_dq_empty[adder][1]);
          bulk_wait<0>();              // the sums are in global memory
          fence_proxy_async_global();  // and come before what the next CTA adds
          atomic_add_acq_rel(num_added, 1);
        }
      }
      step = end_step;
    }
  }

  // Consumers.
  warpgroup_reg_alloc<kConsumerRegisters, kBackwardRegistersAtLaunch>();
  const int warpgroup = warp_id / 4;
  const int warpgroup_row = warpgroup * kWarpgroupN;  // of the tile's keys

  float acc_s[1][BLOCK_M / kAccumulatorCols][4], acc_dq[1][kDQTiles][4];
  // Starts dQ of step - 1, when both warpgroups have written dS of step - 1. Before they wrote it, each had
  // waited for its dQ of step - 2. So after this wait nobody reads dS of step - 2, and its place may be
  // overwritten.
  const auto start_dq_before = [&](int step, int stage) {
    mbarrier_wait(&shared.bar_ds_full[stage], step / NUM_STAGES % 2);
    start_dq(acc_dq, shared.ds[stage], shared.k, warpgroup);
  };
  // Writes it to shared memory, for an adder.
  const auto write_dq_before = [&](int step, int adder) {
    // This adder's previous dQ has been read.
    mbarrier_wait(&shared.bar_dq_empty[adder][warpgroup], (step - 1) / NUM_ADDERS % 2 ^ 1);
    write_dq(shared.dq[adder][warpgroup], acc_dq);
  };
  // Says so, after a proxy fence and a barrier of the warp.
  const auto hand_over_dq_before = [&](int adder) {
    if (own_lane() == 0) mbarrier_arrive(&shared.bar_dq_full[adder][warpgroup]);
  };

  // Steps are counted over all tiles of keys. In the first step of a tile, dQ of the step before is computed
  // once more, with the new K, and dropped. Of the CTA's first step, there is no step before: dS is zero.
  int step = 0;
  clear_tile(shared.ds[0]);
  shared.ds_is_written(0, own_lane());

#pragma unroll 1
  for (int i = 0;; ++i) {
    shared.ring_number.consumer_wait(i);
    const int number = uniform(shared.number);
    if (number >= num_tiles) break;
    Work work = work_of_number<CAUSAL, BLOCK_M>(params, heads_in_group, number);
    shared.ring_number.warp_release(i, own_lane());
    const int first_step = uniform(step), end_step = uniform(step + work.num_steps);
    float acc_dk[1][D_TILES][4] = {}, acc_dv[1][D_TILES][4] = {};
    mbarrier_wait(&shared.bar_kv_full, i % 2);  // TMA has brought K and V

    if (work.num_steps > 0) {
      const int num_keys = work.kv_len - work.first_key;
      if (num_keys < kBlockN) clear_padding(shared.k, shared.v, num_keys);

#pragma unroll 1
      for (; step < end_step; ++step, work.advance()) {
        const int stage = uniform(step % NUM_STAGES);
        const bool is_first = step == first_step;

        // P while dQ of the step before runs.
        shared.ring_q.consumer_wait(step);  // TMA has brought Q and LSE
        float4 of_queries[BLOCK_M / 16];
        load_of_queries(of_queries, shared.lse[stage]);
        start_scores(acc_s, shared.k, warpgroup_row, shared.q[stage]);
        start_dq_before(step, stage);
        wait_for<1>(acc_s);  // S is complete, and so is dK of the step before: wgmma has read its Q
        warpgroup_fence_operand(wgmma_accumulator(acc_dk));
        if (!is_first) shared.ring_q.warp_release(step - 1, own_lane());
        mask_transposed<CAUSAL>(acc_s, params, work, warpgroup_row);
        const auto p = make_p_transposed<Element>(acc_s, of_queries, params.softmax_scale_log2);
        finish_p(p);

        // dQ to shared memory while dP runs, and dS while dV runs, which has the registers of its operand
        // until it is complete.
        shared.ring_d_o.consumer_wait(step);  // TMA has brought dO and D
        start_scores(acc_s, shared.v, warpgroup_row, shared.d_o[stage]);
        const auto operand = p;
        start_dv(acc_dv, operand, shared.d_o[stage]);
        wait_for<2>(acc_dq);  // dQ is complete
        if (!is_first) write_dq_before(step, stage ^ 1);
        load_of_queries(of_queries, shared.delta[stage]);
        wait_for<1>(acc_s);  // dP is complete
        const int ds_stage = stage ^ 1;
        write_ds(shared.ds[ds_stage], p, acc_s, of_queries);
        fence_proxy_async();  // wgmma and the copy engine see what this lane has written
        shared.ds_is_written(ds_stage, own_lane());
        if (!is_first) hand_over_dq_before(stage ^ 1);

        // dK, which the next step waits for.
        start_dk(acc_dk, shared.ds[ds_stage], warpgroup_row, shared.q[stage]);
        wait_for<1>(acc_dv);  // dV is complete: wgmma has read dO and P
        shared.ring_d_o.warp_release(step, own_lane());
      }

      // dQ of the last step.
      const int stage = uniform(step % NUM_STAGES);
      start_dq_before(step, stage);
      wait_for<0>(acc_dq);  // dK and dQ are complete
      warpgroup_fence_operand(wgmma_accumulator(acc_dk));
      shared.ring_q.warp_release(step - 1, own_lane());
      write_dq_before(step, stage ^ 1);
      fence_proxy_async();  // the copy engine sees what this lane has written
      __syncwarp();         // this warp's part of dQ is complete
      hand_over_dq_before(stage ^ 1);
    }

    // dK and dV, rounded, go where K and V were, to be stored by TMA.
    bar_sync(1, kConsumerThreads);  // both warpgroups have computed dQ, which reads all of K
    write_gradient(shared.v, acc_dv, kUnscaleP<Element>);
    write_gradient(shared.k, acc_dk, params.softmax_scale);
    fence_proxy_async();            // TMA sees what this lane has written
    bar_sync(1, kConsumerThreads);  // dK and dV are complete
    if (threadIdx.x == 0) {         // rows beyond the end are left out
      tma_store_5d(maps.dv, &shared.v, 0, work.first_key, 0, work.kv_head, work.batch);
      tma_store_5d(maps.dk, &shared.k, 0, work.first_key, 0, work.kv_head, work.batch);
      tma_store_commit();
      tma_store_wait_read<0>();
      mbarrier_arrive(&shared.bar_kv_empty);  // the next K and V may come
    }
  }
}

template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(kRowsThreads) finish_kernel(const BackwardParams<Element> params) {
  const Counters<HEAD_DIM> counters(params, blockIdx.z, blockIdx.y, blockIdx.x);
  auto& tile = *reinterpret_cast<typename BackwardTiles<Element, HEAD_DIM>::Q*>(smem);
  round_dq<HEAD_DIM>(params, tile, *counters.num_added > 0);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_backward(const BackwardParams<Element>& params, Stream stream) {
  using Tiles = BackwardTiles<Element, HEAD_DIM>;
  const dim3 query_tiles(ceil_div(params.seqlen_q, Tiles::BLOCK_M), params.num_heads_q, params.batch);
  const int num_tiles = ceil_div(params.seqlen_kv, kBlockN) * params.num_heads_kv * params.batch;
  launch(prepare_kernel<Element, HEAD_DIM>, query_tiles, dim3(kRowsThreads), 0, stream, params);
  launch(backward_kernel<Element, HEAD_DIM, CAUSAL>, dim3(min(num_tiles, num_sms())), dim3(kBackwardThreads),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, make_backward_maps<Tiles>(params),
         num_tiles, heads_in_group<HEAD_DIM>(params));
  launch(finish_kernel<Element, HEAD_DIM>, query_tiles, dim3(kRowsThreads), sizeof(typename Tiles::Q), stream,
         params);
}

constexpr StepInfo kStep = {
    .title = "A CTA stays on its SM and takes one tile of keys after the other",
    .removes = "the time between two tiles of keys, in which an SM computes nothing",
    .part = Part::kBackward,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = workspace_bytes,
    .backward = true,
};
REGISTER_STEP(launch_backward, kStep);

}  // namespace STEP_NAMESPACE
