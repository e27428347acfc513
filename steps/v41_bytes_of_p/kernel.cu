// v41: P without exponentials. A number of e4m3, as an integer, is nearly 8 (log2 + 7): so the byte of P is
// its score, multiplied, shifted and rounded, which one multiply-add does. Scores are in FP16, two in a
// register, and what is done to one is done to both. A row's sum of P is P times columns of ones, which V
// gets.
#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/transposed_tile.h"
#include "common/blocks/uniform.h"
#include "common/elect.h"
#include "common/griddepcontrol.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/wgmma.h"

namespace STEP_NAMESPACE {

using Fp8 = __nv_fp8_e4m3;

constexpr int BLOCK_N = 256;   // keys of a tile
constexpr int V_N = 128;       // keys of a tile of V^T, which has 128 bytes in a row
constexpr int SUMS = 8;        // columns behind V's: P times each is the sum of 16 P of V_N
constexpr int BAR_Q_READ = 8;  // named barriers, one for each warpgroup; Turns has 1 and 2
constexpr int MMA_N = 8;
constexpr int MMA_K = 32;

// From 1024 to 2048 the numbers of FP16 are the integers. So 1024 + the byte of P, computed in FP16, is
// rounded to an integer, and has the byte in its last bits.
constexpr float INTEGER = 1024.0f;

// The byte of P = 2^x. Where x is an integer the byte is 8 (x + 7). In between, e4m3 rises in a straight
// line, and 2^x lies below it, by up to 0.69 of the byte's unit: by 0.458 in the mean.
__device__ constexpr float exponent_of(float byte) { return (byte + 0.458f) / 8.0f - 7.0f; }

// P is as large as e4m3 allows, which ends at 448: its byte is 126, and the next is NaN. When a row gets a
// new base, the byte of its largest P is 118, or less if the base's FP16 is coarse. One key may have most of
// a row's weight, so this P should be right in the mean. At 118, which is 1.75 * 2^7, it is: there the line
// crosses 2^x.
constexpr float MAX_BYTE = 126.0f;
constexpr float WANTED_BYTE = 118.5f;
constexpr uint32_t BYTES_OF_8 = 0x64086408;  // INTEGER + 8, twice

constexpr float MOST_OF_FP16 = 65504.0f;
// A score's factor is one of FP16's numbers, but not 0: 0 * -inf would make NaN of what is masked. It moves
// no byte by more than 25,088 * 2^-24, of a sum of 128 products.
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

// ---- V^T in the workspace: [batch, num_heads_kv, tiles of keys, HEAD_DIM + SUMS, V_N].

constexpr int TRANSPOSE_THREADS = 256;

// A CTA makes a tile. Keys beyond kv_len become 0, whatever V holds there: P is 0, and 0 * NaN is not.
template <int HEAD_DIM>
__global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_v(const AttentionParams<Fp8> params, uint4* v_transposed) {
  auto& transposed = *reinterpret_cast<TransposedTile<HEAD_DIM, V_N>*>(smem);
  const int tile = blockIdx.x, kv_head = blockIdx.y, batch = blockIdx.z;
  const Fp8* const v = params.v.head(batch, kv_head);
  const int kv_len = params.kv_length(batch);
  griddepcontrol_launch_dependents();  // the attention kernel begins where an SM has room for it

  transposed.template fill<TRANSPOSE_THREADS>([&](int row, int col) {
    const int key = tile * V_N + row;
    return key < kv_len ? load_16_bytes(&v[key * params.v.row_stride + col]) : uint4{};
  });
  __syncthreads();  // the tile is complete

  // A column's ones are for 16 keys. The tensor cores cut off what is less than 2^-13 of the largest number
  // of a sum, and where one P is large that is something of all the others. So they should be few.
  constexpr int CHUNKS = V_N / 16;  // of a row
  static_assert(CHUNKS == SUMS);
  const int64_t number = (int64_t(batch) * params.num_heads_kv + kv_head) * gridDim.x + tile;
  uint4* const out = v_transposed + number * ((HEAD_DIM + SUMS) * CHUNKS);
  for (int i = threadIdx.x; i < (HEAD_DIM + SUMS) * CHUNKS; i += TRANSPOSE_THREADS) {
    const int row = i / CHUNKS, place = i % CHUNKS;
    const uint32_t ones = row - HEAD_DIM == place ? 0x38383838 : 0;
    store_16_bytes(
        &out[i], row < HEAD_DIM ? transposed.load_words(row, place * 4) : make_uint4(ones, ones, ones, ones));
  }
}

// ---- The attention kernel.

template <typename C>
struct Tiles {
  static constexpr int HEAD_DIM = C::HEAD_DIM;
  using Q = SwizzledTile<Fp8, kWarpgroupM, HEAD_DIM, HEAD_DIM>;  // a warpgroup's rows
  using K = SwizzledTile<Fp8, BLOCK_N, HEAD_DIM, HEAD_DIM>;
  using V = SwizzledTile<Fp8, HEAD_DIM + SUMS, V_N, V_N>;  // transposed
  using O = SwizzledTile<__nv_bfloat16, kWarpgroupM, HEAD_DIM, 128>;
  union Rows {
    Q q;
    O o;  // in the end
  };
  Rows q[kQStages][C::NUM_WARPGROUPS];
  K k[C::K_STAGES];
  V v[C::V_STAGES][BLOCK_N / V_N];

  __device__ void load_k(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange&, int kv_tile,
                         int kv_head, int batch) {
    tma_load_5d(&k[stage], maps.k, bar_full, 0, kv_tile * BLOCK_N, 0, kv_head, batch);
  }
  __device__ void load_v(int stage, const TensorMaps& maps, uint64_t* bar_full, const KeyRange&, int kv_tile,
                         int kv_head, int batch) {
    for (int i = 0; i < BLOCK_N / V_N; ++i)
      tma_load_5d(&v[stage][i], maps.v, bar_full, 0, 0, kv_tile * (BLOCK_N / V_N) + i, kv_head, batch);
  }
  __device__ const O& o(int stage, int warpgroup) const { return q[stage][warpgroup].o; }
};

template <typename C>
struct Storage : WithBarriers<Tiles<C>, C> {};

// ---- The softmax of a lane's rows, acc_row() + r * 8. Scores are two to a register, of neighbouring
// columns: of 8 columns first those of row 0, then those of row 1.
struct BytesOfP {
  __half2 factor;       // of a score, for P's byte; in both halves
  __half2 summand[2];   // of the same, with INTEGER and the base that P is relative to; in both halves
  float row_sum[1][2];  // of this lane's P
  float row_scale[2];   // that O needs because the base has changed

  // `scale` is that of scores, to units of log2.
  __device__ __forceinline__ void begin(float scale) {
    factor = __float2half2_rn(fmaxf(scale * 8.0f, LEAST_FACTOR));
    summand[0] = summand[1] = __float2half2_rn(INFINITY);
    row_sum[0][0] = row_sum[0][1] = 0.0f;
  }
  template <bool IS_CAREFUL, int NUM, int K_TILES>
  __device__ __forceinline__ void scores_to_p(uint32_t (&acc_s)[NUM], uint32_t (&frag_p)[K_TILES][4]) {
    row_scale[0] = row_scale[1] = 1.0f;
    if (uniform(has_grown(acc_s))) change_base(acc_s);
    make_p<IS_CAREFUL>(acc_s, frag_p);
  }
  // What P is relative to, in units of log2.
  __device__ float base(int r) const { return -exponent_of(__low2float(summand[r]) - INTEGER); }

 private:
  // Could a P be larger than e4m3 allows? Where all scores of a row are negative it says so too often.
  template <int NUM>
  __device__ __forceinline__ bool has_grown(const uint32_t (&acc_s)[NUM]) const {
    uint32_t max[2] = {0, 0};  // bits of the largest scores from 0 on
#pragma unroll
    for (int i = 0; i < NUM; i += 4) {
      max[0] = __vimax3_s16x2(max[0], acc_s[i], acc_s[i + 2]);
      max[1] = __vimax3_s16x2(max[1], acc_s[i + 1], acc_s[i + 3]);
    }
    const __half2 most = __hmax2_nan(__hfma2(pair_of(max[0]), factor, summand[0]),
                                     __hfma2(pair_of(max[1]), factor, summand[1]));
    constexpr float MOST = INTEGER + MAX_BYTE;
    return !(__low2float(most) <= MOST && __high2float(most) <= MOST);  // or NaN
  }

  // Makes the rows' largest scores so far their bases, so that the byte of the largest P is WANTED_BYTE.
  template <int NUM>
  __device__ __forceinline__ void change_base(const uint32_t (&acc_s)[NUM]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __half2 pair = pair_of(acc_s[r]);
#pragma unroll
      for (int i = 2 + r; i < NUM; i += 2) pair = __hmax2(pair, pair_of(acc_s[i]));
      const float most = quad_reduce_max(fmaxf(__low2float(pair), __high2float(pair)));
      const float wanted = INTEGER + WANTED_BYTE - most * __low2float(factor);
      const float before = __low2float(summand[r]);
      // A base never falls. Without a key seen it stays so low that any score outgrows it, and P is 0. If
      // FP16 has no such base, the row becomes NaN.
      float next = fminf(fminf(wanted, before), MOST_OF_FP16);
      if (fabsf(wanted) > MOST_OF_FP16 && wanted != INFINITY) next = NAN;
      const __half after = __float2half_rd(next);
      row_scale[r] = exp2_approx((__half2float(after) - before) * (1.0f / 8.0f));
      row_sum[0][r] *= row_scale[r];
      summand[r] = __half2half2(after);
    }
  }

  // P as A operands of 32 keys: a register has four of 16 keys, in V's order.
  template <bool IS_CAREFUL, int NUM, int K_TILES>
  __device__ __forceinline__ void make_p(uint32_t (&acc_s)[NUM], uint32_t (&frag_p)[K_TILES][4]) const {
    uint32_t least = BYTES_OF_8;
    // A masked score is no small P: of -inf this makes NaN, which as an integer is above all others.
    const auto unmasked = [](uint32_t bytes) {
      return IS_CAREFUL ? bits_of(__hfma2(pair_of(bytes), __float2half2_rn(0.0f), pair_of(bytes))) : bytes;
    };
#pragma unroll
    for (int i = 0; i < NUM; i += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) acc_s[i + r] = bits_of(__hfma2(pair_of(acc_s[i + r]), factor, summand[r]));
      // As integers they have the same order from 0 on, and what is negative is below all that.
      least = __vimin3_s16x2(least, unmasked(acc_s[i]), unmasked(acc_s[i + 1]));
    }
    if (uniform(least != BYTES_OF_8)) count_small_p<IS_CAREFUL>(acc_s);

#pragma unroll
    for (int i = 0; i < K_TILES * 4; ++i) {
      const int left = i / 2 * 4 + i % 2;
      frag_p[i / 4][i % 4] = left < NUM ? __byte_perm(acc_s[left], acc_s[left + 2], 0x6420) : 0;
    }
  }
  // Below a byte of 8, which is 2^-6, e4m3 is no logarithm: the byte counts units of 2^-9. There 2^x in these
  // units is larger than a straight line, which is negative from 2^-7 on and would make NaN. A score of -inf
  // is masked, or its sum was beyond FP16: then P becomes NaN.
  template <bool IS_CAREFUL, int NUM>
  static __device__ __forceinline__ void count_small_p(uint32_t (&bytes)[NUM]) {
    constexpr float AT_ZERO = exponent_of(-INTEGER) + 9.0f;
    const auto byte_of_small = [](float byte) {
      const float units = fminf(exp2_approx(byte * (1.0f / 8.0f) + AT_ZERO), 8.0f);
      if (byte == -INFINITY && !IS_CAREFUL) return NAN;
      return byte < INTEGER + units ? INTEGER + units : byte;  // NaN stays NaN
    };
#pragma unroll
    for (uint32_t& two : bytes) {
      const __half2 pair = pair_of(two);
      two = bits_of(__floats2half2_rn(byte_of_small(__low2float(pair)), byte_of_small(__high2float(pair))));
    }
  }
};

// A warpgroup that computes. A tile of keys gives S = Q K^T, then the bytes of P, then P V, which is added to
// O. While it makes P, the other warpgroup has the tensor cores.
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
  static constexpr int O_TILES = C::HEAD_DIM / MMA_N;

  int kv_tile;  // of S
  BytesOfP softmax;
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
    softmax.begin(params.score_scale_log2(work.batch, work.head));
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

  // ---- The end of a tile of queries: its rows' sums and log-sum-exps. Then O, rounded, goes to shared
  // memory.
  __device__ __forceinline__ void end_rows() {
    const Work work = shared.work[at_q.stage];
    const float row_base[1][2] = {{softmax.base(0), softmax.base(1)}};
    finish_rows(params, work.batch, work.head, first_query_of(work) + acc_row(), lane_id(), row_base,
                softmax.row_sum);
    const float scale = params.output_scale(work.batch, work.head);
    scale_rows(acc_o, {{scale, scale}});
  }
  __device__ __forceinline__ void write_o() {
    bar_sync(BAR_Q_READ + warpgroup, 128);  // no warp's product reads Q any more: O has more bytes to a row
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

template <bool CAUSAL, typename C>
__global__ void __launch_bounds__(C::NUM_THREADS, 1)
    attention_kernel(const AttentionParams<Fp8> params, const __grid_constant__ TensorMaps maps,
                     TileOrder order, int num_tiles) {
  auto& shared = *reinterpret_cast<Storage<C>*>(smem);
  if (threadIdx.x == 0) {
    shared.init();
    fence_mbarrier_init();  // TMA sees the mbarriers
  }
  __syncthreads();  // the mbarriers are initialised

  // Producers: one warp loads, another stores.
  if (threadIdx.x >= C::CONSUMERS * 128) {
    warpgroup_reg_dealloc<C::PRODUCER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
    const int role = uniform(int(threadIdx.x / 32)) - C::CONSUMERS * 4;
    if (role >= 2 || !elect_one()) return;
    if (role == 1) return store_tiles(shared, maps.o);
    return load_tiles<CAUSAL, Keys::kLastToFirst, /*COUNTS=*/CAUSAL, /*SKIPS=*/false, /*OVERLAPS=*/true>(
        shared, params, maps, order, num_tiles, blockIdx.x);
  }
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  Consumer<CAUSAL, C>(params, shared, uniform(int(threadIdx.x / 128))).run();
}

// ---- The host.

// Tiles of V^T: those of at least one tile of keys.
int num_tiles_of(int seqlen_kv) { return max(1, ceil_div(seqlen_kv, BLOCK_N)) * (BLOCK_N / V_N); }

// The map of V^T. Coordinates: (key of the tile, column, tile, head, batch).
template <typename V>
TensorMap make_v_map(const AttentionParams<Fp8>& params) {
  const uint64_t tiles = uint64_t(num_tiles_of(params.seqlen_kv)), heads = uint64_t(params.num_heads_kv);
  return encode_tensor_map({.base = params.workspace,
                            .element_bytes = 1,
                            .size = {V_N, V::ROWS, tiles, heads, uint64_t(params.batch)},
                            .stride = {1, V_N, sizeof(V), tiles * sizeof(V), heads * tiles * sizeof(V)},
                            .box = {V_N, V::ROWS, 1, 1, 1},
                            .swizzle_bytes = V::SWIZZLE_BYTES});
}

size_t workspace_bytes(const AttentionCall& call) {
  return size_t(call.batch) * call.num_heads_kv * num_tiles_of(call.seqlen_kv) * V_N * (call.head_dim + SUMS);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  launch(transpose_v<HEAD_DIM>, dim3(num_tiles_of(params.seqlen_kv), params.num_heads_kv, params.batch),
         dim3(TRANSPOSE_THREADS), sizeof(TransposedTile<HEAD_DIM, V_N>), stream, params,
         static_cast<uint4*>(params.workspace));

  // D, pipelines, warpgroups, keys of a tile, stages of K and V, turns.
  using C = PipelineConfig<HEAD_DIM, 1, 2, BLOCK_N, 2, 2, true>;
  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  launch_overlapping(attention_kernel<CAUSAL, C>, dim3(min(num_tiles, num_sms())), dim3(C::NUM_THREADS),
                     sizeof(Storage<C>), stream, params,
                     TensorMaps{.q = make_tensor_map<typename Storage<C>::Q>(params.q),
                                .k = make_tensor_map<typename Storage<C>::K>(params.k),
                                .v = make_v_map<typename Storage<C>::V>(params),
                                .o = make_tensor_map<typename Storage<C>::O>(params.o)},
                     tile_order<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "the bytes of P straight from scores in FP16, without exponentials",
    .removes = "the exponentials, and half of the other instructions of the softmax",
    .after = "v40_fp8",
    .part = Part::kFp8,
    .dtypes = {DType::kE4m3},
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .fast = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
