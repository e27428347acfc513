// v27: the loop of v25, with a tile for each shape: 192 queries x 64 keys at D = 128 where keys are many, and
// 256 x 64 at D = 64 where they are few.
#include <type_traits>

#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/uniform.h"
#include "common/blocks/wgmma_products.h"
#include "common/elect.h"
#include "common/setmaxnreg.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

constexpr int MMA_N = 8;
constexpr int MMA_K = 16;

// A warpgroup that computes. A tile of keys gives S = Q K^T, then P, the exponentials of S, then O += P V.
template <typename Element, bool CAUSAL, typename C>
struct Consumer {
  static constexpr int BLOCK_N = C::BLOCK_N;
  using Shared = PipelineStorage<Element, C>;
  using Q = typename Shared::Q;
  using KV = typename Shared::KV;

  const AttentionParams<Element>& params;
  Shared& shared;       // of its pipeline
  const int warpgroup;  // of the pipeline
  const Turns<C> turns;
  const int lane = threadIdx.x % 32;
  const float scale = params.softmax_scale_log2;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  SmemDescriptor q, k, v;  // of the next products
  int kv_tile;             // of S
  int last_careful;        // from the highest tile down to this one: masked if needed, and rows get new bases
  bool is_first;           // Is P the first of its tile of queries? Then P V overwrites O.

  // Of the rows acc_row() + r * 8.
  float row_base[1][2];   // what P is relative to: a maximum so far, scaled
  float row_sum[1][2];    // of this lane's columns only: the lanes' sums are added after the loop
  float row_scale[1][2];  // that O needs when its base changes
  float acc_o[1][C::HEAD_DIM / MMA_N][4], acc_s[1][BLOCK_N / MMA_N][4];
  uint32_t frag_p[BLOCK_N / MMA_K][1][4];

  __device__ Consumer(const AttentionParams<Element>& call, Shared* pipelines, int consumer)
      : params(call),
        shared(pipelines[consumer / C::NUM_WARPGROUPS]),
        warpgroup(consumer % C::NUM_WARPGROUPS),
        turns{consumer} {}

  // All tiles of queries that the loader gets.
  __device__ __forceinline__ void run() {
    if (warpgroup == C::NUM_WARPGROUPS - 1) turns.end();  // the first turn is warpgroup 0's
    for (; begin_tile(); at_q.advance()) {
      first_iteration();
#pragma unroll 1
      while (uniform(kv_tile > last_careful)) {
        --kv_tile;
        iteration</*IS_CAREFUL=*/true>();
      }
#pragma unroll 1
      while (uniform(kv_tile > 0)) {  // the clean loop
        --kv_tile;
        iteration</*IS_CAREFUL=*/false>();
      }
      last_iteration();
    }
  }

  // Computes S and P of a tile of keys while P V of the tile before runs.
  template <bool IS_CAREFUL>
  __device__ __forceinline__ void iteration() {
    // Issue both products. Between them stands no arithmetic, only the wait for V.
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    turns.begin();                      // the warpgroup before has issued its products
    start_qk<Q, KV>(acc_s, q, k);
    shared.ring_v.consumer_wait(at_v);  // TMA has brought V
    start_pv<KV>(acc_o, frag_p, v, is_first);
    turns.end();

    // Compute P while P V runs.
    wait_for<1>(acc_s);  // S is complete, and wgmma has read K
    release_k();
    k = make_smem_descriptor(shared.k[at_k.stage]);
    if constexpr (IS_CAREFUL) mask();
    const bool changes = IS_CAREFUL || uniform(growth_bound(acc_s, row_base, scale) > kMaxGrowth);
    if (changes) change_base(acc_s, scale, row_base, row_sum, row_scale);
    exponentiate(acc_s, scale, row_base, row_sum);
    warpgroup_fence_operand(wgmma_accumulator(acc_s));  // the compiler keeps all of this before the wait

    // Finish P V.
    wait_for<0>(acc_o);  // O is complete, and wgmma has read V and P's registers
    release_v();
    v = make_smem_descriptor(shared.v[at_v.stage]);
    pack_p<Element>(frag_p, acc_s);
    is_first = false;
    if (changes) scale_rows(acc_o, row_scale);
  }

  // Of a tile of queries: its first tile of keys, beside which no P V runs; and its last P V, beside which
  // no Q K^T runs.
  __device__ __forceinline__ void first_iteration() {
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    start_qk<Q, KV>(acc_s, q, k);
    wait_for<0>(acc_s);  // S is complete, and wgmma has read K
    release_k();
    k = make_smem_descriptor(shared.k[at_k.stage]);
    mask();
    change_base(acc_s, scale, row_base, row_sum, row_scale);
    exponentiate(acc_s, scale, row_base, row_sum);
    pack_p<Element>(frag_p, acc_s);
    is_first = true;
  }
  __device__ __forceinline__ void last_iteration() {
    shared.ring_v.consumer_wait(at_v);  // TMA has brought V
    start_pv<KV>(acc_o, frag_p, v, is_first);
    wait_for<0>(acc_o);  // O is complete, and wgmma has read V
    release_v();
    end_rows();
    write_o();
  }

  // ---- The beginning of a tile of queries; false if there is none.
  __device__ __forceinline__ bool begin_tile() {
    shared.ring_q.consumer_wait(at_q);  // the loader has written `work`, and TMA has brought Q
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = num_key_tiles<BLOCK_N>(keys) - 1;
    last_careful = (keys.unmasked_end - 1) / BLOCK_N;
    row_base[0][0] = row_base[0][1] = -INFINITY;
    row_sum[0][0] = row_sum[0][1] = 0.0f;
    if constexpr (CAUSAL) {
#pragma unroll 1
      for (int unseen = num_unseen(); uniform(unseen > 0); --unseen) {
        turns.begin();  // as many turns as the other warpgroups take
        turns.end();
        // An earlier release would count for the tile before in this stage, which others may still read.
        shared.ring_k.consumer_wait(at_k);
        release_k();
        shared.ring_v.consumer_wait(at_v);
        release_v();
      }
    }
    q = make_smem_descriptor(shared.q[at_q.stage][warpgroup]);
    k = make_smem_descriptor(shared.k[at_k.stage]);
    v = make_smem_descriptor(shared.v[at_v.stage]);
    return true;
  }
  // Tiles of keys that other warpgroups of the pipeline need, and that lie beyond this one's diagonal. It
  // releases them unread.
  __device__ int num_unseen() const {
    const Work work = shared.work[at_q.stage];
    const KeyRange all = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
    return num_key_tiles<BLOCK_N>(all) - 1 - kv_tile;
  }
  __device__ int first_query_of(const Work& work) const { return work.first_query + warpgroup * kWarpgroupM; }

  __device__ __forceinline__ void mask() {
    const Work work = shared.work[at_q.stage];
    const int first_query = first_query_of(work);
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query, kWarpgroupM);
    if (kv_tile >= keys.unmasked_end / BLOCK_N)
      mask_tile<CAUSAL, BLOCK_N>(acc_s, params, work.kv_len, kv_tile, first_query + acc_row(), acc_col());
  }

  // ---- The end of a tile of queries: its rows' sums and log-sum-exps. Then O, rounded, goes where the
  // tile's Q was, whose last Q K^T is complete. A warp's 16 rows of Q are read by its own products alone.
  __device__ __forceinline__ void end_rows() {
    const Work work = shared.work[at_q.stage];
    finish_rows(params, work.batch, work.head, first_query_of(work) + acc_row(), lane_id(), row_base,
                row_sum);
  }
  __device__ __forceinline__ void write_o() {
    stmatrix_normalised(shared.q[at_q.stage][warpgroup], o_offset(), acc_o, row_sum);
    fence_proxy_async();                    // TMA sees what this lane has written
    shared.o_is_written(at_q.stage, lane);  // when all lanes have; the storer waits at bar_o_full
  }

  // ---- The loader overwrites a tile when all warps have released it.
  __device__ void release_k() {
    shared.ring_k.warp_release(at_k, lane);
    at_k.advance();
  }
  __device__ void release_v() {
    shared.ring_v.warp_release(at_v, lane);
    at_v.advance();
  }

  // ---- Where this lane's elements are. Computed where they are needed: the loop has no registers to keep
  // them.
  static __device__ int lane_id() { return opaque(int(threadIdx.x)) % 32; }
  static __device__ int warp_row() { return opaque(int(threadIdx.x)) / 32 % 4 * 16; }  // in the warpgroup's
  static __device__ int acc_row() { return warp_row() + accumulator_row(lane_id()); }
  static __device__ int acc_col() { return accumulator_col(lane_id()); }
  static __device__ int o_offset() {
    return Q::offset_of(warp_row() + operand_row(lane_id()), operand_col(lane_id()));
  }
};

template <typename Element, bool CAUSAL, typename C>
__global__ void __launch_bounds__(C::NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Element> params, const __grid_constant__ TensorMaps maps,
                     TileOrder order, int num_tiles) {
  const auto pipelines = reinterpret_cast<PipelineStorage<Element, C>*>(smem);
  if (threadIdx.x < C::PIPELINES) {
    pipelines[threadIdx.x].init();
    fence_mbarrier_init();  // TMA sees the mbarriers
  }
  __syncthreads();  // the mbarriers are initialised

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
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  Consumer<Element, CAUSAL, C>(params, pipelines, uniform(int(threadIdx.x / 128))).run();
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  constexpr bool D64 = HEAD_DIM == 64;
  // D, pipelines, warpgroups of each, keys of a tile, stages of K and V, turns
  using ManyKeys = std::conditional_t<D64, PipelineConfig<64, 1, 3, 128, 4, 4, true>,
                                      PipelineConfig<128, 1, 3, 64, 5, 3, false>>;
  using SomeKeys = std::conditional_t<D64, PipelineConfig<64, 2, 2, 64, 4, 4, false>,
                                      PipelineConfig<128, 1, 2, 128, 2, 3, false>>;
  using FewKeys = std::conditional_t<D64, PipelineConfig<64, 1, 4, 64, 6, 6, true>,
                                     PipelineConfig<128, 1, 2, 128, 2, 3, true>>;
  const auto launch_with = [&]<typename C>(C) {
    launch_pipelines<C, CAUSAL>(attention_kernel<Element, CAUSAL, C>, params, stream);
  };
  params.configuration == 0   ? launch_with(ManyKeys())
  : params.configuration == 1 ? launch_with(SomeKeys())
                              : launch_with(FewKeys());
}

// By trials on an H200. A tile of 192 queries takes 1.4 times as long as one of 128. So where there are few
// tiles, 192 are taken only if 1.4 times their rounds are no more than the rounds of 128.
int choose_configuration(const AttentionCall& call) {
  enum { kManyKeys, kSomeKeys, kFewKeys };
  const int keys = call.seqlen_kv;
  if (call.head_dim == 64 && keys > (call.causal ? 8192 : 2048)) return kManyKeys;
  if (call.head_dim == 64) return call.causal ? kSomeKeys : kFewKeys;
  if (keys <= 1024) return call.causal ? kFewKeys : kSomeKeys;
  const auto rounds = [&](int block_m) {
    const int64_t num_tiles = int64_t(ceil_div(call.seqlen_q, block_m)) * call.num_heads_q * call.batch;
    return ceil_div(num_tiles, int64_t(num_sms()));
  };
  return 7 * rounds(192) <= 5 * rounds(128) ? kManyKeys : kSomeKeys;
}

constexpr StepInfo kStep = {
    .title = "The host chooses the tile's size by head dimension, mask and number of keys",
    .removes = "idle tensor cores between tiles that are too large or too small",
    .part = Part::kHopper,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .configurations = {"many_keys", "some_keys", "few_keys"},
    .choose = choose_configuration,
    .uses_counters = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
