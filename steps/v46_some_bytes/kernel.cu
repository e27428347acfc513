// v46: three eighths of P without exponentials. Their bytes come from scores alone, as in v41, and those of
// the others from exponentials, as in v45. A row's sum is that of P as it is rounded, which the tensor cores
// find with columns of ones. The log-sum-exp needs the sum of P before it is rounded: a call that wants it
// gets v45's softmax.
#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/uniform.h"
#include "common/elect.h"
#include "common/ldmatrix.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/wgmma.h"

namespace STEP_NAMESPACE {

using Fp8 = __nv_fp8_e4m3;

constexpr int BLOCK_N = 128;    // keys of a tile
constexpr int TRANSPOSERS = 2;  // warps that transpose V
constexpr int BAR_Q_READ = 8;   // named barriers, one for each warpgroup; Turns has 1 to 3
constexpr int ONES = 8;         // columns of ones that P is multiplied with
constexpr int MMA_N = 8;
constexpr int MMA_K = 32;

// P is as large as e4m3 allows, so that small P are still numbers of e4m3: its largest is 2^8 when a row gets
// a new base, and at most 2^8.75 = 430 before it gets another one. e4m3 ends at 448.
constexpr float LARGEST_P = 8.0f;
constexpr float MAX_P = 8.75f;

// Of each 8 pairs of P's registers, BYTES have P that come from scores alone.
constexpr int BYTES = 3;
__device__ constexpr bool is_made_of_bytes(int pair) { return pair * BYTES / 8 != (pair + 1) * BYTES / 8; }

// The byte of P = 2^x. Where x is an integer the byte is 8 (x + 7). In between, e4m3 rises in a straight
// line, and 2^x lies below it, by 0.458 of the byte's unit in the mean.
__device__ constexpr float byte_of(float x) { return 8.0f * (x + 7.0f) - 0.458f; }
constexpr float NAN_BYTE = 127.0f;           // beyond all bytes of P: MAX_P has 126
constexpr float INTEGER = 1024.0f;           // from here to 2048 the numbers of FP16 are the integers
constexpr uint32_t BYTES_OF_8 = 0x64086408;  // INTEGER + 8, twice

template <typename C>
struct Tiles {
  static constexpr int HEAD_DIM = C::HEAD_DIM;
  using Q = SwizzledTile<Fp8, kWarpgroupM, HEAD_DIM, HEAD_DIM>;  // a warpgroup's rows
  using KV = SwizzledTile<Fp8, BLOCK_N, HEAD_DIM, HEAD_DIM>;
  using VT = SwizzledTile<Fp8, HEAD_DIM, BLOCK_N, BLOCK_N>;
  using Ones = SwizzledTile<Fp8, ONES, BLOCK_N, BLOCK_N>;  // transposed, as V is
  using O = SwizzledTile<__nv_bfloat16, kWarpgroupM, HEAD_DIM, 128>;
  union Rows {
    Q q;
    O o;  // in the end
  };
  Rows q[kQStages][C::NUM_WARPGROUPS];
  KV k[C::K_STAGES], v[C::V_STAGES];
  VT v_transposed[C::V_STAGES];
  Ones ones;

  __device__ void load_k(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange&, int kv_tile,
                         int kv_head, int batch) {
    tma_load_5d(&k[stage], maps.k, bar_full, 0, kv_tile * BLOCK_N, 0, kv_head, batch);
  }
  __device__ void load_v(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange&, int kv_tile,
                         int kv_head, int batch) {
    tma_load_5d(&v[stage], maps.v, bar_full, 0, kv_tile * BLOCK_N, 0, kv_head, batch);
  }
  __device__ const O& o(int stage, int warpgroup) const { return q[stage][warpgroup].o; }
};

// ring_v is between the loader and the transposers, ring_vt between them and the warpgroups.
template <typename C>
struct Storage : WithBarriers<Tiles<C>, C> {
  Ring<C::V_STAGES> ring_vt;

  __device__ void init() {  // by one thread; fence_mbarrier_init() and a barrier must follow
    WithBarriers<Tiles<C>, C>::init(/*v_consumers=*/TRANSPOSERS);
    ring_vt.init(4 * C::NUM_WARPGROUPS, /*num_producers=*/TRANSPOSERS);
  }
};

// A warp that transposes V, tile by tile: of each 16 keys, 32 columns at a time.
template <bool CAUSAL, typename C>
struct Transposer {
  using V = typename Storage<C>::KV;
  using VT = typename Storage<C>::VT;

  const AttentionParams<Fp8>& params;
  Storage<C>& shared;
  const int number;  // of this warp among the transposers
  const int lane = threadIdx.x % 32;

  __device__ __forceinline__ void run() {
    RingCursor<C::V_STAGES> at_v;   // of both rings
    if (number == 0) write_ones();  // whoever has a tile of V^T sees them, too
    for (RingCursor<kQStages> at_q;; at_q.advance()) {
      shared.ring_q.consumer_wait(at_q);  // the loader has written which tile of queries this is
      const Work work = shared.work[at_q.stage];
      if (work.batch == kNoMore) return;
      const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
#pragma unroll 1
      for (int kv_tile = num_key_tiles<BLOCK_N>(keys) - 1; kv_tile >= 0; --kv_tile) {
        shared.ring_v.consumer_wait(at_v);   // TMA has brought V
        shared.ring_vt.producer_wait(at_v);  // the warpgroups have read the tile before in this stage
        const int num_keys = work.kv_len - kv_tile * BLOCK_N;
        if (num_keys < BLOCK_N)
          transpose</*IS_CAREFUL=*/true>(at_v.stage, num_keys);
        else
          transpose</*IS_CAREFUL=*/false>(at_v.stage, num_keys);
        fence_proxy_async();  // wgmma sees V^T, and TMA may overwrite V
        shared.ring_v.warp_release(at_v, lane);
        if (lane == 0) mbarrier_arrive(&shared.ring_vt.bar_full[at_v.stage]);
        at_v.advance();
      }
    }
  }

  __device__ __forceinline__ void write_ones() {
    constexpr uint32_t FOUR = 0x38383838;
    uint4* const chunks = reinterpret_cast<uint4*>(&shared.ones);
    for (int i = lane; i < int(sizeof(shared.ones) / sizeof(uint4)); i += 32)
      store_16_bytes(&chunks[i], make_uint4(FOUR, FOUR, FOUR, FOUR));
  }

  // Keys from num_keys on become 0, whatever V holds there: P is 0, and 0 * NaN is not.
  template <bool IS_CAREFUL>
  __device__ __forceinline__ void transpose(int stage, int num_keys) {
    // ldmatrix reads four 8 x 8 matrices of 16-bit elements: keys 0 to 7 and 8 to 15 of 16 columns, and the
    // same keys of the next 16. stmatrix writes 8 of the 16 columns, 16 keys long, and the other 8, and so
    // the next 16. This lane has the address of a row of one of the four.
    const int matrix = lane / 8, row = lane % 8;
    const int from = V::offset_of(matrix % 2 * 8 + row, matrix / 2 * 16);
    // The 8 columns are 0, 2, 4, 6, 9, 11, 13 and 15: their rows lie in different banks. The even ones would
    // not.
    const int to = VT::offset_of(matrix / 2 * 16 + row * 2 + (matrix + row / 4) % 2, 0);
    const uint32_t even = 0x6420, odd = 0x7531;  // bytes of two registers
    const uint32_t first = lane < 16 ? even : odd, second = lane < 16 ? odd : even;
    const int first_col = number * (C::HEAD_DIM / TRANSPOSERS);
#pragma unroll 1  // unrolled it needs more than the 32 registers of a producer
    for (int col = 0; col < C::HEAD_DIM / TRANSPOSERS; col += 32) {
#pragma unroll
      for (int key = 0; key < BLOCK_N; key += 16) {
        uint32_t pairs[4], words[4];
        ldmatrix_x4_trans(pairs, shared.v[stage].at(from, key, first_col + col));
        // A lane gets keys 2 c and 2 c + 1 of two neighbouring columns from the one matrix, and 2 c + 8 and 2
        // c + 9 from the other, with c = lane % 4. Of these four keys it also has P, and wgmma wants them in
        // one register: so they become one word of V^T.
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          words[j] = __byte_perm(pairs[j], pairs[j + 1], first);
          words[j + 1] = __byte_perm(pairs[j], pairs[j + 1], second);
        }
        if constexpr (IS_CAREFUL) {
          const int left = num_keys - key - lane % 4 * 2;
          const uint32_t exist = (left > 0 ? 0xff : 0) | (left > 1 ? 0xff00 : 0) | (left > 8 ? 0xff0000 : 0) |
                                 (left > 9 ? 0xff000000 : 0);
          for (uint32_t& word : words) word &= exist;
        }
        stmatrix_x4(shared.v_transposed[stage].at(to, first_col + col, key), words);
      }
    }
  }
};

// A warpgroup that computes. A tile of keys gives S = Q K^T, then P, the exponentials of S, then P V, which
// is added to O. While it computes P, the other warpgroups have the tensor cores.
template <bool CAUSAL, bool WANTS_LSE, typename C>
struct Consumer {
  using Q = typename Storage<C>::Q;
  using K = typename Storage<C>::KV;
  using V = typename Storage<C>::VT;
  using Ones = typename Storage<C>::Ones;
  using O = typename Storage<C>::O;

  const AttentionParams<Fp8>& params;
  Storage<C>& shared;
  const int warpgroup;
  const Turns<C> turns;
  const int lane = threadIdx.x % 32;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  int kv_tile;  // of S
  float scale;  // of this head's scores

  // Of the rows acc_row() + r * 8.
  float row_base[1][2];   // what P is relative to, scaled: LARGEST_P less than a maximum so far
  float row_sum[1][2];    // of P as it is rounded; with WANTS_LSE, of this lane's P before that
  float row_scale[1][2];  // that O needs because its base has changed
  float acc_o[1][C::HEAD_DIM / MMA_N][4];
  uint32_t frag_p[BLOCK_N / MMA_K][4];

  __device__ Consumer(const AttentionParams<Fp8>& call, Storage<C>& storage, int consumer)
      : params(call), shared(storage), warpgroup(consumer), turns{consumer} {}

  // All tiles of queries that the loader gets.
  __device__ __forceinline__ void run() {
    if (warpgroup == C::NUM_WARPGROUPS - 1) turns.end();  // the first turn is warpgroup 0's
    for (; begin_tile(); at_q.advance()) {
      turns.begin();  // the warpgroup before has issued its products
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

  // Ends the warpgroup's turn when its Q K^T is issued.
  template <bool IS_CAREFUL>
  __device__ __forceinline__ void scores_to_p() {
    float acc_s[1][BLOCK_N / MMA_N][4];
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    start_qk(acc_s);
    turns.end();
    warpgroup_wait<0>();  // S is complete, and wgmma has read K
    warpgroup_fence_operand(wgmma_accumulator(acc_s));
    shared.ring_k.warp_release(at_k, lane);
    at_k.advance();

    if constexpr (IS_CAREFUL) mask(acc_s);
    row_scale[0][0] = row_scale[0][1] = 1.0f;
    if (uniform(growth_bound(acc_s, row_base, scale) > MAX_P))
      change_base(acc_s, scale, row_base, row_sum, row_scale, LARGEST_P);
    constexpr bool WITH_BYTES = !WANTS_LSE && !IS_CAREFUL;
    if (!WITH_BYTES || uniform(!make_p<WITH_BYTES>(acc_s))) make_p</*WITH_BYTES=*/false>(acc_s);
  }

  // O = row_scale O + P V, and row_sum + P times ones. The tensor cores sum one tile alone, in 14 bits, and
  // these additions are in FP32.
  __device__ __forceinline__ void add_pv() {
    float acc_pv[1][C::HEAD_DIM / MMA_N][4], acc_sum[1][1][4];
    shared.ring_vt.consumer_wait(at_v);  // V^T is complete
    start_pv(acc_pv, acc_sum);
    warpgroup_wait<0>();  // P V is complete, and wgmma has read V and P's registers
    warpgroup_fence_operand(wgmma_accumulator(acc_pv));
    if constexpr (!WANTS_LSE) warpgroup_fence_operand(wgmma_accumulator(acc_sum));
    shared.ring_vt.warp_release(at_v, lane);
    at_v.advance();
#pragma unroll
    for (int i = 0; i < C::HEAD_DIM / MMA_N * 4; ++i) {
      float& o = acc_o[0][i / 4][i % 4];
      o = fmaf(o, row_scale[0][i / 2 % 2], acc_pv[0][i / 4][i % 4]);
    }
    if constexpr (!WANTS_LSE) {  // a row's sum has been scaled when its base changed
      for (int r = 0; r < 2; ++r) row_sum[0][r] += acc_sum[0][0][2 * r];
    }
  }

  // ---- The products.
  __device__ __forceinline__ void start_qk(float (&acc_s)[1][BLOCK_N / MMA_N][4]) {
    const SmemDescriptor q = make_smem_descriptor(shared.q[at_q.stage][warpgroup].q);
    const SmemDescriptor k = make_smem_descriptor(shared.k[at_k.stage]);
    warpgroup_fence_operand(wgmma_accumulator(acc_s));
    warpgroup_arrive();
#pragma unroll
    for (int col = 0; col < C::HEAD_DIM; col += MMA_K)
      wgmma_m64k32_e4m3(wgmma_accumulator(acc_s), advance<Q>(q, 0, col), advance<K>(k, 0, col), col > 0);
    warpgroup_commit_batch();
  }
  __device__ __forceinline__ void start_pv(float (&acc_pv)[1][C::HEAD_DIM / MMA_N][4],
                                           float (&acc_sum)[1][1][4]) {
    const SmemDescriptor v = make_smem_descriptor(shared.v_transposed[at_v.stage]);
    const SmemDescriptor ones = make_smem_descriptor(shared.ones);
    warpgroup_fence_operand(wgmma_accumulator(acc_pv));
    if constexpr (!WANTS_LSE) warpgroup_fence_operand(wgmma_accumulator(acc_sum));
    warpgroup_arrive();
#pragma unroll
    for (int key = 0; key < BLOCK_N; key += MMA_K) {
      const auto& p = frag_p[key / MMA_K];
      wgmma_m64k32_e4m3(wgmma_accumulator(acc_pv), p, advance<V>(v, 0, key), key > 0);
      if constexpr (!WANTS_LSE)
        wgmma_m64k32_e4m3(wgmma_accumulator(acc_sum), p, advance<Ones>(ones, 0, key), key > 0);
    }
    warpgroup_commit_batch();
  }

  // ---- P, rounded, as A operands of 32 keys: a register has four of 16 keys, in V's order. False if P are
  // no numbers, or so small that their bytes must come from exponentials: below a byte of 8, e4m3 is no
  // logarithm.
  template <bool WITH_BYTES>
  __device__ __forceinline__ bool make_p(const float (&acc_s)[1][BLOCK_N / MMA_N][4]) {
    uint32_t least = BYTES_OF_8;
#pragma unroll
    for (int i = 0; i < BLOCK_N / 8; ++i) {
      const int r = i % 2;
      const float *left = acc_s[0][i / 2 * 2] + 2 * r, *right = acc_s[0][i / 2 * 2 + 1] + 2 * r;
      if (WITH_BYTES && is_made_of_bytes(i / 2)) {
        const uint32_t left_bytes = two_bytes(left, r), right_bytes = two_bytes(right, r);
        least =
            __vimin3_s16x2(least, left_bytes, right_bytes);  // from 0 on FP16 has the order of the integers
        frag_p[i / 4][i % 4] = __byte_perm(left_bytes, right_bytes, 0x6420);
      } else {
        const auto exp = [&](float s) { return exp2_approx(fmaf(s, scale, -row_base[0][r])); };
        const float p[4] = {exp(left[0]), exp(left[1]), exp(right[0]), exp(right[1])};
        if constexpr (WANTS_LSE) row_sum[0][r] += (p[0] + p[1]) + (p[2] + p[3]);
        frag_p[i / 4][i % 4] = pack4_e4m3(p[0], p[1], p[2], p[3]);
      }
    }
    return least == BYTES_OF_8;
  }
  // INTEGER + the bytes of two P. A multiply-add can limit its result to 0 to 1 at no cost, so these are
  // bytes in units of NAN_BYTE: 0 is what would be below 0, or is no number. Then FP16 rounds to an integer.
  __device__ __forceinline__ uint32_t two_bytes(const float* s, int r) const {
    constexpr float EXPONENT = 8.0f / NAN_BYTE, OF_0 = byte_of(0.0f) / NAN_BYTE;
    const float factor = scale * EXPONENT, summand = OF_0 - row_base[0][r] * EXPONENT;
    const __half2 part =
        __floats2half2_rn(__saturatef(fmaf(s[0], factor, summand)), __saturatef(fmaf(s[1], factor, summand)));
    const __half2 bytes = __hfma2(part, __float2half2_rn(NAN_BYTE), __float2half2_rn(INTEGER));
    uint32_t bits;
    memcpy(&bits, &bytes, sizeof(bits));
    return bits;
  }

  // ---- The beginning of a tile of queries; false if there is none.
  __device__ __forceinline__ bool begin_tile() {
    shared.ring_q.consumer_wait(at_q);  // the loader has written `work`, and TMA has brought Q
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = num_key_tiles<BLOCK_N>(keys) - 1;
    scale = params.score_scale_log2(work.batch, work.head);
    row_base[0][0] = row_base[0][1] = -INFINITY;
    row_sum[0][0] = row_sum[0][1] = 0.0f;
#pragma unroll
    for (int i = 0; i < C::HEAD_DIM / MMA_N * 4; ++i) acc_o[0][i / 4][i % 4] = 0.0f;
    if constexpr (CAUSAL) {
#pragma unroll 1
      for (int unseen = num_unseen(); uniform(unseen > 0); --unseen) {
        turns.begin();  // as many turns as the other warpgroups take
        turns.end();
        // An earlier release would count for the tile before in this stage, which the others may still read.
        shared.ring_k.consumer_wait(at_k);
        shared.ring_k.warp_release(at_k, lane);
        at_k.advance();
        shared.ring_vt.consumer_wait(at_v);
        shared.ring_vt.warp_release(at_v, lane);
        at_v.advance();
      }
    }
    return true;
  }
  // Scores are masked, if needed, from the highest tile down to this one. Computed anew for each of these few
  // tiles, because a lane has only 160 registers.
  __device__ __forceinline__ int last_careful() const {
    const Work work = shared.work[at_q.stage];
    const int first_query = first_query_of(work);
    return (key_range_within<CAUSAL>(params, work.kv_len, first_query, kWarpgroupM).unmasked_end - 1) /
           BLOCK_N;
  }
  // Tiles of keys that a later warpgroup needs, and that lie beyond this one's diagonal. It releases them
  // unread.
  __device__ int num_unseen() const {
    const Work work = shared.work[at_q.stage];
    const KeyRange all = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
    return num_key_tiles<BLOCK_N>(all) - 1 - kv_tile;
  }
  __device__ int first_query_of(const Work& work) const { return work.first_query + warpgroup * kWarpgroupM; }

  __device__ __forceinline__ void mask(float (&acc_s)[1][BLOCK_N / MMA_N][4]) {
    const Work work = shared.work[at_q.stage];
    const int first_query = first_query_of(work);
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query, kWarpgroupM);
    if (keys.needs_mask(kv_tile * BLOCK_N, BLOCK_N))
      mask_scores<CAUSAL>(acc_s, params, work.kv_len, first_query + acc_row(), kv_tile * BLOCK_N + acc_col());
  }

  // ---- The end of a tile of queries: its rows' sums and log-sum-exps, if wanted. Then O, rounded, goes to
  // shared memory.
  __device__ __forceinline__ void end_rows() {
    const Work work = shared.work[at_q.stage];
    if constexpr (WANTS_LSE)
      finish_rows(params, work.batch, work.head, first_query_of(work) + acc_row(), lane_id(), row_base,
                  row_sum);
    row_scale[0][0] = row_scale[0][1] = params.output_scale(work.batch, work.head);
    scale_rows(acc_o, row_scale);
  }
  __device__ __forceinline__ void write_o() {
    bar_sync(BAR_Q_READ + warpgroup, 128);  // no warp's product reads Q any more: O has more bytes to a row
    stmatrix_normalised(shared.q[at_q.stage][warpgroup].o, o_offset(), acc_o, row_sum);
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

template <bool CAUSAL, bool WANTS_LSE, typename C>
__global__ void __launch_bounds__(C::NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Fp8> params, const __grid_constant__ TensorMaps maps,
                     TileOrder order, int num_tiles) {
  auto& shared = *reinterpret_cast<Storage<C>*>(smem);
  if (threadIdx.x == 0) {
    shared.init();
    fence_mbarrier_init();  // TMA sees the mbarriers
  }
  __syncthreads();  // the mbarriers are initialised

  // Producers: one warp loads, another stores, and two transpose V.
  if (threadIdx.x >= C::CONSUMERS * 128) {
    warpgroup_reg_dealloc<C::PRODUCER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
    const int role = uniform(int(threadIdx.x / 32)) - C::CONSUMERS * 4;
    if (role >= 2) return Transposer<CAUSAL, C>{params, shared, role - 2}.run();
    if (!elect_one()) return;
    if (role == 1) return store_tiles(shared, maps.o);
    return load_tiles<CAUSAL, Keys::kLastToFirst>(shared, params, maps, order, num_tiles, blockIdx.x);
  }
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  Consumer<CAUSAL, WANTS_LSE, C>(params, shared, uniform(int(threadIdx.x / 128))).run();
}

// ---- The host.

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  // D, pipelines, warpgroups, keys of a tile, stages of K and V, turns. While one warpgroup has the tensor
  // cores, two exponentiate. With one alone, a scheduler would have a single warp, which waits for its own
  // results.
  using C = PipelineConfig<HEAD_DIM, 1, 3, BLOCK_N, 2, 3, true>;
  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  const auto kernel =
      params.lse == nullptr ? attention_kernel<CAUSAL, false, C> : attention_kernel<CAUSAL, true, C>;
  launch(kernel, dim3(min(num_tiles, num_sms())), dim3(C::NUM_THREADS), sizeof(Storage<C>), stream, params,
         TensorMaps{.q = make_tensor_map<typename Storage<C>::Q>(params.q),
                    .k = make_tensor_map<typename Storage<C>::KV>(params.k),
                    .v = make_tensor_map<typename Storage<C>::KV>(params.v),
                    .o = make_tensor_map<typename Storage<C>::O>(params.o)},
         tile_order<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "three eighths of P without exponentials, where no log-sum-exp is wanted",
    .removes = "three eighths of the exponentials, and the additions of the sums",
    .after = "v45_transposing_warps",
    .part = Part::kFp8,
    .dtypes = {DType::kE4m3},
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .uses_counters = true,
    .lse_changes_o = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
