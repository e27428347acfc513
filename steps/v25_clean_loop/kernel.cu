// v25: keys from the last to the first. The tiles at the diagonal, which must be masked and where rows see
// their first keys, then come first, and what follows is a loop with neither.
#include <type_traits>

#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/query_stream.h"
#include "common/blocks/uniform.h"
#include "common/blocks/wgmma_products.h"
#include "common/elect.h"
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
  using Q = typename StreamStorage<Element, C>::Q;
  using KV = typename StreamStorage<Element, C>::KV;
  const auto pipelines = reinterpret_cast<StreamStorage<Element, C>*>(smem);
  if (threadIdx.x < C::PIPELINES) {
    pipelines[threadIdx.x].init();
    fence_mbarrier_init();
  }
  __syncthreads();  // the mbarriers exist

  // Producers: a warp of each pipeline loads, another stores.
  if (threadIdx.x >= C::CONSUMERS * 128) {
    warpgroup_reg_dealloc<C::PRODUCER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
    const int role = uniform(int(threadIdx.x / 32)) - C::CONSUMERS * 4;
    if (role >= 2 * C::PIPELINES || !elect_one()) return;
    auto& shared = pipelines[role % C::PIPELINES];
    if (role >= C::PIPELINES) return store_tiles(shared, maps.o);
    return load_tiles<CAUSAL, Keys::kLastToFirst>(shared, params, maps, order, num_tiles,
                                                  blockIdx.x * C::PIPELINES + role);
  }

  // Consumers.
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  const int consumer = uniform(int(threadIdx.x / 128));
  const int warpgroup = consumer % NUM_WARPGROUPS;  // of the pipeline
  auto& shared = pipelines[consumer / NUM_WARPGROUPS];
  const float scale = params.softmax_scale_log2;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  const int lane = threadIdx.x % 32;
  // Where this lane's elements are. Computed where they are needed: the loop has no registers to keep them.
  const auto lane_id = [] { return opaque(int(threadIdx.x)) % 32; };
  const auto warp_row = [] { return opaque(int(threadIdx.x)) / 32 % 4 * 16; };  // of the warpgroup's rows
  const auto acc_row = [&] { return warp_row() + accumulator_row(lane_id()); };
  const auto acc_col = [&] { return accumulator_col(lane_id()); };
  const auto o_offset = [&] {
    return Q::offset_of(warp_row() + operand_row(lane_id()), operand_col(lane_id()));
  };

  // Of the rows acc_row + r * 8.
  float row_base[1][2];   // what P is relative to: a maximum so far, scaled
  float row_sum[1][2];    // of this lane's columns only: lanes are added up in the end
  float row_scale[1][2];  // that O needs when its base changes
  float ended_sum[1][2];  // of the whole rows of a tile that has ended
  float kept[1][2];       // if C::MERGES: their weight of the earlier result
  float acc_o[1][C::HEAD_DIM / MMA_N][4], acc_s[1][BLOCK_N / MMA_N][4];
  uint32_t frag_p[BLOCK_N / MMA_K][1][4];
  SmemDescriptor q, k, v;  // of the next products
  bool is_first;           // Is P of the first tile of keys?

  int kv_tile;       // of S
  int last_careful;  // from the last tile down to this one, scores are masked and rows see their first keys
  const Turns<C> turns = {consumer};
  const auto release_k = [&] {
    shared.ring_k.warp_release(at_k, lane);
    at_k.advance();
  };
  const auto release_v = [&] {
    shared.ring_v.warp_release(at_v, lane);
    at_v.advance();
  };
  const auto first_query_of = [&](const Work& work) { return work.first_query + warpgroup * kWarpgroupM; };
  // Tiles of keys beyond this warpgroup's diagonal, which it gives free as they come.
  const auto num_unseen = [&] {
    const Work work = shared.work[at_q.stage];
    const KeyRange all = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
    return num_stream_tiles<BLOCK_N>(all) - 1 - kv_tile;
  };
  const auto begin_tile = [&] {  // of queries; false if there is none
    shared.ring_q.consumer_wait(at_q);
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = num_stream_tiles<BLOCK_N>(keys) - 1;
    last_careful = (keys.unmasked_end - 1) / BLOCK_N;
    row_base[0][0] = row_base[0][1] = -INFINITY;
    row_sum[0][0] = row_sum[0][1] = 0.0f;
    if constexpr (CAUSAL) {
#pragma unroll 1
      for (int unseen = num_unseen(); uniform(unseen > 0); --unseen) {
        turns.begin();
        turns.end();
        shared.ring_k.consumer_wait(at_k);
        release_k();
      }
    }
    q = uniform(make_smem_descriptor(shared.q[at_q.stage][warpgroup]));
    k = uniform(make_smem_descriptor(shared.k[at_k.stage]));
    return true;
  };
  const auto begin_v = [&] {  // of a tile of queries
    if constexpr (CAUSAL) {
#pragma unroll 1
      for (int unseen = num_unseen(); uniform(unseen > 0); --unseen) {
        shared.ring_v.consumer_wait(at_v);
        release_v();
      }
    }
    v = uniform(make_smem_descriptor(shared.v[at_v.stage]));
  };
  const auto mask = [&] {
    const Work work = shared.work[at_q.stage];
    const int first_query = first_query_of(work);
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query, kWarpgroupM);
    if (kv_tile >= keys.unmasked_end / BLOCK_N)
      mask_tile<CAUSAL, BLOCK_N>(acc_s, params, work.kv_len, kv_tile, first_query + acc_row(), acc_col());
  };
  // Sums and log-sum-exps of the tile of queries whose last S has become P.
  const auto end_rows = [&] {
    const Work work = shared.work[at_q.stage];
    const int query = first_query_of(work) + acc_row();
    if constexpr (C::MERGES)
      merge_rows(params, work.batch, work.head, query, lane_id(), row_base, row_sum, kept);
    else
      finish_rows(params, work.batch, work.head, query, lane_id(), row_base, row_sum);
    ended_sum[0][0] = row_sum[0][0];
    ended_sum[0][1] = row_sum[0][1];
  };
  // O, rounded, goes where the tile's Q was.
  const auto write_o = [&](int stage) {
    if constexpr (C::MERGES) {
      const Work work = shared.work[stage];
      const int query = first_query_of(work) + acc_row();
      merge_o(params, work.batch, work.head, query, acc_col(), acc_o, ended_sum, kept);
    }
    stmatrix_normalised(shared.q[stage][warpgroup], o_offset(), acc_o, ended_sum);
    fence_proxy_async();  // TMA must see what this lane has written
    shared.o_is_written(stage, lane);
  };
  // Computes S of a tile of keys and its P, and under that O with the P before, which may end a tile of
  // queries.
  const auto step = [&](auto careful, bool ends) {
    constexpr bool IS_CAREFUL = decltype(careful)::value;
    shared.ring_k.consumer_wait(at_k);
    turns.begin();
    start_qk<Q, KV>(acc_s, q, k);
    shared.ring_v.consumer_wait(at_v);
    start_pv<KV>(acc_o, frag_p, v, is_first);
    turns.end();
    wait_for<1>(acc_s);
    release_k();
    k = uniform(make_smem_descriptor(shared.k[at_k.stage]));
    if constexpr (IS_CAREFUL) mask();
    const bool changes = IS_CAREFUL || uniform(growth_bound(acc_s, row_base, scale) > kMaxGrowth);
    if (changes) change_base(acc_s, scale, row_base, row_sum, row_scale);
    exponentiate(acc_s, scale, row_base, row_sum);
    warpgroup_fence_operand(wgmma_accumulator(acc_s));  // all of this before the wait
    wait_for<0>(acc_o);
    release_v();
    v = uniform(make_smem_descriptor(shared.v[at_v.stage]));
    pack_p<Element>(frag_p, acc_s);
    is_first = ends;
    if (ends) {
      begin_v();
      write_o(at_q.stage ^ 1);
    } else if (changes) {
      scale_rows(acc_o, row_scale);
    }
  };

  if (warpgroup == NUM_WARPGROUPS - 1) turns.end();  // the first turn is warpgroup 0's
  if (!begin_tile()) return;
  begin_v();
  shared.ring_k.consumer_wait(at_k);
  start_qk<Q, KV>(acc_s, q, k);
  wait_for<0>(acc_s);
  release_k();
  k = uniform(make_smem_descriptor(shared.k[at_k.stage]));
  mask();
  change_base(acc_s, scale, row_base, row_sum, row_scale);
  exponentiate(acc_s, scale, row_base, row_sum);
  pack_p<Element>(frag_p, acc_s);
  is_first = true;
  while (true) {
    const bool ends = uniform(--kv_tile < 0);  // Was P's tile of keys the last?
    if (ends) {
      end_rows();
      at_q.advance();
      if (!begin_tile()) break;
    }
    step(std::true_type(), ends);
    if (uniform(kv_tile <= last_careful)) {
#pragma unroll 1
      while (uniform(kv_tile > 0)) {
        --kv_tile;
        step(std::false_type(), false);
      }
    }
  }
  shared.ring_v.consumer_wait(at_v);  // the last product
  start_pv<KV>(acc_o, frag_p, v, is_first);
  wait_for<0>(acc_o);
  write_o(at_q.stage ^ 1);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  constexpr bool D64 = HEAD_DIM == 64;
  // D, pipelines, warpgroups of each, keys of a tile, stages of K and V, turns
  using InTurns = std::conditional_t<D64, StreamConfig<64, 1, 3, 128, 4, 4, true>,
                                     StreamConfig<128, 1, 2, 128, 2, 3, true>>;
  using Free = std::conditional_t<D64, StreamConfig<64, 2, 2, 64, 4, 4, false>,
                                  StreamConfig<128, 1, 2, 128, 2, 3, false>>;
  const auto launch_with = [&]<typename C>(C) {
    launch_stream<C, CAUSAL>(attention_kernel<Element, CAUSAL, C>, params, stream);
  };
  const auto launch_either = [&]<typename C>(C) {
    params.earlier.o == nullptr ? launch_with(C()) : launch_with(Merging<C>());
  };
  params.configuration == 0 ? launch_either(InTurns()) : launch_either(Free());
}

int choose_configuration(const AttentionCall& call) {
  const bool turns = call.head_dim == 64 ? call.seqlen_kv > (call.causal ? 8192 : 2048) : call.causal;
  return turns ? 0 : 1;
}

constexpr StepInfo kStep = {
    .title = "The kernel takes the last keys first, so that its main loop needs no masks",
    .removes = "masks from the loop",
    .part = Part::kHopper,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .configurations = {"turns", "free"},
    .choose = choose_configuration,
    .uses_counters = true,
    .merges = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
