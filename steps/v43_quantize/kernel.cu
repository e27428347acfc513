// v43: q, k, v and O in 16 bits, and FP8 in between. A first kernel finds the largest magnitude of each tile,
// and a second one has each head's scales from these, rounds q, k and v to e4m3, and writes V as the tensor
// cores want it, transposed. The attention kernel is v41's.
#include "common/blocks/epilogue.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_pipeline.h"
#include "common/blocks/transposed_tile.h"
#include "common/blocks/uniform.h"
#include "common/elect.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/unpack.h"
#include "common/wgmma.h"

namespace STEP_NAMESPACE {

using Fp8 = __nv_fp8_e4m3;

constexpr int BLOCK_N = 256;   // keys of a tile
constexpr int V_N = 128;       // keys of a tile of V^T, which has 128 bytes in a row
constexpr int ONES = 8;        // columns of ones behind V's
constexpr int BAR_Q_READ = 8;  // named barriers, one for each warpgroup; Turns has 1 and 2
constexpr int MMA_N = 8;
constexpr int MMA_K = 32;

// P is as large as e4m3 allows: its largest is 2^8 when a row gets a new base, and at most 2^8.75 before it
// gets another one. e4m3 ends at 448, whose byte is 126; the next is NaN. The byte of 2^8 is 119.54, and what
// FP16 rounds off the base and a score must not make it 119: so a little more is wanted.
constexpr float LARGEST_P = 8.01f;
constexpr float MAX_P = 8.75f;
constexpr float LARGEST_BYTE = 126.0f;
constexpr uint32_t PART_OF_8 = 0x2c102c10;  // of two bytes of 8: 8 / LARGEST_BYTE in FP16

// The byte of P = 2^x, as a part of LARGEST_BYTE. Where x is an integer the byte is 8 (x + 7). In between,
// e4m3 rises in a straight line, and 2^x lies below it, by up to 0.69 of the byte's unit: by 0.458 in the
// mean.
__device__ constexpr float part_of(float x) { return (8.0f * (x + 7.0f) - 0.458f) / LARGEST_BYTE; }
__device__ constexpr float exponent_of(float part) { return (part * LARGEST_BYTE + 0.458f) / 8.0f - 7.0f; }

// ---- The quantizer. Two kernels read q, k and v in tiles of TILE_ROWS rows, a CTA for each.

constexpr int TILE_ROWS = V_N;
constexpr int THREADS = 256;
constexpr int CHUNK = 8;  // elements of 16 bits that a lane loads at a time

// Everything is contiguous.
struct Workspace {
  Fp8 *q, *k;           // [batch, heads, rows, HEAD_DIM]
  uint4* v_transposed;  // [batch, num_heads_kv, kv_tiles, HEAD_DIM + ONES, V_N]
  float* descales;      // [q, k or v, batch, num_heads_kv]
  uint32_t* maxima;     // [batch, num_heads_kv, tiles], the bits of magnitudes
  int kv_tiles;         // of a head of K or V
};

// The tiles of a (batch, KV head) are those of all query heads that share it, then K's, then V's.
enum Tensor { kQ, kK, kV };
template <typename Element>
struct Tile {
  Tensor tensor;
  int head;                   // of this tensor
  int first_row;              // of the tile
  int rows, rows_that_exist;  // of the head: what lies beyond kv_len does not exist
  const Element* data;        // the head's
  int64_t row_stride;
  int first_tile, num_tiles;  // that share the tensor's scale

  __device__ Tile(const AttentionParams<Element>& params, int kv_tiles) {
    const int kv_head = blockIdx.y, batch = blockIdx.z, q_tiles = gridDim.x - 2 * kv_tiles;
    const int index = blockIdx.x;
    if (index < q_tiles) {
      const int tiles_of_head = ceil_div(params.seqlen_q, TILE_ROWS);
      tensor = kQ;
      head = kv_head * (params.num_heads_q / params.num_heads_kv) + index / tiles_of_head;
      first_row = index % tiles_of_head * TILE_ROWS;
      rows = rows_that_exist = params.seqlen_q;
      first_tile = 0, num_tiles = q_tiles;
    } else {
      tensor = index < q_tiles + kv_tiles ? kK : kV;
      head = kv_head;
      first_tile = tensor == kK ? q_tiles : q_tiles + kv_tiles, num_tiles = kv_tiles;
      first_row = (index - first_tile) * TILE_ROWS;
      rows = params.seqlen_kv, rows_that_exist = params.kv_length(batch);
    }
    const View<const Element>& view = tensor == kQ ? params.q : tensor == kK ? params.k : params.v;
    data = view.head(batch, head);
    row_stride = view.row_stride;
  }
};

// Of a (batch, KV head), by number.
__device__ inline int64_t head_number() { return int64_t(blockIdx.z) * gridDim.y + blockIdx.y; }

// The largest of all threads' values, for all threads.
__device__ inline uint32_t cta_max(uint32_t (&of_warps)[THREADS / 32], uint32_t value) {
  value = __reduce_max_sync(0xffffffff, value);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();  // every warp's is there
  return __reduce_max_sync(0xffffffff, of_warps[threadIdx.x % (THREADS / 32)]);
}

// Without their signs, numbers have the order of their bits. Inf comes above all of them, and NaN above Inf:
// so neither is lost.
template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS)
    find_maxima(const AttentionParams<Element> params, const Workspace workspace) {
  auto& of_warps = *reinterpret_cast<uint32_t(*)[THREADS / 32]>(smem);
  constexpr uint32_t MAGNITUDES = 0x7fff7fff;  // of two elements
  const Tile<Element> tile(params, workspace.kv_tiles);
  uint32_t most = 0;  // of the lower halves, and of the upper ones
#pragma unroll
  for (int i = 0; i < TILE_ROWS * HEAD_DIM; i += THREADS * CHUNK) {
    const int at = i + threadIdx.x * CHUNK, row = tile.first_row + at / HEAD_DIM;
    if (row >= tile.rows_that_exist) continue;
    const uint4 chunk = load_16_bytes(&tile.data[row * tile.row_stride + at % HEAD_DIM]);
    most = __vimax3_s16x2(most, chunk.x & MAGNITUDES, chunk.y & MAGNITUDES);
    most = __vimax3_s16x2(most, chunk.z & MAGNITUDES, chunk.w & MAGNITUDES);
  }
  most = cta_max(of_warps, max(most & 0xffff, most >> 16));
  if (threadIdx.x == 0) workspace.maxima[head_number() * gridDim.x + blockIdx.x] = most;
}

// 16 elements, times `factor`, in e4m3.
template <typename Element>
__device__ uint4 load_rounded(const Element* from, float factor) {
  const auto four = [&](uint32_t low, uint32_t high) {
    const float2 first = unpack2<Element>(low), second = unpack2<Element>(high);
    return pack4_e4m3(first.x * factor, first.y * factor, second.x * factor, second.y * factor);
  };
  const uint4 left = load_16_bytes(from), right = load_16_bytes(from + CHUNK);
  return make_uint4(four(left.x, left.y), four(left.z, left.w), four(right.x, right.y),
                    four(right.z, right.w));
}

template <int HEAD_DIM>
struct QuantizerStorage {
  TransposedTile<HEAD_DIM, V_N> v;
  uint32_t of_warps[THREADS / 32];
};

// All CTAs that share a scale compute it from the same maxima, and so find the same.
template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS)
    quantize(const AttentionParams<Element> params, const Workspace workspace) {
  auto& shared = *reinterpret_cast<QuantizerStorage<HEAD_DIM>*>(smem);
  const Tile<Element> tile(params, workspace.kv_tiles);
  const uint32_t* const maxima = workspace.maxima + head_number() * gridDim.x + tile.first_tile;
  uint32_t most = 0;
  for (int i = threadIdx.x; i < tile.num_tiles; i += THREADS) most = max(most, maxima[i]);
  const float found = unpack2<Element>(cta_max(shared.of_warps, most)).x;
  // So that the factor is finite. A NaN stays one.
  const float magnitude = found < AttentionCall::kLeastQuantized ? AttentionCall::kLeastQuantized : found;
  const float limit = tile.tensor == kV ? AttentionCall::kLargestQuantizedV : AttentionCall::kLargestFastQk;
  const float factor = limit / magnitude;
  const int64_t num_heads = int64_t(gridDim.y) * gridDim.z;
  if (int(blockIdx.x) == tile.first_tile && threadIdx.x == 0)
    workspace.descales[tile.tensor * num_heads + head_number()] = magnitude / limit;

  const auto load = [&](int row, int col) {  // what does not exist is 0, whatever lies there
    return row < tile.rows_that_exist ? load_rounded(&tile.data[row * tile.row_stride + col], factor)
                                      : uint4{};
  };
  if (tile.tensor == kV) {
    shared.v.template fill<THREADS>([&](int key, int col) { return load(tile.first_row + key, col); });
    __syncthreads();  // the tile is complete

    constexpr int CHUNKS = V_N / 16;  // of a row
    const int64_t number = head_number() * workspace.kv_tiles + tile.first_row / V_N;
    uint4* const out = workspace.v_transposed + number * ((HEAD_DIM + ONES) * CHUNKS);
    for (int i = threadIdx.x; i < (HEAD_DIM + ONES) * CHUNKS; i += THREADS) {
      constexpr uint32_t FOUR_ONES = 0x38383838;
      uint4 chunk = make_uint4(FOUR_ONES, FOUR_ONES, FOUR_ONES, FOUR_ONES);
      if (i / CHUNKS < HEAD_DIM) chunk = shared.v.load_words(i / CHUNKS, i % CHUNKS * 4);
      store_16_bytes(&out[i], chunk);
    }
    return;
  }
  const int num_heads_of_tensor = tile.tensor == kQ ? params.num_heads_q : params.num_heads_kv;
  Fp8* const out = (tile.tensor == kQ ? workspace.q : workspace.k) +
                   (int64_t(blockIdx.z) * num_heads_of_tensor + tile.head) * tile.rows * HEAD_DIM;
#pragma unroll
  for (int i = 0; i < TILE_ROWS * HEAD_DIM; i += THREADS * 16) {
    const int at = i + threadIdx.x * 16, row = tile.first_row + at / HEAD_DIM, col = at % HEAD_DIM;
    if (row < tile.rows) store_16_bytes(&out[int64_t(row) * HEAD_DIM + col], load(row, col));
  }
}

// ---- The attention kernel, which is v41's. O has the type of the call's tensors.

// D, pipelines, warpgroups, keys of a tile, stages of K and V, turns.
template <typename Output_, int HEAD_DIM>
struct Config : PipelineConfig<HEAD_DIM, 1, 2, BLOCK_N, 2, 2, true> {
  using Output = Output_;
};

template <typename C>
struct Tiles {
  static constexpr int HEAD_DIM = C::HEAD_DIM;
  using Q = SwizzledTile<Fp8, kWarpgroupM, HEAD_DIM, HEAD_DIM>;  // a warpgroup's rows
  using K = SwizzledTile<Fp8, BLOCK_N, HEAD_DIM, HEAD_DIM>;
  using V = SwizzledTile<Fp8, HEAD_DIM + ONES, V_N, V_N>;  // transposed
  using O = SwizzledTile<typename C::Output, kWarpgroupM, HEAD_DIM, 128>;
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

  int kv_tile;     // of S
  __half2 factor;  // of a score, for P's byte as a part of LARGEST_BYTE; in both halves

  // Of the rows acc_row() + r * 8.
  __half2 summand[2];     // of the same, which has the base that P is relative to; in both halves
  float row_sum[1][2];    // of the whole row
  float row_scale[1][2];  // that O and row_sum need because the base has changed
  float acc_o[1][O_TILES][4];
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
    Scores acc_s;
    shared.ring_k.consumer_wait(at_k);  // TMA has brought K
    start_qk(acc_s);
    turns.end();
    warpgroup_wait<0>();  // S is complete, and wgmma has read K
    warpgroup_fence_operand(acc_s);
    shared.ring_k.warp_release(at_k, lane);
    at_k.advance();

    if constexpr (IS_CAREFUL) mask(acc_s);
    row_scale[0][0] = row_scale[0][1] = 1.0f;
    if (uniform(has_grown(acc_s))) change_base(acc_s);
    make_p<IS_CAREFUL>(acc_s);
  }

  // O = row_scale O + P V, and the same of the sums. The tensor cores sum one tile alone, in 14 bits, and
  // these additions are in FP32.
  __device__ __forceinline__ void add_pv() {
    float acc_pv[1][O_TILES + 1][4];    // the last tile: P times ones, eight times the same
    shared.ring_v.consumer_wait(at_v);  // TMA has brought V
    start_pv(acc_pv);
    warpgroup_wait<0>();  // P V is complete, and wgmma has read V and P's registers
    warpgroup_fence_operand(wgmma_accumulator(acc_pv));
    shared.ring_v.warp_release(at_v, lane);
    at_v.advance();
#pragma unroll
    for (int i = 0; i < O_TILES * 4; ++i) {
      float& o = acc_o[0][i / 4][i % 4];
      o = fmaf(o, row_scale[0][i / 2 % 2], acc_pv[0][i / 4][i % 4]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      row_sum[0][r] = fmaf(row_sum[0][r], row_scale[0][r], acc_pv[0][O_TILES][2 * r]);
  }

  // ---- The products.
  // Two neighbouring columns in a register: of 8 columns, first those of row 0, then those of row 1.
  using Scores = uint32_t[BLOCK_N / MMA_N * 2];

  __device__ __forceinline__ void start_qk(Scores& acc_s) {
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

  // ---- The softmax.
  // Could a P be larger than 2^MAX_P? Where all scores of a row are negative it says so too often.
  __device__ __forceinline__ bool has_grown(const Scores& acc_s) const {
    uint32_t max[2] = {0, 0};  // bits of the largest scores from 0 on
#pragma unroll
    for (int i = 0; i < BLOCK_N / MMA_N * 2; i += 4) {
      max[0] = __vimax3_s16x2(max[0], acc_s[i], acc_s[i + 2]);
      max[1] = __vimax3_s16x2(max[1], acc_s[i + 1], acc_s[i + 3]);
    }
    const __half2 part = __hmax2_nan(__hfma2(pair_of(max[0]), factor, summand[0]),
                                     __hfma2(pair_of(max[1]), factor, summand[1]));
    return !(__low2float(part) <= part_of(MAX_P) && __high2float(part) <= part_of(MAX_P));  // or NaN
  }

  // Makes the rows' largest scores so far their bases, so that the largest P is 2^LARGEST_P.
  __device__ __forceinline__ void change_base(const Scores& acc_s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __half2 pair = pair_of(acc_s[r]);
#pragma unroll
      for (int i = 2 + r; i < BLOCK_N / MMA_N * 2; i += 2) pair = __hmax2(pair, pair_of(acc_s[i]));
      const float most = quad_reduce_max(fmaxf(__low2float(pair), __high2float(pair)));
      const float wanted = part_of(LARGEST_P) - most * __low2float(factor);
      const float before = __low2float(summand[r]);
      // A base never falls. Without a key seen it stays so low that any score outgrows it, and P is 0.
      const __half after = __float2half_rd(fminf(fminf(wanted, before), 60000.0f));
      row_scale[0][r] = exp2_approx((__half2float(after) - before) * (LARGEST_BYTE / 8.0f));
      summand[r] = __half2half2(after);
    }
  }

  // P as A operands of 32 keys: a register has four of 16 keys, in V's order. 1024 + x of FP16 has the
  // integer x in its last byte.
  template <bool IS_CAREFUL>
  __device__ __forceinline__ void make_p(Scores& acc_s) {
    uint32_t least = PART_OF_8;
    // A masked score is no small P: of -inf this makes NaN, which as an integer is above all others.
    const auto unmasked = [](uint32_t parts) {
      return IS_CAREFUL ? bits_of(__hfma2(pair_of(parts), __float2half2_rn(0.0f), pair_of(parts))) : parts;
    };
#pragma unroll
    for (int i = 0; i < BLOCK_N / MMA_N * 2; i += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) acc_s[i + r] = bits_of(__hfma2(pair_of(acc_s[i + r]), factor, summand[r]));
      // As integers they have the same order from 0 on, and what is negative is below all that.
      least = __vimin3_s16x2(least, unmasked(acc_s[i]), unmasked(acc_s[i + 1]));
    }
    if (uniform(least != PART_OF_8)) count_small_p(acc_s);

    const __half2 largest = __float2half2_rn(LARGEST_BYTE), integer = __float2half2_rn(1024.0f);
    const auto bytes_of = [&](uint32_t parts) { return bits_of(__hfma2(pair_of(parts), largest, integer)); };
#pragma unroll
    for (int i = 0; i < BLOCK_N / 8; ++i) {
      const int left = i / 2 * 4 + i % 2;
      frag_p[i / 4][i % 4] = __byte_perm(bytes_of(acc_s[left]), bytes_of(acc_s[left + 2]), 0x6420);
    }
  }
  // Below a byte of 8, which is 2^-6, e4m3 is no logarithm: the byte counts units of 2^-9. There 2^x in these
  // units is larger than a straight line, which is negative from 2^-7 on and would make NaN.
  static __device__ __forceinline__ void count_small_p(Scores& parts) {
    const auto part_of_small = [](float part) {
      const float units = exp2_approx(exponent_of(part) + 9.0f);
      return fmaxf(part, fminf(units, 8.0f) * (1.0f / LARGEST_BYTE));
    };
#pragma unroll
    for (uint32_t& two : parts) {
      const __half2 pair = pair_of(two);
      two = bits_of(__floats2half2_rn(part_of_small(__low2float(pair)), part_of_small(__high2float(pair))));
    }
  }
  static __device__ __forceinline__ __half2 pair_of(uint32_t bits) {
    __half2 pair;
    memcpy(&pair, &bits, sizeof(bits));
    return pair;
  }
  static __device__ __forceinline__ uint32_t bits_of(__half2 pair) {
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    return bits;
  }

  // ---- The beginning of a tile of queries; false if there is none.
  __device__ __forceinline__ bool begin_tile() {
    shared.ring_q.consumer_wait(at_q);  // the loader has written `work`, and TMA has brought Q
    const Work work = shared.work[at_q.stage];
    if (uniform(work.batch == kNoMore)) return false;
    const KeyRange keys = key_range_within<CAUSAL>(params, work.kv_len, first_query_of(work), kWarpgroupM);
    kv_tile = num_key_tiles<BLOCK_N>(keys) - 1;
    // Not 0: 0 * -inf would make NaN of what is masked. The least factor of FP16 moves no byte by more than
    // 1/5.
    const float scale = params.score_scale_log2(work.batch, work.head) * (8.0f / LARGEST_BYTE);
    factor = __float2half2_rn(fmaxf(scale, 0x1p-24f));
    summand[0] = summand[1] = __float2half2_rn(INFINITY);
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
  // Tiles of keys that a later warpgroup needs, and that lie beyond this one's diagonal. It releases them
  // unread.
  __device__ int num_unseen() const {
    const Work work = shared.work[at_q.stage];
    const KeyRange all = key_range_within<CAUSAL>(params, work.kv_len, work.first_query, C::BLOCK_M);
    return num_key_tiles<BLOCK_N>(all) - 1 - kv_tile;
  }
  __device__ int first_query_of(const Work& work) const { return work.first_query + warpgroup * kWarpgroupM; }

  __device__ __forceinline__ void mask(Scores& acc_s) {
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
      for (int i = 0; i < BLOCK_N / MMA_N; ++i) {
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
    float row_base[1][2];
    for (int r = 0; r < 2; ++r) {
      row_base[0][r] = -exponent_of(__low2float(summand[r]));
      row_sum[0][r] *= 0.25f;  // all four lanes of a row have its sum, and finish_rows adds up four
    }
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
    return load_tiles<CAUSAL, Keys::kLastToFirst>(shared, params, maps, order, num_tiles, blockIdx.x);
  }
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  Consumer<CAUSAL, C>(params, shared, uniform(int(threadIdx.x / 128))).run();
}

// ---- The host.

// Of V^T: those of at least one tile of keys.
int num_kv_tiles(int seqlen_kv) { return max(1, ceil_div(seqlen_kv, BLOCK_N)) * (BLOCK_N / V_N); }

// Of a (batch, KV head): the CTAs of a row of the quantizer's grid.
int tiles_of_kv_head(const auto& call) {
  const int group = call.num_heads_q / call.num_heads_kv;
  return group * ceil_div(call.seqlen_q, TILE_ROWS) + 2 * num_kv_tiles(call.seqlen_kv);
}

// Of each part of the workspace. All but the last are multiples of the 16 bytes that a tensor map wants.
struct Sizes {
  size_t q, k, v, descales, maxima;
};
Sizes sizes_of(const auto& call, int head_dim) {
  const size_t heads = size_t(call.batch) * call.num_heads_kv;
  return {.q = size_t(call.batch) * call.num_heads_q * call.seqlen_q * head_dim,
          .k = heads * call.seqlen_kv * head_dim,
          .v = heads * num_kv_tiles(call.seqlen_kv) * V_N * (head_dim + ONES),
          .descales = 3 * heads * sizeof(float),
          .maxima = heads * tiles_of_kv_head(call) * sizeof(uint32_t)};
}
size_t workspace_bytes(const AttentionCall& call) {
  const Sizes size = sizes_of(call, call.head_dim);
  return size.q + size.k + size.v + size.descales + size.maxima;
}
template <int HEAD_DIM>
Workspace workspace_of(const auto& params) {
  const Sizes size = sizes_of(params, HEAD_DIM);
  char* const q = static_cast<char*>(params.workspace);
  char *const k = q + size.q, *const v = k + size.k, *const descales = v + size.v;
  return {.q = reinterpret_cast<Fp8*>(q),
          .k = reinterpret_cast<Fp8*>(k),
          .v_transposed = reinterpret_cast<uint4*>(v),
          .descales = reinterpret_cast<float*>(descales),
          .maxima = reinterpret_cast<uint32_t*>(descales + size.descales),
          .kv_tiles = num_kv_tiles(params.seqlen_kv)};
}

// The call that the attention kernel computes. It writes O through its tensor map, and reads V through
// another.
template <int HEAD_DIM, typename Element>
AttentionParams<Fp8> quantized(const AttentionParams<Element>& params, const Workspace& workspace) {
  const auto view = [&](const Fp8* data, int heads, int rows) {
    const int64_t of_head = int64_t(rows) * HEAD_DIM;
    return View<const Fp8>{data, params.batch, heads, rows, heads * of_head, of_head, HEAD_DIM};
  };
  const auto descale = [&](Tensor tensor) {
    const int64_t num_heads = int64_t(params.batch) * params.num_heads_kv;
    return Descale{workspace.descales + tensor * num_heads, params.num_heads_kv, 1};
  };
  return {.q = view(workspace.q, params.num_heads_q, params.seqlen_q),
          .k = view(workspace.k, params.num_heads_kv, params.seqlen_kv),
          .v = {},
          .o = {},
          .lse = params.lse,
          .kv_lengths = params.kv_lengths,
          .workspace = nullptr,
          .counters = params.counters,
          .batch = params.batch,
          .num_heads_q = params.num_heads_q,
          .num_heads_kv = params.num_heads_kv,
          .seqlen_q = params.seqlen_q,
          .seqlen_kv = params.seqlen_kv,
          .softmax_scale_log2 = params.softmax_scale_log2,
          .configuration = 0,
          .earlier = {},
          .page_table = {},
          .log2_page_size = 0,
          .q_descale = descale(kQ),
          .k_descale = descale(kK),
          .v_descale = descale(kV)};
}

// The map of V^T. Coordinates: (key of the tile, column, tile, head, batch).
template <typename V>
TensorMap make_v_map(const AttentionParams<Fp8>& params, const Workspace& workspace) {
  const uint64_t tiles = uint64_t(workspace.kv_tiles), heads = uint64_t(params.num_heads_kv);
  return encode_tensor_map({.base = workspace.v_transposed,
                            .element_bytes = 1,
                            .size = {V_N, V::ROWS, tiles, heads, uint64_t(params.batch)},
                            .stride = {1, V_N, sizeof(V), tiles * sizeof(V), heads * tiles * sizeof(V)},
                            .box = {V_N, V::ROWS, 1, 1, 1},
                            .swizzle_bytes = V::SWIZZLE_BYTES});
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& given, Stream stream) {
  const Workspace workspace = workspace_of<HEAD_DIM>(given);
  const dim3 tiles(tiles_of_kv_head(given), given.num_heads_kv, given.batch);
  launch(find_maxima<Element, HEAD_DIM>, tiles, dim3(THREADS), THREADS / 32 * sizeof(uint32_t), stream, given,
         workspace);
  launch(quantize<Element, HEAD_DIM>, tiles, dim3(THREADS), sizeof(QuantizerStorage<HEAD_DIM>), stream, given,
         workspace);

  using C = Config<Element, HEAD_DIM>;
  const AttentionParams<Fp8> params = quantized<HEAD_DIM>(given, workspace);
  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  launch(attention_kernel<CAUSAL, C>, dim3(min(num_tiles, num_sms())), dim3(C::NUM_THREADS),
         sizeof(Storage<C>), stream, params,
         TensorMaps{.q = make_tensor_map<typename Storage<C>::Q>(params.q),
                    .k = make_tensor_map<typename Storage<C>::K>(params.k),
                    .v = make_v_map<typename Storage<C>::V>(params, workspace),
                    .o = make_tensor_map<typename Storage<C>::O>(given.o)},
         tile_order<HEAD_DIM, CAUSAL>(params), num_tiles);
}

constexpr StepInfo kStep = {
    .title = "from 16 bits to 16 bits, in FP8: the quantizer writes V transposed",
    .removes = "what a caller needs to make e4m3 of q, k and v, and the pass that transposes V",
    .after = "v41_bytes_of_p",
    .part = Part::kFp8,
    .alignment_bytes = 16,
    .needs_sm = "90a",
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .quantizes = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
