// v28: few queries, many keys. The keys of a head are split among as many warps as the GPU has room for. Each
// computes attention over its own keys alone and writes its sums, in FP32, to a workspace. A second kernel
// merges them, always in the same order.
#include <algorithm>

#include "common/blocks/epilogue.h"
#include "common/blocks/key_range.h"
#include "common/blocks/products.h"
#include "common/cp_async.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 16;  // query rows of a CTA and of each of its warps: the rows of one product
constexpr int BLOCK_N = 16;  // keys per tile; each warp has its own tiles
constexpr int NUM_WARPS = 4;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int NUM_STAGES = 2;   // of K and V each: one is computed on while the other is filled
constexpr int CTAS_PER_SM = 3;  // for these there are registers and, at D = 128, shared memory on sm_90
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int MERGED_AT_ONCE = 8;  // parts of a row

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128> q;
  SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128> k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// The result of a warp for one query row: the base that P is relative to, in units of log2, and the sum of P.
// For a warp without keys the sum is 0, and nothing else is written.
struct Softmax {
  float base, sum;
};

// The results of all warps: for each row of O num_parts of them, one after another.
template <int HEAD_DIM>
struct Partials {
  int num_parts;
  Softmax* softmax;      // [batch][heads_q][seqlen_q][num_parts]
  float (*o)[HEAD_DIM];  // likewise: O, not yet divided by the sum

  template <typename Element>
  __device__ int64_t first_of(const AttentionParams<Element>& params, int batch, int head, int row) const {
    return ((int64_t(batch) * params.num_heads_q + head) * params.seqlen_q + row) * num_parts;
  }
};

// `num_threads` threads start to copy 16 rows. Rows at or beyond num_rows become zero.
template <typename Tile, typename Element>
__device__ void load_rows_async(Tile& tile, const Element* head, int64_t row_stride, int first_row,
                                int num_rows, int thread, int num_threads) {
  constexpr int CHUNKS = Tile::COLS / 8;  // of a row, 16 bytes each
#pragma unroll
  for (int i = thread; i < Tile::ROWS * CHUNKS; i += num_threads) {
    const int row = i / CHUNKS, d = i % CHUNKS * 8;
    cp_async_16_zfill(tile.at(Tile::offset_of(row, d), 0, 0), head + (first_row + row) * row_stride + d,
                      first_row + row < num_rows);
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM)
    attention_kernel(const AttentionParams<Element> params, const Partials<HEAD_DIM> partials) {
  constexpr int K_STEPS = HEAD_DIM / MMA_K;
  constexpr int S_TILES = BLOCK_N / MMA_N;
  constexpr int O_TILES = HEAD_DIM / MMA_N;
  using Storage = SharedStorage<Element, HEAD_DIM>;
  using Q = decltype(Storage::q);
  auto& shared = *reinterpret_cast<Storage*>(smem);

  const int num_splits = partials.num_parts / NUM_WARPS;  // CTAs that share a tile of queries
  const int first_query = blockIdx.x / num_splits * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
  const int part = blockIdx.x % num_splits * NUM_WARPS + warp_id;
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  const int q_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));  // also that of V
  const int k_offset = Q::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const float scale = params.softmax_scale_log2;

  // This warp's keys are whole tiles. Every part has the same number of them, and the first parts have one
  // more if the division leaves a remainder.
  const KeyRange keys = key_range<CAUSAL>(params, batch, first_query, BLOCK_M);
  const int tiles_per_part = keys.num_tiles(BLOCK_N) / partials.num_parts;
  const int remainder = keys.num_tiles(BLOCK_N) % partials.num_parts;
  const int begin = part * tiles_per_part + min(part, remainder);
  const int end = begin + tiles_per_part + (part < remainder ? 1 : 0);
  const Element* const k_head = params.k_head(batch, head);
  const Element* const v_head = params.v_head(batch, head);
  auto& k = shared.k[warp_id];
  auto& v = shared.v[warp_id];
  const auto load_kv_async = [&](int kv_tile) {
    const int stage = kv_tile % NUM_STAGES, first_key = kv_tile * BLOCK_N;
    load_rows_async(k[stage], k_head, params.k.row_stride, first_key, keys.kv_len, lane_id, 32);
    load_rows_async(v[stage], v_head, params.v.row_stride, first_key, keys.kv_len, lane_id, 32);
  };

  load_rows_async(shared.q, params.q_head(batch, head), params.q.row_stride, first_query, params.seqlen_q,
                  threadIdx.x, NUM_THREADS);
  cp_async_commit();
  if (begin < end) load_kv_async(begin);
  cp_async_commit();
  cp_async_wait<1>();  // this thread's part of Q has arrived; K and V may still be in flight
  __syncthreads();     // every thread's part has. From here on, warps do not wait for each other
  uint32_t frag_q[K_STEPS][1][4];
  load_q(frag_q, shared.q, q_offset);

  float row_base[1][2] = {{-INFINITY, -INFINITY}};  // of the rows acc_row and acc_row + 8
  float row_sum[1][2] = {};                         // of this lane's columns only
  float acc_o[1][O_TILES][4] = {};
  for (int kv_tile = begin; kv_tile < end; ++kv_tile) {
    const int stage = kv_tile % NUM_STAGES, first_key = kv_tile * BLOCK_N;
    cp_async_wait<0>();  // this lane's part of K and V has arrived
    __syncwarp();        // every lane's part has, and all lanes are done with the stage that is filled next
    if (kv_tile + 1 < end) load_kv_async(kv_tile + 1);
    cp_async_commit();

    float acc_s[1][S_TILES][4] = {};
    mma_qk<Element>(acc_s, frag_q, shared.q, q_offset, k[stage], k_offset, 0);
    const bool needs_mask = keys.needs_mask(first_key, BLOCK_N);
    const float growth = growth_bound(acc_s, row_base, scale);
    if (__any_sync(0xffffffff, needs_mask || growth > kMaxGrowth)) {
      if (needs_mask)
        mask_scores<CAUSAL>(acc_s, params, keys.kv_len, first_query + acc_row, first_key + acc_col);
      rescale(acc_s, scale, row_base, row_sum, acc_o);
    }
    mma_pv<Element>(acc_o, acc_s, scale, row_base, row_sum, v[stage], q_offset, 0);
  }

  // The rows go to the workspace as they are. A part without keys writes no O: its sums are 0.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_query + acc_row + r * 8;
    const float sum = quad_reduce_sum(row_sum[0][r]);
    if (row >= params.seqlen_q) continue;
    const int64_t at = partials.first_of(params, batch, head, row) + part;
    if (lane_id % 4 == 0) partials.softmax[at] = {row_base[0][r], sum};
    if (begin == end) continue;
#pragma unroll
    for (int n = 0; n < O_TILES; ++n)
      *reinterpret_cast<float2*>(&partials.o[at][n * MMA_N + acc_col]) =
          make_float2(acc_o[0][n][r * 2], acc_o[0][n][r * 2 + 1]);
  }
}

// A warp merges the parts of a row. Each lane has HEAD_DIM / 32 of its columns.
template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(NUM_THREADS, 4)  // or ptxas limits registers and loads part after part
    merge_kernel(const AttentionParams<Element> params, const Partials<HEAD_DIM> partials) {
  constexpr int COLS = HEAD_DIM / 32;
  const int row = blockIdx.x * NUM_WARPS + threadIdx.x / 32;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int lane_id = threadIdx.x % 32;
  if (row >= params.seqlen_q) return;
  const int64_t first = partials.first_of(params, batch, head, row);
  const Softmax* const softmax = partials.softmax + first;

  // The largest base of all parts becomes the base of the whole row. Each lane looks at some of the parts.
  float base = -INFINITY;
  for (int part = lane_id; part < partials.num_parts; part += 32)
    if (softmax[part].sum > 0.0f) base = fmaxf(base, softmax[part].base);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) base = fmaxf(base, __shfl_xor_sync(0xffffffff, base, lanes));

  // The parts are added in the order of the keys, so that every run rounds the same way. The loads of a group
  // of parts are in flight together. A part whose sum is 0 has written no O.
  struct alignas(COLS * sizeof(float)) Columns {
    float o[COLS];
  };
  float sum = 0.0f, o[COLS] = {};
  for (int group = 0; group < partials.num_parts; group += MERGED_AT_ONCE) {
    Softmax left[MERGED_AT_ONCE] = {};
    Columns columns[MERGED_AT_ONCE] = {};
#pragma unroll
    for (int i = 0; i < MERGED_AT_ONCE; ++i) {
      if (group + i >= partials.num_parts) continue;
      left[i] = softmax[group + i];
      columns[i] = *reinterpret_cast<const Columns*>(&partials.o[first + group + i][lane_id * COLS]);
    }
#pragma unroll
    for (int i = 0; i < MERGED_AT_ONCE; ++i) {
      const float weight = left[i].sum == 0.0f ? 0.0f : exp2_approx(left[i].base - base);
      sum += left[i].sum * weight;
#pragma unroll
      for (int c = 0; c < COLS; ++c) o[c] += left[i].sum == 0.0f ? 0.0f : columns[i].o[c] * weight;
    }
  }

  const float inverse = inverse_of(sum);
  Element* const to = params.o_head(batch, head) + row * params.o.row_stride + lane_id * COLS;
#pragma unroll
  for (int i = 0; i < COLS; i += 2)
    *reinterpret_cast<uint32_t*>(&to[i]) = pack2<Element>(o[i] * inverse, o[i + 1] * inverse);
  if (lane_id == 0) params.store_lse(batch, head, row, lse_of(base, sum));
}

// Divides the CTAs that the GPU holds at a time among the tiles of queries. No tile gets more CTAs than it
// has keys for.
int num_parts(int batch, int num_heads_q, int seqlen_q, int seqlen_kv) {
  const int64_t tiles = int64_t(ceil_div(seqlen_q, BLOCK_M)) * num_heads_q * batch;
  const int most = ceil_div(seqlen_kv, BLOCK_N * NUM_WARPS);
  return NUM_WARPS * int(std::clamp<int64_t>(num_sms() * CTAS_PER_SM / tiles, 1, most));
}

size_t workspace_bytes(const AttentionCall& call) {
  const size_t rows = size_t(call.batch) * call.num_heads_q * call.seqlen_q;
  const int parts = num_parts(call.batch, call.num_heads_q, call.seqlen_q, call.seqlen_kv);
  return rows * parts * (sizeof(Softmax) + call.head_dim * sizeof(float));
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const int parts = num_parts(params.batch, params.num_heads_q, params.seqlen_q, params.seqlen_kv);
  const int64_t rows = int64_t(params.batch) * params.num_heads_q * params.seqlen_q;
  auto* const o = static_cast<float(*)[HEAD_DIM]>(params.workspace);
  const Partials<HEAD_DIM> partials{parts, reinterpret_cast<Softmax*>(o + rows * parts), o};
  const unsigned num_tiles = ceil_div(params.seqlen_q, BLOCK_M), heads = params.num_heads_q;
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>,
         dim3(num_tiles * (parts / NUM_WARPS), heads, params.batch), dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, partials);
  launch(merge_kernel<Element, HEAD_DIM>, dim3(ceil_div(params.seqlen_q, NUM_WARPS), heads, params.batch),
         dim3(NUM_THREADS), 0, stream, params, partials);
}

constexpr StepInfo kStep = {
    .title = "The keys of a head are split among warps; a second kernel merges what they leave",
    .removes = "SMs without work where queries are few",
    .after = "v13_lazy_rescale",
    .part = Part::kDecode,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .workspace_bytes = workspace_bytes,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
