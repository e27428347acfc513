// v44: v40's attention in FP8 (e4m3) with mma.sync, for GPUs without wgmma. Each warp owns whole rows, as in
// v15. P of 64 keys is 16 registers, so P is complete before P V begins, and the sum of one tile can be
// apart from O: mma.sync sums in 14 bits on some GPUs, and O is in FP32.
#include "common/blocks/epilogue.h"
#include "common/blocks/load_tile.h"
#include "common/blocks/online_softmax.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_order.h"
#include "common/mma.h"
#include "common/step.h"

namespace STEP_NAMESPACE {

using Fp8 = __nv_fp8_e4m3;

constexpr int NUM_WARPS = 4;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int WARP_M = 32;  // query rows per warp: each operand it loads serves two products
constexpr int BLOCK_M = NUM_WARPS * WARP_M;
constexpr int BLOCK_N = 64;    // keys of a tile
constexpr int NUM_STAGES = 2;  // of K and V each: one is computed on while the other is filled
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 32;
constexpr int M_TILES = WARP_M / MMA_M;
constexpr int S_TILES = BLOCK_N / MMA_N;
constexpr int P_STEPS = BLOCK_N / MMA_K;  // of P V

// P is as large as e4m3 allows, so that small P are still numbers of e4m3: its largest is 2^8 when a row gets
// a new base, and at most 2^8.75 = 430 before it gets another one. e4m3 ends at 448.
constexpr float LARGEST_P = 8.0f;
constexpr float MAX_P = 8.75f;

// ---- V^T in the workspace: [batch, num_heads_kv, tiles of keys, HEAD_DIM, BLOCK_N].

// A row has BLOCK_N keys of one column of V, four of them in a word. mma.sync wants P of four keys in one
// register, and of 16 keys a lane has those of 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, with c = lane % 4: so these
// four are word c.
__device__ inline int key_of(int word, int byte) {
  return word / 4 * 16 + word % 4 * 2 + byte % 2 + byte / 2 * 8;
}

// Four keys of four columns, a word of each key, become a word of each column.
__device__ void transpose_bytes(uint32_t (&words)[4]) {
  const uint32_t left_01 = __byte_perm(words[0], words[1], 0x5140);  // columns 0 and 1 of keys 0 and 1
  const uint32_t left_23 = __byte_perm(words[2], words[3], 0x5140);
  const uint32_t right_01 = __byte_perm(words[0], words[1], 0x7362);  // columns 2 and 3
  const uint32_t right_23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(left_01, left_23, 0x5410);
  words[1] = __byte_perm(left_01, left_23, 0x7632);
  words[2] = __byte_perm(right_01, right_23, 0x5410);
  words[3] = __byte_perm(right_01, right_23, 0x7632);
}

// A CTA makes a tile, and a thread has four keys of 16 columns. Keys beyond kv_len become 0, whatever V holds
// there: P is 0, and 0 * NaN is not.
template <int HEAD_DIM>
__global__ void __launch_bounds__(HEAD_DIM)
    transpose_v(const AttentionParams<Fp8> params, uint4* v_transposed) {
  constexpr int WORDS = BLOCK_N / 4;
  auto& transposed = *reinterpret_cast<uint32_t(*)[HEAD_DIM][WORDS]>(smem);
  const int tile = blockIdx.x, kv_head = blockIdx.y, batch = blockIdx.z;
  const Fp8* const v = params.v.head(batch, kv_head);
  const int kv_len = params.kv_length(batch);

  // Two neighbouring lanes read 32 bytes of a key. They write to rows that are 16 apart. A row has half of
  // the banks, so each row of the second 16 changes places with its neighbour: a warp writes to all banks.
  const auto place_of = [](int row) { return row ^ row / 16 % 2; };
  const int thread = threadIdx.x;
  const int word = thread / 2 % WORDS, chunk = thread / (2 * WORDS) * 2 + thread % 2;
  uint4 keys[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int key = tile * BLOCK_N + key_of(word, j);
    keys[j] = key < kv_len ? load_16_bytes(&v[key * params.v.row_stride + chunk * 16]) : uint4{};
  }
#pragma unroll
  for (int col = 0; col < 16; col += 4) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = reinterpret_cast<const uint32_t*>(&keys[j])[col / 4];
    transpose_bytes(words);
#pragma unroll
    for (int j = 0; j < 4; ++j) transposed[place_of(chunk * 16 + col + j)][word] = words[j];
  }
  __syncthreads();  // the tile is complete

  const int64_t number = (int64_t(batch) * params.num_heads_kv + kv_head) * gridDim.x + tile;
  uint4* const out = v_transposed + number * (HEAD_DIM * WORDS / 4);
#pragma unroll
  for (int i = thread; i < HEAD_DIM * WORDS / 4; i += HEAD_DIM) {
    const int row = i / (WORDS / 4), first_word = i % (WORDS / 4) * 4;
    store_16_bytes(&out[i], load_16_bytes(&transposed[place_of(row)][first_word]));
  }
}

// ---- The attention kernel.

template <int HEAD_DIM>
struct SharedStorage {
  using Q = SwizzledTile<Fp8, BLOCK_M, HEAD_DIM, HEAD_DIM>;
  using K = SwizzledTile<Fp8, BLOCK_N, HEAD_DIM, HEAD_DIM>;
  using V = SwizzledTile<Fp8, HEAD_DIM, BLOCK_N, BLOCK_N>;  // transposed
  using O = SwizzledTile<__nv_bfloat16, BLOCK_M, HEAD_DIM, 128>;
  Q q;
  struct Stage {
    K k;
    V v;
  };
  union {
    Stage stages[NUM_STAGES];
    O o;  // after the loop
  };
};

// S = Q K^T. A lane passes ldmatrix the same rows as in 16 bits, and the same bytes of a row, which are twice
// as many columns.
template <typename Q, typename K>
__device__ __forceinline__ void multiply_qk(float (&acc_s)[M_TILES][S_TILES][4], Q& q, int q_offset, K& k,
                                            int k_offset) {
#pragma unroll 1  // ptxas would load the operands of all steps at once, and spill more registers
  for (int col = 0; col < Q::COLS; col += MMA_K) {
    uint32_t frag_q[M_TILES][4];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(frag_q[m], q.at(q_offset, m * MMA_M, col));
#pragma unroll
    for (int n = 0; n < S_TILES; n += 2) {
      uint32_t frag_k[4];  // two B operands
      ldmatrix_x4(frag_k, k.at(k_offset, n * MMA_N, col));
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        mma_m16n8k32_e4m3(acc_s[m][n], frag_q[m], {frag_k[0], frag_k[1]});
        mma_m16n8k32_e4m3(acc_s[m][n + 1], frag_q[m], {frag_k[2], frag_k[3]});
      }
    }
  }
}

// P, rounded, as A operands of 32 keys: a register has four of 16 keys, in V's order.
__device__ __forceinline__ void pack_p(uint32_t (&frag_p)[P_STEPS][M_TILES][4],
                                       const float (&acc_s)[M_TILES][S_TILES][4]) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int i = 0; i < P_STEPS * 4; ++i) {
      const int r = i % 2;
      const float *left = acc_s[m][i / 2 * 2] + 2 * r, *right = acc_s[m][i / 2 * 2 + 1] + 2 * r;
      frag_p[i / 4][m][i % 4] = pack4_e4m3(left[0], left[1], right[0], right[1]);
    }
  }
}

// O += P V. The tensor cores sum one tile alone, and these additions are in FP32. V^T has its keys along its
// rows, as K has its columns, so nothing is transposed here. One ldmatrix reads all keys of 8 columns.
template <typename V, int O_TILES>
__device__ __forceinline__ void add_pv(float (&acc_o)[M_TILES][O_TILES][4],
                                       const uint32_t (&frag_p)[P_STEPS][M_TILES][4], V& v, int v_offset) {
#pragma unroll
  for (int n = 0; n < O_TILES; ++n) {
    uint32_t frag_v[4];  // the B operands of both steps
    ldmatrix_x4(frag_v, v.at(v_offset, n * MMA_N, 0));
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
      float acc_pv[4] = {};
      mma_m16n8k32_e4m3(acc_pv, frag_p[0][m], {frag_v[0], frag_v[1]});
      mma_m16n8k32_e4m3(acc_pv, frag_p[1][m], {frag_v[2], frag_v[3]});
#pragma unroll
      for (int i = 0; i < 4; ++i) acc_o[m][n][i] += acc_pv[i];
    }
  }
}

// Eight warps per SM: two CTAs.
template <int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, 2)
    attention_kernel(const AttentionParams<Fp8> params, int group_size, int num_v_tiles) {
  using Storage = SharedStorage<HEAD_DIM>;
  using Q = typename Storage::Q;
  using K = typename Storage::K;
  using V = typename Storage::V;
  using O = typename Storage::O;
  auto& shared = *reinterpret_cast<Storage*>(smem);

  const auto [first_query, head, batch] = query_tile<BLOCK_M>(params, blockIdx.x, group_size);
  const int warp_row = threadIdx.x / 32 * WARP_M;
  const int lane_id = threadIdx.x % 32;
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  // The place in a tile where this lane begins. operands.h counts columns of 16 bits.
  const int q_offset = Q::offset_of(warp_row + operand_row(lane_id), 2 * operand_col(lane_id));
  const int k_offset = K::offset_of(k_operand_row(lane_id), 2 * k_operand_col(lane_id));
  const int v_offset = V::offset_of(lane_id % 8, lane_id / 8 * 16);

  // The CTA loads what any of its rows sees; a warp computes what any of its own rows sees.
  const KeyRange cta_keys = key_range<CAUSAL>(params, batch, first_query, BLOCK_M);
  const KeyRange keys = key_range<CAUSAL>(params, batch, first_query + warp_row, WARP_M);
  const int num_kv_tiles = cta_keys.num_tiles(BLOCK_N);
  const float scale = params.score_scale_log2(batch, head);
  const Fp8* const k_head = params.k_head(batch, head);
  const int64_t v_head = (int64_t(batch) * params.num_heads_kv + params.kv_head(head)) * num_v_tiles;
  const Fp8* const v_tiles = static_cast<const Fp8*>(params.workspace) + v_head * sizeof(V);
  const auto load_kv_async = [&](int kv_tile) {
    auto& stage = shared.stages[kv_tile % NUM_STAGES];
    load_tile_async<NUM_THREADS>(stage.k, k_head, params.k.row_stride, kv_tile * BLOCK_N, keys.kv_len,
                                 threadIdx.x);
    load_tile_async<NUM_THREADS>(stage.v, v_tiles + int64_t(kv_tile) * sizeof(V), BLOCK_N, 0, HEAD_DIM,
                                 threadIdx.x);
  };

  // Of the rows acc_row + r * 8 of each 16 x 8 tile.
  float row_base[M_TILES][2];      // what P is relative to, scaled: LARGEST_P less than a maximum so far
  float row_sum[M_TILES][2] = {};  // of this lane's columns only: the lanes' sums are added after the loop
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) row_base[m][0] = row_base[m][1] = -INFINITY;
  float acc_o[M_TILES][HEAD_DIM / MMA_N][4] = {};

  load_tile_async<NUM_THREADS>(shared.q, params.q_head(batch, head), params.q.row_stride, first_query,
                               params.seqlen_q, threadIdx.x);
  if (num_kv_tiles > 0) load_kv_async(0);
  cp_async_commit();
  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;
    auto& stage = shared.stages[kv_tile % NUM_STAGES];

    cp_async_wait<0>();  // this thread's part of K and V (and of Q) has arrived
    __syncthreads();     // every thread's part has, and all warps are done with the stage that is filled next
    if (kv_tile + 1 < num_kv_tiles) load_kv_async(kv_tile + 1);
    cp_async_commit();
    if (first_key >= keys.end) continue;  // beyond the diagonal of this warp's rows

    float acc_s[M_TILES][S_TILES][4] = {};
    multiply_qk(acc_s, shared.q, q_offset, stage.k, k_offset);
    if (keys.needs_mask(first_key, BLOCK_N))
      mask_scores<CAUSAL>(acc_s, params, keys.kv_len, first_query + warp_row + acc_row, first_key + acc_col);
    if (__any_sync(0xffffffff, growth_bound(acc_s, row_base, scale) > MAX_P)) {
      float row_scale[M_TILES][2];
      change_base(acc_s, scale, row_base, row_sum, row_scale, LARGEST_P);
      scale_rows(acc_o, row_scale);
    }
    exponentiate(acc_s, scale, row_base, row_sum);
    uint32_t frag_p[P_STEPS][M_TILES][4];
    pack_p(frag_p, acc_s);
    add_pv(acc_o, frag_p, stage.v, v_offset);
  }

  // O, rounded, goes where K and V were, to be stored in rows of 16 bytes per lane.
  finish_rows(params, batch, head, first_query + warp_row + acc_row, lane_id, row_base, row_sum);
  const float output_scale = params.output_scale(batch, head);
  const float row_scale[M_TILES][2] = {{output_scale, output_scale}, {output_scale, output_scale}};
  scale_rows(acc_o, row_scale);
  cp_async_wait<0>();  // without any tile, Q may still be in flight
  __syncthreads();     // all warps are done with K and V
  store_normalised(shared.o, O::offset_of(warp_row + acc_row, acc_col), acc_o, row_sum);
  __syncwarp();  // this warp's O is complete
  const int num_rows = min(WARP_M, params.seqlen_q - first_query - warp_row);
  const int64_t row_stride = params.o.row_stride;
  store_rows(shared.o, warp_row, num_rows, params.o_head(batch, head) + (first_query + warp_row) * row_stride,
             row_stride, lane_id, 32);
}

// ---- The host.

// Tiles of keys, at least one.
int num_tiles_of(int seqlen_kv) { return seqlen_kv == 0 ? 1 : ceil_div(seqlen_kv, BLOCK_N); }

size_t workspace_bytes(const AttentionCall& call) {
  return size_t(call.batch) * call.num_heads_kv * num_tiles_of(call.seqlen_kv) * BLOCK_N * call.head_dim;
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const int num_v_tiles = num_tiles_of(params.seqlen_kv);
  launch(transpose_v<HEAD_DIM>, dim3(num_v_tiles, params.num_heads_kv, params.batch), dim3(HEAD_DIM),
         HEAD_DIM * BLOCK_N, stream, params, static_cast<uint4*>(params.workspace));

  using Storage = SharedStorage<HEAD_DIM>;
  static_assert(2 * (sizeof(Storage) + 1024) <= 102400);  // of an SM of sm_89 or sm_120; CUDA takes 1 KB
  const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M) * params.num_heads_q * params.batch);
  launch(attention_kernel<HEAD_DIM, CAUSAL>, grid, dim3(NUM_THREADS), sizeof(Storage), stream, params,
         heads_per_group<HEAD_DIM, CAUSAL>(params), num_v_tiles);
}

constexpr StepInfo kStep = {
    .title = "FP8 with mma.sync, for GPUs without wgmma: each tile is summed apart from O",
    .removes = "half of the time of a product, where the tensor cores take FP8 from mma.sync",
    .after = "v15_integer_max",
    .part = Part::kFp8,
    .dtypes = {DType::kE4m3},
    .alignment_bytes = 16,
    .needs_sm = "89",
    .spills =
        "at D = 128 O, S and the operands need all of the 255 registers that a thread can have, and at D "
        "= 64 for sm_90, where operands are converted to FP16",
    .workspace_bytes = workspace_bytes,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
