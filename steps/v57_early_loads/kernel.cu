// v57: nothing stands among the wgmma of a product. A warp loads LSE before it starts S: in v56 ptxas puts
// these loads among the wgmma of dQ, and those behind them are started later. And it finishes P before it
// starts dP: in v56 ptxas puts most of the exponentials among the wgmma of dP.
#include "common/blocks/backward_rows.h"
#include "common/blocks/backward_tiles.h"
#include "common/blocks/ring.h"
#include "common/blocks/wgmma_products.h"
#include "common/bulk_copy.h"
#include "common/elect.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int NUM_STAGES = 2;  // of Q and dO, and of dS

// Warps of the last warpgroup.
constexpr int LOADER = kConsumerWarps;
constexpr int ADDER = kConsumerWarps + 1;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  using Tiles = BackwardTiles<Element, HEAD_DIM>;
  typename Tiles::KV k, v;  // in the end, dK and dV
  typename Tiles::Q q[NUM_STAGES], d_o[NUM_STAGES];
  typename Tiles::DS ds[NUM_STAGES];
  float dq[2][kDQHalf];                     // of each warpgroup
  float lse[NUM_STAGES][Tiles::BLOCK_M];    // comes with Q
  float delta[NUM_STAGES][Tiles::BLOCK_M];  // comes with dO
  uint64_t bar_kv_full;
  uint64_t bar_ds_full[NUM_STAGES];          // all warps have written their keys' rows of dS
  uint64_t bar_dq_full[2], bar_dq_empty[2];  // of each warpgroup: dQ is complete; it has been read
  Ring<NUM_STAGES> ring_q, ring_d_o;

  // A warp says that it has written its rows of dS, and whatever else it has written before its proxy fence.
  __device__ void ds_is_written(int stage, int lane_id) {
    __syncwarp();
    if (lane_id == 0) mbarrier_arrive(&bar_ds_full[stage]);
  }
};

template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(kRowsThreads) prepare_kernel(const BackwardParams<Element> params) {
  prepare_rows<HEAD_DIM>(params);
  clear_dq<HEAD_DIM>(params);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const BackwardParams<Element> params, const __grid_constant__ BackwardMaps maps) {
  using Tiles = BackwardTiles<Element, HEAD_DIM>;
  using Q = typename Tiles::Q;
  using KV = typename Tiles::KV;
  using Workspace = BackwardWorkspace<HEAD_DIM>;
  constexpr int BLOCK_M = Tiles::BLOCK_M;
  constexpr int D_TILES = HEAD_DIM / kAccumulatorCols;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int warp_id = uniform(int(threadIdx.x / 32));
  const int lane_id = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.bar_kv_full, 1);
    for (uint64_t& bar : shared.bar_ds_full) mbarrier_init(&bar, kConsumerWarps);
    for (int w = 0; w < 2; ++w) {
      mbarrier_init(&shared.bar_dq_full[w], 4);  // warps
      mbarrier_init(&shared.bar_dq_empty[w], 1);
    }
    shared.ring_q.init(kConsumerWarps);
    shared.ring_d_o.init(kConsumerWarps);
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  if (warp_id >= kConsumerWarps) {
    warpgroup_reg_dealloc<kProducerRegisters, kBackwardRegistersAtLaunch>();
    if (warp_id > ADDER) return;
    BackwardWork work = work_of_cta<CAUSAL, BLOCK_M>(params);
    if (work.num_steps == 0 || !elect_one()) return;
    if (warp_id == LOADER) {
      mbarrier_arrive_expect_tx(&shared.bar_kv_full, 2 * sizeof(KV));
      tma_load_5d(&shared.k, maps.k, &shared.bar_kv_full, 0, work.first_key, 0, work.kv_head, work.batch);
      tma_load_5d(&shared.v, maps.v, &shared.bar_kv_full, 0, work.first_key, 0, work.kv_head, work.batch);
      for (int step = 0; step < work.num_steps; ++step, work.advance()) {
        const Workspace workspace(params, work.batch, work.head, work.m_tile);
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
    }
    // The adder waits for no addition, only until the copy engine has read what it adds.
    if (warp_id == ADDER) {
      for (int step = 0; step < work.num_steps; ++step, work.advance()) {
        const Workspace workspace(params, work.batch, work.head, work.m_tile);
        for (int w = 0; w < 2; ++w) {
          mbarrier_wait(&shared.bar_dq_full[w], step % 2);  // warpgroup w has written its half of dQ
          bulk_add(&workspace.dq[w * kDQHalf], shared.dq[w], sizeof(shared.dq[w]));
          tma_store_commit();
        }
        tma_store_wait_read<1>();
        mbarrier_arrive(&shared.bar_dq_empty[0]);
        tma_store_wait_read<0>();
        mbarrier_arrive(&shared.bar_dq_empty[1]);
      }
    }
    return;  // from here on, no __syncthreads
  }

  // Consumers.
  warpgroup_reg_alloc<kConsumerRegisters, kBackwardRegistersAtLaunch>();
  BackwardWork work = work_of_cta<CAUSAL, BLOCK_M>(params);
  const int warpgroup = warp_id / 4;
  const int warpgroup_row = warpgroup * kWarpgroupN;  // of the tile's keys

  float acc_dk[1][D_TILES][4] = {}, acc_dv[1][D_TILES][4] = {};
  float acc_s[1][BLOCK_M / kAccumulatorCols][4], acc_dq[1][kDQTiles][4];
  // Starts dQ of step - 1, when both warpgroups have written dS of step - 1. Before they wrote it, each had
  // waited for its dQ of step - 2. So after this wait nobody reads dS of step - 2, and its place may be
  // overwritten.
  const auto start_dq_before = [&](int step) {
    const int stage = uniform(step % NUM_STAGES);
    mbarrier_wait(&shared.bar_ds_full[stage], step / NUM_STAGES % 2);
    start_dq(acc_dq, shared.ds[stage], shared.k, warpgroup);
  };
  // Writes it to shared memory, for the adder.
  const auto write_dq_before = [&](int step) {
    mbarrier_wait(&shared.bar_dq_empty[warpgroup], step % 2);  // the previous dQ has been read
    write_dq(shared.dq[warpgroup], acc_dq);
  };

  if (work.num_steps > 0) {
    mbarrier_wait(&shared.bar_kv_full, 0);  // TMA has brought K and V
    const int num_keys = work.kv_len - work.first_key;
    if (num_keys < kBlockN) clear_padding(shared.k, shared.v, num_keys);
    // No step is before the first one: its dS is zero, and its dQ is not added.
    clear_tile(shared.ds[0]);
    shared.ds_is_written(0, lane_id);

#pragma unroll 1
    for (int step = 0; step < work.num_steps; ++step, work.advance()) {
      const int stage = uniform(step % NUM_STAGES);
      const bool is_first = step == 0;

      // P while dQ of the step before runs.
      shared.ring_q.consumer_wait(step);  // TMA has brought Q and LSE
      float4 of_queries[BLOCK_M / 16];
      load_of_queries(of_queries, shared.lse[stage]);
      start_scores(acc_s, shared.k, warpgroup_row, shared.q[stage]);
      start_dq_before(step);
      wait_for<1>(acc_s);  // S is complete, and so is dK of the step before: wgmma has read its Q
      warpgroup_fence_operand(wgmma_accumulator(acc_dk));
      if (!is_first) shared.ring_q.warp_release(step - 1, lane_id);
      mask_transposed<CAUSAL>(acc_s, params, work, warpgroup_row);
      const auto p = make_p_transposed<Element>(acc_s, of_queries, params.softmax_scale_log2);
      // No exponential is left to stand among the wgmma of dP.
      finish_p(p);

      // dQ to shared memory while dP runs, and dS while dV runs, which has the registers of its operand until
      // it is complete.
      shared.ring_d_o.consumer_wait(step);  // TMA has brought dO and D
      start_scores(acc_s, shared.v, warpgroup_row, shared.d_o[stage]);
      const auto operand = p;
      start_dv(acc_dv, operand, shared.d_o[stage]);
      wait_for<2>(acc_dq);  // dQ is complete
      if (!is_first) write_dq_before(step);
      load_of_queries(of_queries, shared.delta[stage]);
      wait_for<1>(acc_s);  // dP is complete
      const int ds_stage = stage ^ 1;
      write_ds(shared.ds[ds_stage], p, acc_s, of_queries);
      fence_proxy_async();  // wgmma and the copy engine see what this lane has written
      shared.ds_is_written(ds_stage, lane_id);
      if (!is_first && lane_id == 0) mbarrier_arrive(&shared.bar_dq_full[warpgroup]);

      // dK, which the next step waits for.
      start_dk(acc_dk, shared.ds[ds_stage], warpgroup_row, shared.q[stage]);
      wait_for<1>(acc_dv);  // dV is complete: wgmma has read dO and P
      shared.ring_d_o.warp_release(step, lane_id);
    }

    // dQ of the last step.
    start_dq_before(work.num_steps);
    wait_for<0>(acc_dq);  // dK and dQ are complete
    warpgroup_fence_operand(wgmma_accumulator(acc_dk));
    write_dq_before(work.num_steps);
    fence_proxy_async();  // the copy engine sees what this lane has written
    __syncwarp();         // this warp's part of dQ is complete
    if (lane_id == 0) mbarrier_arrive(&shared.bar_dq_full[warpgroup]);
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
    tma_store_wait_read<0>();  // the CTA keeps its shared memory only until its last thread exits
  }
}

template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(kRowsThreads) finish_kernel(const BackwardParams<Element> params) {
  round_dq<HEAD_DIM>(params, *reinterpret_cast<typename BackwardTiles<Element, HEAD_DIM>::Q*>(smem));
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_backward(const BackwardParams<Element>& params, Stream stream) {
  using Tiles = BackwardTiles<Element, HEAD_DIM>;
  const dim3 query_tiles(ceil_div(params.seqlen_q, Tiles::BLOCK_M), params.num_heads_q, params.batch);
  const dim3 key_tiles(ceil_div(params.seqlen_kv, kBlockN) * params.num_heads_kv * params.batch);
  launch(prepare_kernel<Element, HEAD_DIM>, query_tiles, dim3(kRowsThreads), 0, stream, params);
  launch(backward_kernel<Element, HEAD_DIM, CAUSAL>, key_tiles, dim3(kBackwardThreads),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, make_backward_maps<Tiles>(params));
  launch(finish_kernel<Element, HEAD_DIM>, query_tiles, dim3(kRowsThreads), sizeof(typename Tiles::Q), stream,
         params);
}

constexpr StepInfo kStep = {
    .title = "LSE is loaded before S starts, and P is complete before dP starts",
    .removes = "loads and exponentials among the wgmma of a product",
    .part = Part::kBackward,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = backward_workspace_bytes,
    .backward = true,
    .varies = "CTAs add to dQ in the order in which they get there",
};
REGISTER_STEP(launch_backward, kStep);

}  // namespace STEP_NAMESPACE
