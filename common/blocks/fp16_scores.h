// Attention in FP8 with scores in FP16: V^T, and what the warpgroups that compute do. Their softmax is a
// parameter. Spelled out in v41_bytes_of_p.
#pragma once

#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/transposed_tile.h"
#include "common/blocks/uniform.h"
#include "common/unpack.h"
#include "common/wgmma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {
namespace fp16_scores {

using Fp8 = __nv_fp8_e4m3;

constexpr int V_N = 128;  // keys of a tile of V^T, which has 128 bytes in a row
constexpr int SUMS = 8;   // columns behind V's: P times each is the sum of 16 P of V_N
constexpr int BAR_Q = 8;  // named barriers, one for each warpgroup; Turns has 1 to 3
constexpr int MMA_N = 8;
constexpr int MMA_K = 32;

constexpr float MOST_OF_FP16 = 65504.0f;
// A score's factor is one of FP16's numbers, but not 0: 0 * -inf would make NaN of what is masked.
constexpr float LEAST_FACTOR = 0x1p-24f;
__device__ __forceinline__ __half2 pair_of(uint32_t bits) {
  __half2 pair;
  memcpy(&pair, &bits, sizeof(bits));
  return pair;
}
__device__ __forceinline__ uint32_t bits_of(__half2 pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// ---- V^T: [batch, num_heads_kv, tiles of keys, HEAD_DIM + SUMS, V_N].

// Of a head: those of at least one tile of block_n keys, which the attention reads at a time.
inline int num_v_tiles(int seqlen_kv, int block_n) {
  return max(1, ceil_div(seqlen_kv, block_n)) * (block_n / V_N);
}

// Writes a tile with its columns of ones. By all threads of the CTA.
template <int HEAD_DIM, int THREADS>
__device__ void store_tile_of_v(const TransposedTile<HEAD_DIM, V_N>& transposed, uint4* out) {
  // A column's ones are for 16 keys. The tensor cores cut off what is less than 2^-13 of the largest number
  // of a sum, and where one P is large that is something of all the others. So they should be few.
  constexpr int CHUNKS = V_N / 16;  // of a row
  static_assert(CHUNKS == SUMS);
  for (int i = threadIdx.x; i < (HEAD_DIM + SUMS) * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS, place = i % CHUNKS;
    const uint32_t ones = row - HEAD_DIM == place ? 0x38383838 : 0;
    store_16_bytes(
        &out[i], row < HEAD_DIM ? transposed.load_words(row, place * 4) : make_uint4(ones, ones, ones, ones));
  }
}

// Its map. Coordinates: (key of the tile, column, tile, head, batch).
template <typename V>
TensorMap make_v_map(const void* v_transposed, int tiles, int num_heads_kv, int batch) {
  const uint64_t of_head = tiles * sizeof(V);
  return encode_tensor_map({.base = v_transposed,
                            .element_bytes = 1,
                            .size = {V_N, V::ROWS, uint64_t(tiles), uint64_t(num_heads_kv), uint64_t(batch)},
                            .stride = {1, V_N, sizeof(V), of_head, num_heads_kv * of_head},
                            .box = {V_N, V::ROWS, 1, 1, 1},
                            .swizzle_bytes = V::SWIZZLE_BYTES});
}

// ---- The attention. C is a PipelineConfig that has two types as well: `Output`, of O's elements, and
// `Softmax`, which is as BytesOfP in bytes_of_p.h. A softmax without HAS_LSE needs no base().

template <typename C>
struct Tiles {
  static constexpr int HEAD_DIM = C::HEAD_DIM;
  using Q = SwizzledTile<Fp8, kWarpgroupM, HEAD_DIM, HEAD_DIM>;  // a warpgroup's rows
  using K = SwizzledTile<Fp8, C::BLOCK_N, HEAD_DIM, HEAD_DIM>;
  using V = SwizzledTile<Fp8, HEAD_DIM + SUMS, V_N, V_N>;  // transposed
  using O = SwizzledTile<typename C::Output, kWarpgroupM, HEAD_DIM, 128>;
  union Rows {
    Q q;
    O o;  // in the end
  };
  Rows q[kQStages][C::NUM_WARPGROUPS];
  K k[C::K_STAGES];
  V v[C::V_STAGES][C::BLOCK_N / V_N];

  __device__ void load_k(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange&, int kv_tile,
                         int kv_head, int batch) {
    tma_load_5d(&k[stage], maps.k, bar_full, 0, kv_tile * C::BLOCK_N, 0, kv_head, batch);
  }
  __device__ void load_v(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange&, int kv_tile,
                         int kv_head, int batch) {
    for (int i = 0; i < C::BLOCK_N / V_N; ++i)
      tma_load_5d(&v[stage][i], maps.v, bar_full, 0, 0, kv_tile * (C::BLOCK_N / V_N) + i, kv_head, batch);
  }
  __device__ const O& o(int stage, int warpgroup) const { return q[stage][warpgroup].o; }
};

template <typename C>
struct Storage : WithBarriers<Tiles<C>, C> {};

// A warpgroup that computes. A tile of keys gives S = Q K^T, then P, then P V, which is added to O. While it
// makes P, the other warpgroups have the tensor cores.
template <bool CAUSAL, typename C>
struct Consumer {
  using Q = typename Storage<C>::Q;
  using K = typename Storage<C>::K;
  using V = typename Storage<C>::V;
  using O = typename Storage<C>::O;

  const AttentionParams<Fp8>& params;
  Storage<C>& shared;
  const int warpgroup;
  const Turns<C> turns;
  const int lane = threadIdx.x % 32;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  static constexpr int BLOCK_N = C::BLOCK_N, O_TILES = C::HEAD_DIM / MMA_N;

  int kv_tile;  // of S
  typename C::Softmax softmax;
  float acc_o[1][O_TILES][4];
  uint32_t frag_p[BLOCK_N / MMA_K][4];

  __device__ Consumer(const AttentionParams<Fp8>& call, Storage<C>& storage, int consumer)
      : params(call), shared(storage), warpgroup(consumer), turns{consumer} {}

  // All tiles of queries that the loader gets.
  __device__ __forceinline__ void run() {
    if (warpgroup == C::NUM_WARPGROUPS - 1) turns.end();  // the first turn is warpgroup 0's
    for (; begin_tile(); at_q.advance()) {
      turns.begin();  // the warpgroup before has issued its products
      if (CAUSAL && uniform(sees_half_a_tile()))
        scores_to_p</*IS_CAREFUL=*/true, BLOCK_N / 2>();
      else
        scores_to_p</*IS_CAREFUL=*/true>();
#pragma unroll 1
      while (uniform(kv_tile > last_careful())) {
        --kv_tile;
        iteration</*IS_CAREFUL=*/true>();
      }
#pragma unroll 1
      while (uniform(kv_tile > 0)) {  // the clean loop
        --kv_tile;
        iteration</*IS_CAREFUL=*/false>();
      }
      add_pv();
      end_rows();
      write_o();
    }
  }

  // P V of the tile before, then P of this one.
  template <bool IS_CAREFUL>
  __device__ __forceinline__ void iteration() {
    turns.begin();
    add_pv();
    scores_to_p<IS_CAREFUL>();
  }

  // Ends the warpgroup's turn when its Q K^T is issued. Beyond the first KEYS of the tile, P is 0.
  template <bool IS_CAREFUL, int KEYS = BLOCK_N>
  __device__ __forceinline__ void scores_to_p() {
    Scores<KEYS / MMA_N * 2> acc_s;
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    start_qk(acc_s);
    turns.end();
    warpgroup_wait<0>();  // S is complete, and wgmma has read K
    warpgroup_fence_operand(acc_s);
    shared.ring_k.warp_release(at_k, lane);
    at_k.advance();

    if constexpr (IS_CAREFUL) mask(acc_s);
    softmax.template scores_to_p<IS_CAREFUL>(acc_s, frag_p);
  }

  // O = row_scale O + P V, and the same of the sums. The tensor cores sum one tile alone, in 14 bits, and
  // these additions are in FP32.
  __device__ __forceinline__ void add_pv() {
    float acc_pv[1][O_TILES + 1][4];    // in the last tile are the sums of P
    shared.ring_v.consumer_wait(at_v);  // TMA has brought V
    start_pv(acc_pv);
    warpgroup_wait<0>();  // P V is complete, and wgmma has read V and P's registers
    warpgroup_fence_operand(wgmma_accumulator(acc_pv));
    shared.ring_v.warp_release(at_v, lane);
    at_v.advance();
#pragma unroll
    for (int i = 0; i < O_TILES * 4; ++i) {
      float& o = acc_o[0][i / 4][i % 4];
      o = fmaf(o, softmax.row_scale[i / 2 % 2], acc_pv[0][i / 4][i % 4]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* const sums = &acc_pv[0][O_TILES][2 * r];
      softmax.row_sum[0][r] += sums[0] + sums[1];
    }
  }

  // ---- The products.
  // Two neighbouring columns in a register: of 8 columns, first those of row 0, then those of row 1.
  template <int NUM>
  using Scores = uint32_t[NUM];

  template <int NUM>
  __device__ __forceinline__ void start_qk(Scores<NUM>& acc_s) {
    const SmemDescriptor q = make_smem_descriptor(shared.q[at_q.stage][warpgroup].q);
    const SmemDescriptor k = make_smem_descriptor(shared.k[at_k.stage]);
    warpgroup_fence_operand(acc_s);
    warpgroup_arrive();
#pragma unroll
    for (int col = 0; col < C::HEAD_DIM; col += MMA_K)
      wgmma_m64k32_e4m3(acc_s, advance<Q>(q, 0, col), advance<K>(k, 0, col), col > 0);
    warpgroup_commit_batch();
  }
  __device__ __forceinline__ void start_pv(float (&acc_pv)[1][O_TILES + 1][4]) {
    warpgroup_fence_operand(wgmma_accumulator(acc_pv));
    warpgroup_arrive();
#pragma unroll
    for (int key = 0; key < BLOCK_N; key += MMA_K) {
      const SmemDescriptor v = make_smem_descriptor(shared.v[at_v.stage][key / V_N]);
      wgmma_m64k32_e4m3(wgmma_accumulator(acc_pv), frag_p[key / MMA_K], advance<V>(v, 0, key % V_N), key > 0);
    }
    warpgroup_commit_batch();
  }

  // ---- The beginning of a tile of queries; false if there is none.
  __device__ __forceinline__ bool begin_tile() {
    shared.ring_q.consumer_wait(at_q);  // the loader has written `work`, and TMA has brought Q
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = num_key_tiles<BLOCK_N>(keys) - 1;
    softmax.begin(params, work, shared.q[at_q.stage][warpgroup].q, warpgroup);
#pragma unroll
    for (int i = 0; i < O_TILES * 4; ++i) acc_o[0][i / 4][i % 4] = 0.0f;
    if constexpr (CAUSAL) {
#pragma unroll 1
      for (int unseen = num_unseen(); uniform(unseen > 0); --unseen) {
        turns.begin();  // as many turns as the other warpgroups take
        turns.end();
        // An earlier release would count for the tile before in this stage, which the others may still read.
        shared.ring_k.consumer_wait(at_k);
        shared.ring_k.warp_release(at_k, lane);
        at_k.advance();
        shared.ring_v.consumer_wait(at_v);
        shared.ring_v.warp_release(at_v, lane);
        at_v.advance();
      }
    }
    return true;
  }
  // Scores are masked, if needed, from the highest tile down to this one. Computed anew for each of these few
  // tiles, so that the loop keeps no register for it.
  __device__ __forceinline__ int last_careful() const {
    const Work work = shared.work[at_q.stage];
    const int first_query = first_query_of(work);
    return (key_range_within<CAUSAL>(params, work.kv_len, first_query, kWarpgroupM).unmasked_end - 1) /
           BLOCK_N;
  }
  // Do the rows see no key of the upper half of their last tile? It takes up to half a tile of keys from the
  // diagonal, which counts if there are few tiles.
  __device__ __forceinline__ bool sees_half_a_tile() const {
    const Work work = shared.work[at_q.stage];
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    return keys.end <= kv_tile * BLOCK_N + BLOCK_N / 2;
  }
  // Tiles of keys that a later warpgroup needs, and that lie beyond this one's diagonal. It releases them
  // unread.
  __device__ int num_unseen() const {
    const Work work = shared.work[at_q.stage];
    const KeyRange all = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
    return num_key_tiles<BLOCK_N>(all) - 1 - kv_tile;
  }
  __device__ int first_query_of(const Work& work) const { return work.first_query + warpgroup * kWarpgroupM; }

  template <int NUM>
  __device__ __forceinline__ void mask(Scores<NUM>& acc_s) {
    const Work work = shared.work[at_q.stage];
    const int first_query = first_query_of(work);
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query, kWarpgroupM);
    if (!keys.needs_mask(kv_tile * BLOCK_N, BLOCK_N)) return;
      // A sum beyond FP16 is infinite. It becomes NaN, so that it is no masked score.
#pragma unroll
    for (uint32_t& pair : acc_s)
      pair = bits_of(__hfma2(pair_of(pair), __float2half2_rn(0.0f), pair_of(pair)));
    constexpr uint32_t MINUS_INFINITY = 0xfc00;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = first_query + acc_row() + r * 8;
      const int visible =
          params.template visible_keys<CAUSAL>(query, work.kv_len) - kv_tile * BLOCK_N - acc_col();
#pragma unroll
      for (int i = 0; i < NUM / 2; ++i) {
        uint32_t& pair = acc_s[2 * i + r];
        if (i * MMA_N + 1 >= visible) pair = (pair & 0xffff) | MINUS_INFINITY << 16;
        if (i * MMA_N >= visible) pair = MINUS_INFINITY << 16 | MINUS_INFINITY;
      }
    }
  }

  // ---- The end of a tile of queries: its rows' sums, and log-sum-exps if it has them. Then O,
  // rounded, goes to shared memory.
  __device__ __forceinline__ void end_rows() {
    const Work work = shared.work[at_q.stage];
    if constexpr (C::Softmax::HAS_LSE) {
      const float row_base[1][2] = {{softmax.base(0), softmax.base(1)}};
      finish_rows(params, work.batch, work.head, first_query_of(work) + acc_row(), lane_id(), row_base,
                  softmax.row_sum);
    } else {
      for (float& sum : softmax.row_sum[0]) sum = quad_reduce_sum(sum);
    }
    const float scale = params.output_scale(work.batch, work.head);
    scale_rows(acc_o, {{scale, scale}});
  }
  __device__ __forceinline__ void write_o() {
    bar_sync(BAR_Q + warpgroup, 128);  // no warp's product reads Q any more: O has more bytes to a row
    stmatrix_normalised(shared.q[at_q.stage][warpgroup].o, o_offset(), acc_o, softmax.row_sum);
    fence_proxy_async();                    // TMA sees what this lane has written
    shared.o_is_written(at_q.stage, lane);  // when all lanes have; the storer waits at bar_o_full
  }

  // ---- Where this lane's elements are. Computed where they are needed: the loop has no registers to keep
  // them.
  static __device__ int lane_id() { return opaque(int(threadIdx.x)) % 32; }
  static __device__ int warp_row() { return opaque(int(threadIdx.x)) / 32 % 4 * 16; }  // in the warpgroup's
  static __device__ int acc_row() { return warp_row() + accumulator_row(lane_id()); }
  static __device__ int acc_col() { return accumulator_col(lane_id()); }
  static __device__ int o_offset() {
    return O::offset_of(warp_row() + operand_row(lane_id()), operand_col(lane_id()));
  }
};

}  // namespace fp16_scores
}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
