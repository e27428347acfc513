// v46: exponentials for half of P, and bytes straight from scores, as in v41, for the other half. Scores are
// in FP16, and no scores are too large for it: rows of Q are scaled first. So any Q and K are right, and O is
// nearly as exact as v40's.
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
#include "common/unpack.h"
#include "common/wgmma.h"

namespace STEP_NAMESPACE {

using Fp8 = __nv_fp8_e4m3;

constexpr int V_N = 128;     // keys of a tile of V^T, which has 128 bytes in a row
constexpr int SUMS = 8;      // columns behind V's: P times each is the sum of 16 P of V_N
constexpr int BAR_ROWS = 8;  // named barriers, one for each warpgroup; Turns has 1 to 3
constexpr int MMA_N = 8;
constexpr int MMA_K = 32;

// P is as large as e4m3 allows, so that small P are still numbers of e4m3: its largest is about 2^8 when a
// row gets a new base, and at most 2^8.75 = 430 before it gets another one. e4m3 ends at 448.
constexpr float LARGEST_P = 8.0f;
constexpr float MAX_P = 8.75f;

// Of each 8 pairs of P's registers, BYTES have P that come from scores alone.
constexpr int BYTES = 4;
__device__ constexpr bool is_made_of_bytes(int pair) { return pair * BYTES / 8 != (pair + 1) * BYTES / 8; }

// The byte of P = 2^x. Where x is an integer the byte is 8 (x + 7). In between, e4m3 rises in a straight
// line, and 2^x lies below it, by 0.458 of the byte's unit in the mean.
constexpr float BYTE_OF_1 = 56.0f, BELOW_THE_LINE = 0.458f / 8.0f;  // the latter in units of x
constexpr float INTEGER = 1024.0f;           // from here to 2048 the numbers of FP16 are the integers
constexpr uint32_t BYTES_OF_8 = 0x64086408;  // INTEGER + 8, twice

// A base is a number of FP16: the nearest one, up to MAX_NEAREST in magnitude, so that the largest P of a row
// is 2^8 up to 2 %. Above that it is the next larger one, and the largest P may be less, down to 2^4. Rows
// with scores beyond MAX_BASE become NaN.
constexpr float MAX_NEAREST = 64.0f, MAX_BASE = 8192.0f;
constexpr float LOWEST = -65504.0f;  // of FP16

// A score's factor is one of FP16's numbers, but not 0: 0 * -inf would make NaN of what is masked.
constexpr float LEAST_FACTOR = 0x1p-24f, MOST_FACTOR = 65504.0f;

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
  using K = SwizzledTile<Fp8, C::BLOCK_N, HEAD_DIM, HEAD_DIM>;
  using V = SwizzledTile<Fp8, HEAD_DIM + SUMS, V_N, V_N>;  // transposed
  using O = SwizzledTile<__nv_bfloat16, kWarpgroupM, HEAD_DIM, 128>;
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
  static constexpr int BLOCK_N = C::BLOCK_N, O_TILES = C::HEAD_DIM / MMA_N;

  const AttentionParams<Fp8>& params;
  Storage<C>& shared;
  const int warpgroup;
  const Turns<C> turns;
  const int lane = threadIdx.x % 32;

  RingCursor<kQStages> at_q;
  RingCursor<C::K_STAGES> at_k;
  RingCursor<C::V_STAGES> at_v;
  int kv_tile;  // of S

  // Of the rows acc_row() + r * 8.
  __half2 factors;      // of their scores, to units of log2
  __half2 bases;        // what P is relative to, in these units: LARGEST_P less than a maximum so far
  float row_sum[1][2];  // of this lane's P as they are rounded
  float row_scale[2];   // that O needs because the base has changed
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
    row_scale[0] = row_scale[1] = 1.0f;
    if (uniform(has_grown(acc_s))) change_base(acc_s);
    if constexpr (IS_CAREFUL) {
      make_p</*WITH_BYTES=*/false>(acc_s);
    } else if (uniform(!make_p</*WITH_BYTES=*/true>(acc_s))) {
      make_p</*WITH_BYTES=*/false>(acc_s);
      add_what_is_lost(acc_s);
    }
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
      o = fmaf(o, row_scale[i / 2 % 2], acc_pv[0][i / 4][i % 4]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* const sums = &acc_pv[0][O_TILES][2 * r];
      row_sum[0][r] += sums[0] + sums[1];
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

  // ---- Q, scaled: no score, and no sum on the way to it, is more than what the elements of its row of Q add
  // up to, without their signs, times 448, the largest number of e4m3. FP16 ends at 65,504. So a row that
  // adds up to 128 or more is divided by the least power of two that brings it below 128. An element then
  // changes by at most 2^-16 of the row's sum, where e4m3 has no more bits for it.
  __device__ __forceinline__ void scale_q() {
    constexpr int CHUNKS = C::HEAD_DIM / 32;  // of half a row, which is a lane's
    const int row = warp_row() + lane_id() / 2, first_col = lane_id() % 2 * (C::HEAD_DIM / 2);
    Q& tile = shared.q[at_q.stage][warpgroup].q;
    uint4 chunks[CHUNKS];
    uint32_t* const words = reinterpret_cast<uint32_t*>(chunks);
    __half2 sums = __float2half2_rn(0.0f);  // up to 1.5 % too large or too small
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
      chunks[i] = load_16_bytes(tile.at(Q::offset_of(row, first_col + i * 16), 0, 0));
#pragma unroll
    for (int i = 0; i < CHUNKS * 4; ++i)
      sums += __habs2(pair_of(unpack2_e4m3(words[i]))) + __habs2(pair_of(unpack2_e4m3(words[i] >> 16)));
    float sum = __low2float(sums) + __high2float(sums);
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    const float power = __uint_as_float(__float_as_uint(sum) & 0x7f800000);  // of two; of NaN: infinity
    const float divisor = fmaxf(power * (1.0f / 64.0f), 1.0f);

    if (uniform(divisor > 1.0f)) {
      // 1 / divisor, which is a power of two.
      const __half2 factor = __float2half2_rn(__uint_as_float(0x7f000000 - __float_as_uint(divisor)));
      const auto scaled = [&](uint32_t bytes) { return pair_of(unpack2_e4m3(bytes)) * factor; };
#pragma unroll
      for (int i = 0; i < CHUNKS * 4; ++i) words[i] = pack4_e4m3(scaled(words[i]), scaled(words[i] >> 16));
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i)
        store_16_bytes(tile.at(Q::offset_of(row, first_col + i * 16), 0, 0), chunks[i]);
      fence_proxy_async();  // wgmma sees what this lane has written
    }
    bar_sync(BAR_ROWS + warpgroup, 128);  // all rows are scaled

    const Work work = shared.work[at_q.stage];
    const float scale = params.score_scale_log2(work.batch, work.head);
    const float factor = fminf(fmaxf(scale * divisor, LEAST_FACTOR), MOST_FACTOR);
    const int lane_of_row = accumulator_row(lane) * 2;
    factors = __floats2half2_rn(__shfl_sync(0xffffffff, factor, lane_of_row),
                                __shfl_sync(0xffffffff, factor, lane_of_row + 16));
  }

  // ---- The softmax.
  // Could a P be larger than MAX_P? Where all scores of a row are negative it says so too often.
  template <int NUM>
  __device__ __forceinline__ bool has_grown(const Scores<NUM>& acc_s) const {
    bool is_larger = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t max = 0;  // bits of the largest scores from 0 on, of even and of odd columns
#pragma unroll
      for (int i = r; i < NUM; i += 4) max = __vimax3_s16x2(max, acc_s[i], acc_s[i + 2]);
      const float even = fmaf(__low2float(pair_of(max)), of_row(factors, r), -of_row(bases, r));
      const float odd = fmaf(__high2float(pair_of(max)), of_row(factors, r), -of_row(bases, r));
      is_larger |= !(even <= MAX_P && odd <= MAX_P);  // or NaN
    }
    return is_larger;
  }

  // Makes the rows' largest scores so far, less LARGEST_P, their bases.
  template <int NUM>
  __device__ __forceinline__ void change_base(const Scores<NUM>& acc_s) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __half2 pair = pair_of(acc_s[r]);
#pragma unroll
      for (int i = 2 + r; i < NUM; i += 2) pair = __hmax2(pair, pair_of(acc_s[i]));
      const float most = quad_reduce_max(fmaxf(__low2float(pair), __high2float(pair)));
      const float wanted = fmaf(most, of_row(factors, r), -LARGEST_P), before = of_row(bases, r);
      const float next = fmaxf(before, wanted);
      const float nearest = __half2float(__float2half_rn(next)),
                  above = -__half2float(__float2half_rd(-next));
      // Selects: with branches here, which are hardly ever taken, ptxas makes the whole loop slower.
      base[r] = fabsf(next) <= MAX_NEAREST ? nearest : above;
      if (next == -INFINITY) base[r] = LOWEST;  // no key seen yet: P is 0, and any score outgrows this
      if (fabsf(wanted) > MAX_BASE && wanted != -INFINITY) base[r] = NAN;
      row_scale[r] = exp2_approx(before - base[r]);
      row_sum[0][r] *= row_scale[r];
    }
    bases = __floats2half2_rn(base[0], base[1]);
  }

  // P as A operands of 32 keys: a register has four of 16 keys, in V's order. False if bytes are not right:
  // if one is below 8, where e4m3 is no logarithm, or if a base is too coarse for them. Then all P must come
  // from exponentials.
  template <bool WITH_BYTES, int NUM>
  __device__ __forceinline__ bool make_p(const Scores<NUM>& acc_s) {
    uint32_t least = BYTES_OF_8;
    __half2 factor[2], summand[2], byte_summand[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = r == 0 ? __low2half2(factors) : __high2half2(factors);
      summand[r] = __hneg2(r == 0 ? __low2half2(bases) : __high2half2(bases));
      byte_summand[r] = __float2half2_rn(-BELOW_THE_LINE - of_row(bases, r));
      if (!(fabsf(of_row(bases, r)) <= MAX_NEAREST)) least = 0;
    }
#pragma unroll
    for (int i = 0; i < BLOCK_N / 8; ++i) {
      const int r = i % 2, left = i / 2 * 4 + r;
      uint32_t& four = frag_p[i / 4][i % 4];
      if (left >= NUM) {
        four = 0;
      } else if (WITH_BYTES && is_made_of_bytes(i / 2)) {
        const uint32_t low = two_bytes(acc_s[left], factor[r], byte_summand[r]);
        const uint32_t high = two_bytes(acc_s[left + 2], factor[r], byte_summand[r]);
        least = __vimin3_s16x2(least, low, high);  // from 0 on FP16 has the order of the integers
        four = __byte_perm(low, high, 0x6420);
      } else {
        four = pack4_e4m3(exp2_approx(__hfma2(pair_of(acc_s[left]), factor[r], summand[r])),
                          exp2_approx(__hfma2(pair_of(acc_s[left + 2]), factor[r], summand[r])));
      }
    }
    return least == BYTES_OF_8;
  }
  // Puts back into the sums what rounding takes from P below 2^-6. Where one key has most of a row's weight,
  // thousands of others may be rounded to 0, and count together.
  template <int NUM>
  __device__ __forceinline__ void add_what_is_lost(const Scores<NUM>& acc_s) {
    const __half2 small = __float2half2_rn(0x1p-6f);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const __half2 factor = r == 0 ? __low2half2(factors) : __high2half2(factors);
      const __half2 summand = __hneg2(r == 0 ? __low2half2(bases) : __high2half2(bases));
      __half2 lost = __float2half2_rn(0.0f);
#pragma unroll
      for (int i = r; i < NUM; i += 4) {
        const __half2 p01 = __hmin2(exp2_approx(__hfma2(pair_of(acc_s[i]), factor, summand)), small);
        const __half2 p23 = __hmin2(exp2_approx(__hfma2(pair_of(acc_s[i + 2]), factor, summand)), small);
        const uint32_t rounded = pack4_e4m3(p01, p23);
        lost += p01 - pair_of(unpack2_e4m3(rounded));
        lost += p23 - pair_of(unpack2_e4m3(rounded >> 16));
      }
      row_sum[0][r] += __low2float(lost) + __high2float(lost);
    }
  }
  // INTEGER + the bytes of two P. The second multiply-add rounds to integers.
  static __device__ __forceinline__ uint32_t two_bytes(uint32_t scores, __half2 factor, __half2 summand) {
    const __half2 x = __hfma2(pair_of(scores), factor, summand);
    return bits_of(__hfma2(x, __float2half2_rn(8.0f), __float2half2_rn(INTEGER + BYTE_OF_1)));
  }
  static __device__ __forceinline__ float of_row(__half2 both, int r) {
    return r == 0 ? __low2float(both) : __high2float(both);
  }

  // ---- The beginning of a tile of queries; false if there is none.
  __device__ __forceinline__ bool begin_tile() {
    shared.ring_q.consumer_wait(at_q);  // the loader has written `work`, and TMA has brought Q
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    scale_q();
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = num_key_tiles<BLOCK_N>(keys) - 1;
    bases = __float2half2_rn(-INFINITY);
    row_sum[0][0] = row_sum[0][1] = 0.0f;
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

  // ---- The end of a tile of queries. O, rounded, goes to shared memory.
  __device__ __forceinline__ void write_o() {
    const Work work = shared.work[at_q.stage];
    const float scale = params.output_scale(work.batch, work.head);
    scale_rows(acc_o, {{scale, scale}});
    for (float& sum : row_sum[0]) sum = quad_reduce_sum(sum);
    bar_sync(BAR_ROWS + warpgroup, 128);  // no warp's product reads Q any more: O has more bytes to a row
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

// D, pipelines, warpgroups, keys of a tile, stages of K and V, turns. At D = 64 an SM's exponentials take
// as long as its products, and three warpgroups wait less for their own results than two.
template <int HEAD_DIM>
using Config = std::conditional_t<HEAD_DIM == 64, PipelineConfig<64, 1, 3, 128, 2, 2, true>,
                                  PipelineConfig<128, 1, 2, 256, 2, 2, true>>;

// Tiles of V^T: those of at least one tile of keys.
template <int BLOCK_N>
int num_tiles_of(int seqlen_kv) {
  return max(1, ceil_div(seqlen_kv, BLOCK_N)) * (BLOCK_N / V_N);
}

// The map of V^T. Coordinates: (key of the tile, column, tile, head, batch).
template <typename V, int BLOCK_N>
TensorMap make_v_map(const AttentionParams<Fp8>& params) {
  const uint64_t tiles = uint64_t(num_tiles_of<BLOCK_N>(params.seqlen_kv));
  const uint64_t heads = uint64_t(params.num_heads_kv);
  return encode_tensor_map({.base = params.workspace,
                            .element_bytes = 1,
                            .size = {V_N, V::ROWS, tiles, heads, uint64_t(params.batch)},
                            .stride = {1, V_N, sizeof(V), tiles * sizeof(V), heads * tiles * sizeof(V)},
                            .box = {V_N, V::ROWS, 1, 1, 1},
                            .swizzle_bytes = V::SWIZZLE_BYTES});
}

size_t workspace_bytes(const AttentionCall& call) {
  const int tiles = call.head_dim == 64 ? num_tiles_of<Config<64>::BLOCK_N>(call.seqlen_kv)
                                        : num_tiles_of<Config<128>::BLOCK_N>(call.seqlen_kv);
  return size_t(call.batch) * call.num_heads_kv * tiles * V_N * (call.head_dim + SUMS);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  using C = Config<HEAD_DIM>;
  launch(transpose_v<HEAD_DIM>,
         dim3(num_tiles_of<C::BLOCK_N>(params.seqlen_kv), params.num_heads_kv, params.batch),
         dim3(TRANSPOSE_THREADS), sizeof(TransposedTile<HEAD_DIM, V_N>), stream, params,
         static_cast<uint4*>(params.workspace));

  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  launch_overlapping(attention_kernel<CAUSAL, C>, dim3(min(num_tiles, num_sms())), dim3(C::NUM_THREADS),
                     sizeof(Storage<C>), stream, params,
                     TensorMaps{.q = make_tensor_map<typename Storage<C>::Q>(params.q),
                                .k = make_tensor_map<typename Storage<C>::K>(params.k),
                                .v = make_v_map<typename Storage<C>::V, C::BLOCK_N>(params),
                                .o = make_tensor_map<typename Storage<C>::O>(params.o)},
                     tile_order<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "half of P by exponentials, scores in FP16 for any Q and K",
    .removes = "the limit of Q and K, and most of the error of P",
    .after = "v41_bytes_of_p",
    .part = Part::kFp8,
    .dtypes = {DType::kE4m3},
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .no_lse = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
