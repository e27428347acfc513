// v29: the query heads that share a head of K and V share a tile, too. Its rows are first one query of all
// these heads, then their next query. So K and V are read once for all of them, and fewer rows of the
// products are empty.
#include <algorithm>

#include "common/blocks/epilogue.h"
#include "common/blocks/key_range.h"
#include "common/blocks/products.h"
#include "common/blocks/split_keys.h"
#include "common/cp_async.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 16;  // rows of a CTA and of each of its warps: the rows of one product
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

// The rows of a head of K and V: the queries of all heads that share it.
template <typename Element>
struct PackedRows {
  const AttentionParams<Element>& params;
  int kv_head, group;  // query heads that share it

  __device__ PackedRows(const AttentionParams<Element>& params, int kv_head)
      : params(params), kv_head(kv_head), group(params.num_heads_q / params.num_heads_kv) {}

  __device__ int count() const { return params.seqlen_q * group; }
  __device__ int head(int row) const { return kv_head * group + row % group; }
  __device__ int query(int row) const { return row / group; }
};

// `num_threads` threads start to copy 16 rows, each row from address_of(row). Rows at or beyond num_rows
// become zero.
template <typename Tile, typename AddressOf>
__device__ void load_rows_async(Tile& tile, int num_rows, int thread, int num_threads, AddressOf address_of) {
  constexpr int CHUNKS = Tile::COLS / 8;  // of a row, 16 bytes each
#pragma unroll
  for (int i = thread; i < Tile::ROWS * CHUNKS; i += num_threads) {
    const int row = i / CHUNKS, d = i % CHUNKS * 8;
    cp_async_16_zfill(tile.at(Tile::offset_of(row, d), 0, 0), address_of(row) + d, row < num_rows);
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

  const int num_splits = partials.num_parts / NUM_WARPS;  // CTAs that share a tile of rows
  const int first_row = blockIdx.x / num_splits * BLOCK_M;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
  const int part = blockIdx.x % num_splits * NUM_WARPS + warp_id;
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  const int q_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));  // also that of V
  const int k_offset = Q::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const float scale = params.softmax_scale_log2;

  const PackedRows rows(params, kv_head);
  const int num_rows = min(BLOCK_M, rows.count() - first_row);
  const int first_query = rows.query(first_row);
  const int num_queries = rows.query(first_row + num_rows - 1) - first_query + 1;
  const KeyRange keys = key_range<CAUSAL>(params, batch, first_query, num_queries);
  const auto [begin, end] = tiles_of_part(keys.num_tiles(BLOCK_N), part, partials.num_parts);
  auto& k = shared.k[warp_id];
  auto& v = shared.v[warp_id];
  const auto load_kv_async = [&](int kv_tile) {
    const int stage = kv_tile % NUM_STAGES, first_key = kv_tile * BLOCK_N;
    const Element* const k_row = params.k.head(batch, kv_head) + first_key * params.k.row_stride;
    const Element* const v_row = params.v.head(batch, kv_head) + first_key * params.v.row_stride;
    load_rows_async(k[stage], keys.kv_len - first_key, lane_id, 32,
                    [&](int key) { return k_row + key * params.k.row_stride; });
    load_rows_async(v[stage], keys.kv_len - first_key, lane_id, 32,
                    [&](int key) { return v_row + key * params.v.row_stride; });
  };

  load_rows_async(shared.q, num_rows, threadIdx.x, NUM_THREADS, [&](int row) {
    return params.q_head(batch, rows.head(first_row + row)) +
           rows.query(first_row + row) * params.q.row_stride;
  });
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
      if (needs_mask) {
#pragma unroll
        for (int i = 0; i < S_TILES * 4; ++i) {
          const int query = rows.query(first_row + acc_row + i / 2 % 2 * 8);
          const int key = first_key + acc_col + i / 4 * MMA_N + i % 2;
          if (key >= params.template visible_keys<CAUSAL>(query, keys.kv_len))
            acc_s[0][i / 4][i % 4] = -INFINITY;
        }
      }
      rescale(acc_s, scale, row_base, row_sum, acc_o);
    }
    mma_pv<Element>(acc_o, acc_s, scale, row_base, row_sum, v[stage], q_offset, 0);
  }

  // The rows go to the workspace as they are. A part without keys writes no O: its sums are 0.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + acc_row + r * 8;
    const float sum = quad_reduce_sum(row_sum[0][r]);
    if (row >= rows.count()) continue;
    const int64_t at = partials.first_of(params, batch, rows.head(row), rows.query(row)) + part;
    if (lane_id % 4 == 0) partials.softmax[at] = {row_base[0][r], sum};
    if (begin >= end) continue;
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

// On the host: the number of tiles for the rows of a head of K and V.
int num_tiles(int num_heads_q, int num_heads_kv, int seqlen_q) {
  return int(ceil_div(int64_t(seqlen_q) * (num_heads_q / num_heads_kv), int64_t(BLOCK_M)));
}

// Divides the CTAs that the GPU holds at a time among the tiles. No tile gets more CTAs than it has keys for.
int num_parts(int64_t num_tiles, int seqlen_kv) {
  const int most = ceil_div(seqlen_kv, BLOCK_N * NUM_WARPS);
  return NUM_WARPS * int(std::clamp<int64_t>(num_sms() * CTAS_PER_SM / num_tiles, 1, most));
}

size_t workspace_bytes(const AttentionCall& call) {
  const int64_t tiles = num_tiles(call.num_heads_q, call.num_heads_kv, call.seqlen_q);
  return bytes_of_partials(call, num_parts(tiles * call.num_heads_kv * call.batch, call.seqlen_kv));
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const unsigned tiles = num_tiles(params.num_heads_q, params.num_heads_kv, params.seqlen_q);
  const int parts = num_parts(int64_t(tiles) * params.num_heads_kv * params.batch, params.seqlen_kv);
  const Partials<HEAD_DIM> partials = make_partials<HEAD_DIM>(params, parts);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>,
         dim3(tiles * (parts / NUM_WARPS), params.num_heads_kv, params.batch), dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params, partials);
  launch(merge_kernel<Element, HEAD_DIM>,
         dim3(ceil_div(params.seqlen_q, NUM_WARPS), params.num_heads_q, params.batch), dim3(NUM_THREADS), 0,
         stream, params, partials);
}

constexpr StepInfo kStep = {
    .title = "Query heads that share K and V fill the rows of one tile",
    .removes = "reading K and V for every query head",
    .part = Part::kDecode,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .workspace_bytes = workspace_bytes,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
