// v24: warpgroups take turns at the tensor cores, so that one multiplies while another computes exponentials.
// The shape of the problem decides how many they are, and how many tiles of queries a CTA has at a time.
#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tensor_maps.h"
#include "common/blocks/tile_order.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/uniform.h"
#include "common/blocks/wgmma_products.h"
#include "common/elect.h"
#include "common/named_barrier.h"
#include "common/setmaxnreg.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int MMA_N = 8;
constexpr int MMA_K = 16;

template <typename Element, bool CAUSAL, typename C>
__global__ void __launch_bounds__(C::NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     TileOrder order, int num_tiles) {
  constexpr int BLOCK_N = C::BLOCK_N, NUM_WARPGROUPS = C::NUM_WARPGROUPS;
  using Q = typename PipelineStorage<Element, C>::Q;
  using KV = typename PipelineStorage<Element, C>::KV;
  const auto pipelines = reinterpret_cast<PipelineStorage<Element, C>*>(smem);
  const int lane_id = threadIdx.x % 32;
  if (threadIdx.x < C::PIPELINES) {
    pipelines[threadIdx.x].init();
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers are initialised

  // Producers: a warp of each pipeline loads, another stores.
  if (threadIdx.x >= C::CONSUMERS * 128) {
    warpgroup_reg_dealloc<C::PRODUCER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
    const int role = uniform(int(threadIdx.x / 32)) - C::CONSUMERS * 4;
    if (role >= 2 * C::PIPELINES || !elect_one()) return;
    auto& shared = pipelines[role % C::PIPELINES];
    if (role >= C::PIPELINES) return store_tiles(shared, maps.o);
    return load_tiles<CAUSAL>(shared, params, maps, order, num_tiles, blockIdx.x * C::PIPELINES + role);
  }

  // Consumers.
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  const int consumer = uniform(int(threadIdx.x / 128));
  const int warpgroup = consumer % NUM_WARPGROUPS;  // of the pipeline
  auto& shared = pipelines[consumer / NUM_WARPGROUPS];
  const int warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's rows
  const int acc_row = opaque(warp_row + accumulator_row(lane_id));
  const int acc_col = accumulator_col(lane_id);
  const int o_offset = Q::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const float scale = params.softmax_scale_log2;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  // Of the rows acc_row + r * 8.
  float row_base[1][2];   // what P is relative to: a maximum so far, scaled
  float row_sum[1][2];    // of this lane's columns only: the lanes' sums are added after the loop
  float row_scale[1][2];  // that O needs when its base changes
  float acc_o[1][C::HEAD_DIM / MMA_N][4], acc_s[1][BLOCK_N / MMA_N][4];
  uint32_t frag_p[BLOCK_N / MMA_K][1][4];

  int kv_tile;        // of S
  int num_own_tiles;  // that some of this warpgroup's rows see
  int first_masked;   // that not all of these rows see whole
  const auto first_query_of = [&](const Work& work) { return work.first_query + warpgroup * kWarpgroupM; };
  const auto begin_tile = [&] {  // of queries; false if there is none
    shared.ring_q.consumer_wait(at_q);
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = 0;
    num_own_tiles = num_key_tiles<BLOCK_N>(keys);
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
  // O, rounded, goes where the tile's Q was.
  const auto write_o = [&] {
    const Work work = shared.work[at_q.stage];
    finish_rows(params, work.batch, work.head, first_query_of(work) + acc_row, lane_id, row_base, row_sum);
    stmatrix_normalised(shared.q[at_q.stage][warpgroup], opaque(o_offset), acc_o, row_sum);
    fence_proxy_async();  // makes what this lane has written visible to TMA
    shared.o_is_written(at_q.stage, lane_id);
  };

  // A pipeline's warpgroups take turns at the tensor cores, each as many, whatever it does with them. A
  // barrier of each says that it is its turn: it waits there, and the one before it arrives.
  const int next = consumer - warpgroup + (warpgroup + 1) % NUM_WARPGROUPS;
  const auto begin_turn = [&] {
    if constexpr (C::TAKES_TURNS) bar_sync(1 + consumer, 2 * 128);
  };
  const auto end_turn = [&] {
    if constexpr (C::TAKES_TURNS) bar_arrive(1 + next, 2 * 128);
  };

  // A warpgroup releases tiles of keys beyond its diagonal unread, when they have come.
  const auto skip_unseen = [&] {
    const Work work = shared.work[at_q.stage];
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
#pragma unroll 1
    for (int unseen = num_key_tiles<BLOCK_N>(keys) - num_own_tiles; uniform(unseen > 0); --unseen) {
      begin_turn();
      end_turn();
      shared.ring_k.consumer_wait(at_k);
      shared.ring_k.warp_release(at_k, lane_id);
      at_k.advance();
      shared.ring_v.consumer_wait(at_v);
      shared.ring_v.warp_release(at_v, lane_id);
      at_v.advance();
    }
  };

  if (warpgroup == NUM_WARPGROUPS - 1) end_turn();  // the first turn is warpgroup 0's
  for (; begin_tile(); at_q.advance()) {
    // S and P of the first tile of keys.
    shared.ring_k.consumer_wait(at_k);
    start_qk<Q, KV>(acc_s, make_smem_descriptor(shared.q[at_q.stage][warpgroup]),
                    make_smem_descriptor(shared.k[at_k.stage]));
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
      const SmemDescriptor q = make_smem_descriptor(shared.q[at_q.stage][warpgroup]);
      const SmemDescriptor k = make_smem_descriptor(shared.k[at_k.stage]);
      const SmemDescriptor v = make_smem_descriptor(shared.v[at_v.stage]);
      begin_turn();
      start_qk<Q, KV>(acc_s, q, k);
      shared.ring_v.consumer_wait(at_v);
      start_pv<KV>(acc_o, frag_p, v, first);
      end_turn();
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

template <typename C, bool CAUSAL, typename Element>
void launch_tiles(const AttentionParams<Element>& params, Stream stream) {
  using Pipeline = PipelineStorage<Element, C>;
  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  launch(attention_kernel<Element, CAUSAL, C>, dim3(min(ceil_div(num_tiles, C::PIPELINES), num_sms())),
         dim3(C::NUM_THREADS), C::PIPELINES * sizeof(Pipeline), stream, params,
         make_tensor_maps<typename Pipeline::Q, typename Pipeline::KV>(params),
         tile_order<C::HEAD_DIM, CAUSAL>(params), num_tiles);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  constexpr bool D64 = HEAD_DIM == 64;
  // D, pipelines, warpgroups of each, keys of a tile, stages of K and V, turns
  using Wide = std::conditional_t<D64, PipelineConfig<64, 1, 3, 128, 4, 4, true>,
                                  PipelineConfig<128, 1, 3, 80, 3, 3, false>>;
  using Narrow = std::conditional_t<D64, PipelineConfig<64, 2, 2, 64, 4, 4, true>,
                                    PipelineConfig<128, 1, 2, 128, 2, 3, true>>;
  params.configuration == 0 ? launch_tiles<Wide, CAUSAL>(params, stream)
                            : launch_tiles<Narrow, CAUSAL>(params, stream);
}

int choose_configuration(const AttentionCall& call) {
  return call.seqlen_kv <= (call.head_dim == 64 ? 4096 : 1024) ? 1 : 0;
}

constexpr StepInfo kStep = {
    .title = "Warpgroups take turns: one issues products while another computes exponentials",
    .removes = "collisions of exponentials with exponentials",
    .part = Part::kHopper,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .configurations = {"wide", "narrow"},
    .choose = choose_configuration,
    .uses_counters = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
