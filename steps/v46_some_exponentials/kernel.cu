// v46: exponentials for half of P, and bytes straight from scores, as in v41, for the other half. No scores
// are too large for FP16, because rows of Q are scaled first. So any Q and K are right, and O is nearly as
// exact as v40's.
#include "common/blocks/fp16_scores.h"
#include "common/elect.h"
#include "common/griddepcontrol.h"
#include "common/setmaxnreg.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

using namespace fp16_scores;

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

// ---- V^T in the workspace.

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

  const int64_t number = (int64_t(batch) * params.num_heads_kv + kv_head) * gridDim.x + tile;
  store_tile_of_v<HEAD_DIM, TRANSPOSE_THREADS>(transposed,
                                               v_transposed + number * ((HEAD_DIM + SUMS) * V_N / 16));
}

// ---- The softmax of a lane's rows, acc_row() + r * 8. All else that the warpgroups do is v41's.
struct SomeExponentials {
  __half2 factors;      // of their scores, to units of log2
  __half2 bases;        // what P is relative to, in these units: LARGEST_P less than a maximum so far
  float row_sum[1][2];  // of this lane's P as they are rounded
  float row_scale[2];   // that O needs because the base has changed

  static constexpr bool HAS_LSE = false;  // scores in FP16 are not exact enough

  // At the beginning of a tile of queries, of which `tile` has this warpgroup's rows of Q.
  template <typename Q>
  __device__ __forceinline__ void begin(const AttentionParams<Fp8>& params, const Work& work, Q& tile,
                                        int warpgroup) {
    const int thread = opaque(int(threadIdx.x)) % 128;
    const float divisor = scale_half_a_row(tile, thread / 2, thread % 2);
    bar_sync(BAR_Q + warpgroup, 128);  // all rows are scaled

    const float scale = params.score_scale_log2(work.batch, work.head);
    const float factor = fminf(fmaxf(scale * divisor, LEAST_FACTOR), MOST_OF_FP16);
    const int lane_of_row = accumulator_row(thread % 32) * 2;
    factors = __floats2half2_rn(__shfl_sync(0xffffffff, factor, lane_of_row),
                                __shfl_sync(0xffffffff, factor, lane_of_row + 16));
    bases = __float2half2_rn(-INFINITY);
    row_sum[0][0] = row_sum[0][1] = 0.0f;
  }
  template <bool IS_CAREFUL, int NUM, int K_TILES>
  __device__ __forceinline__ void scores_to_p(const uint32_t (&acc_s)[NUM], uint32_t (&frag_p)[K_TILES][4]) {
    row_scale[0] = row_scale[1] = 1.0f;
    if (uniform(has_grown(acc_s))) change_base(acc_s);
    if constexpr (IS_CAREFUL) {
      make_p</*WITH_BYTES=*/false>(acc_s, frag_p);
    } else if (uniform(!make_p</*WITH_BYTES=*/true>(acc_s, frag_p))) {
      make_p</*WITH_BYTES=*/false>(acc_s, frag_p);
      add_what_is_lost(acc_s);
    }
  }

 private:
  // No score, and no sum on the way to it, is more than what the elements of its row of Q add up to, without
  // their signs, times 448, the largest number of e4m3. FP16 ends at 65,504. So a row that adds up to 128 or
  // more is divided by the least power of two that brings it below 128. An element then changes by at most
  // 2^-16 of the row's sum, where e4m3 has no more bits for it. Two neighbouring lanes have a row. Returns
  // the divisor.
  template <typename Q>
  static __device__ __forceinline__ float scale_half_a_row(Q& tile, int row, int half) {
    constexpr int CHUNKS = Q::COLS / 32;
    const int first_col = half * (Q::COLS / 2);
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
    return divisor;
  }

  // Could a P be larger than MAX_P? Where all scores of a row are negative it says so too often.
  template <int NUM>
  __device__ __forceinline__ bool has_grown(const uint32_t (&acc_s)[NUM]) const {
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
  __device__ __forceinline__ void change_base(const uint32_t (&acc_s)[NUM]) {
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
      if (next == -INFINITY) base[r] = -MOST_OF_FP16;  // no key seen yet: P is 0, and any score outgrows this
      if (fabsf(wanted) > MAX_BASE && wanted != -INFINITY) base[r] = NAN;
      row_scale[r] = exp2_approx(before - base[r]);
      row_sum[0][r] *= row_scale[r];
    }
    bases = __floats2half2_rn(base[0], base[1]);
  }

  // P as A operands of 32 keys: a register has four of 16 keys, in V's order. False if bytes are not right:
  // if one is below 8, where e4m3 is no logarithm, or if a base is too coarse for them. Then all P must come
  // from exponentials.
  template <bool WITH_BYTES, int NUM, int K_TILES>
  __device__ __forceinline__ bool make_p(const uint32_t (&acc_s)[NUM], uint32_t (&frag_p)[K_TILES][4]) const {
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
    for (int i = 0; i < K_TILES * 4; ++i) {
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
  __device__ __forceinline__ void add_what_is_lost(const uint32_t (&acc_s)[NUM]) {
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
};

// ---- The attention kernel.

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
struct Config : std::conditional_t<HEAD_DIM == 64, PipelineConfig<64, 1, 3, 128, 2, 2, true>,
                                   PipelineConfig<128, 1, 2, 256, 2, 2, true>> {
  using Output = __nv_bfloat16;
  using Softmax = SomeExponentials;
};

size_t workspace_bytes(const AttentionCall& call) {
  const int block_n = call.head_dim == 64 ? Config<64>::BLOCK_N : Config<128>::BLOCK_N;
  return size_t(call.batch) * call.num_heads_kv * num_v_tiles(call.seqlen_kv, block_n) * V_N *
         (call.head_dim + SUMS);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  using C = Config<HEAD_DIM>;
  const int v_tiles = num_v_tiles(params.seqlen_kv, C::BLOCK_N);
  launch(transpose_v<HEAD_DIM>, dim3(v_tiles, params.num_heads_kv, params.batch), dim3(TRANSPOSE_THREADS),
         sizeof(TransposedTile<HEAD_DIM, V_N>), stream, params, static_cast<uint4*>(params.workspace));

  const int num_tiles = ceil_div(params.seqlen_q, C::BLOCK_M) * params.num_heads_q * params.batch;
  launch_overlapping(attention_kernel<CAUSAL, C>, dim3(min(num_tiles, num_sms())), dim3(C::NUM_THREADS),
                     sizeof(Storage<C>), stream, params,
                     TensorMaps{.q = make_tensor_map<typename Storage<C>::Q>(params.q),
                                .k = make_tensor_map<typename Storage<C>::K>(params.k),
                                .v = make_v_map<typename Storage<C>::V>(params.workspace, v_tiles,
                                                                        params.num_heads_kv, params.batch),
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
