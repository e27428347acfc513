// v30: one launch. The warps of a CTA merge their parts in shared memory, so that a CTA writes one part of
// each row. Of the CTAs that share a tile of rows, whichever finishes last merges the parts of all.
#include <algorithm>
#include <cfloat>

#include "common/blocks/epilogue.h"
#include "common/blocks/packed_heads.h"
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
constexpr int O_PAD = 8;  // floats: the rows that a warp writes at a time then lie in different banks

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  struct Tiles {
    SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128> k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
  };
  struct Parts {  // what each warp has of each row, when it is done with its keys
    float o[NUM_WARPS][BLOCK_M][HEAD_DIM + O_PAD];
    Softmax softmax[NUM_WARPS][BLOCK_M];
    bool is_last;  // is this the last one of the CTAs that share these rows?
  };
  SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128> q;
  union {
    Tiles tiles;
    Parts parts;
  };
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// A lane's columns of a row of O, not yet divided by the sum of P, and the base of P, in units of log2, and
// its sum. At first the row has seen no key: a base of -FLT_MAX gives it the weight 0, where -INFINITY would
// give NaN.
template <int COLS>
struct RowPart {
  struct alignas(COLS * sizeof(float)) Columns {
    float o[COLS];
  };
  Softmax softmax = {-FLT_MAX, 0.0f};
  Columns columns = {};

  // Adds the parts of the same row over other keys, in the order of the keys, so that every run rounds the
  // same way.
  template <int N>
  __device__ void add(const RowPart (&parts)[N]) {
    float base = softmax.base;
#pragma unroll
    for (const RowPart& part : parts) base = fmaxf(base, part.softmax.base);
    const float kept = exp2_approx(softmax.base - base);
    softmax = {base, softmax.sum * kept};
#pragma unroll
    for (float& o : columns.o) o *= kept;
#pragma unroll
    for (const RowPart& part : parts) {
      const float weight = exp2_approx(part.softmax.base - base);
      softmax.sum += part.softmax.sum * weight;
#pragma unroll
      for (int c = 0; c < COLS; ++c) columns.o[c] += part.columns.o[c] * weight;
    }
  }
};

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, CTAS_PER_SM)
    attention_kernel(const AttentionParams<Element> params, const Partials<HEAD_DIM> partials) {
  constexpr int K_STEPS = HEAD_DIM / MMA_K;
  constexpr int S_TILES = BLOCK_N / MMA_N;
  constexpr int O_TILES = HEAD_DIM / MMA_N;
  using Storage = SharedStorage<Element, HEAD_DIM>;
  using Q = decltype(Storage::q);
  auto& shared = *reinterpret_cast<Storage*>(smem);

  const int num_splits = partials.num_parts;  // CTAs that share a tile of rows
  const int num_tiles = gridDim.x / num_splits, tile = blockIdx.x / num_splits;
  const int first_row = tile * BLOCK_M;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
  const int split = blockIdx.x % num_splits;
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  const int q_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));  // also that of V
  const int k_offset = Q::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const float scale = params.softmax_scale_log2;

  const PackedRows rows(params, kv_head);
  const int num_rows = min(BLOCK_M, rows.count() - first_row);
  const KeyRange keys = key_range<CAUSAL>(rows, batch, first_row, num_rows);
  const auto [begin, end] =
      tiles_of_part(keys.num_tiles(BLOCK_N), split * NUM_WARPS + warp_id, num_splits * NUM_WARPS);
  auto& k = shared.tiles.k[warp_id];
  auto& v = shared.tiles.v[warp_id];
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
      if (needs_mask) mask_scores<CAUSAL>(acc_s, rows, keys.kv_len, first_row + acc_row, first_key + acc_col);
      rescale(acc_s, scale, row_base, row_sum, acc_o);
    }
    mma_pv<Element>(acc_o, acc_s, scale, row_base, row_sum, v[stage], q_offset, 0);
  }

  // Each warp writes its part to shared memory, where K and V were.
  __syncthreads();  // all warps have read their last tiles, which the parts overwrite
  auto& parts = shared.parts;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = acc_row + r * 8;
    const float sum = quad_reduce_sum(row_sum[0][r]);
    if (lane_id % 4 == 0) parts.softmax[warp_id][row] = {row_base[0][r], sum};
#pragma unroll
    for (int n = 0; n < O_TILES; ++n)
      *reinterpret_cast<float2*>(&parts.o[warp_id][row][n * MMA_N + acc_col]) =
          make_float2(acc_o[0][n][r * 2], acc_o[0][n][r * 2 + 1]);
  }
  __syncthreads();  // all warps' parts are complete before another warp merges them

  // From here on a warp merges whole rows, one after the other. A lane has HEAD_DIM / 32 columns of each.
  constexpr int COLS = HEAD_DIM / 32;
  using Part = RowPart<COLS>;
  using Columns = typename Part::Columns;
  const int col = lane_id * COLS;
  const auto first_part_of = [&](int row) {  // where the part of the row's first CTA is
    return partials.first_of(params, batch, rows.head(first_row + row), rows.query(first_row + row));
  };
  const auto store = [&](int row, const Part& part) {
    const int head = rows.head(first_row + row), query = rows.query(first_row + row);
    const float inverse = inverse_of(part.softmax.sum);
    Element* const o = params.o_head(batch, head) + query * params.o.row_stride + col;
#pragma unroll
    for (int c = 0; c < COLS; c += 2)
      *reinterpret_cast<uint32_t*>(&o[c]) =
          pack2<Element>(part.columns.o[c] * inverse, part.columns.o[c + 1] * inverse);
    if (lane_id == 0) params.store_lse(batch, head, query, lse_of(part.softmax.base, part.softmax.sum));
  };
  for (int row = warp_id; row < num_rows; row += NUM_WARPS) {
    Part of_warps[NUM_WARPS], of_cta;
#pragma unroll
    for (int warp = 0; warp < NUM_WARPS; ++warp)
      of_warps[warp] = {parts.softmax[warp][row],
                        *reinterpret_cast<const Columns*>(&parts.o[warp][row][col])};
    of_cta.add(of_warps);
    if (num_splits == 1) {
      store(row, of_cta);
      continue;
    }
    const int64_t at = first_part_of(row) + split;
    if (lane_id == 0) partials.softmax[at] = of_cta.softmax;
    *reinterpret_cast<Columns*>(&partials.o[at][col]) = of_cta.columns;
  }
  if (num_splits == 1) return;

  // Which CTA is the last? The counter wraps: the last CTA leaves it 0 for the next call.
  __syncthreads();  // all warps have written their rows of this CTA's part, before the CTA is counted
  if (threadIdx.x == 0) {
    __threadfence();  // other CTAs, too, see these rows before the count
    unsigned* const counter = &params.counters[(batch * params.num_heads_kv + kv_head) * num_tiles + tile];
    parts.is_last = atomicInc(counter, num_splits - 1) == unsigned(num_splits - 1);
    __threadfence();  // what other CTAs left before they were counted is read after the count
  }
  __syncthreads();  // is_last is set before the other threads read it
  if (!parts.is_last) return;
  for (int row = warp_id; row < num_rows; row += NUM_WARPS) {
    const int64_t first = first_part_of(row);
    Part whole;
    for (int group = 0; group < num_splits; group += MERGED_AT_ONCE) {
      Part of_ctas[MERGED_AT_ONCE];
#pragma unroll
      for (int i = 0; i < MERGED_AT_ONCE; ++i) {
        if (group + i < num_splits)
          of_ctas[i] = {partials.softmax[first + group + i],
                        *reinterpret_cast<const Columns*>(&partials.o[first + group + i][col])};
      }
      whole.add(of_ctas);
    }
    store(row, whole);
  }
}

// Divides the CTAs that the GPU holds at a time among the tiles. No tile gets more CTAs than it has keys for.
// Only a tile with several CTAs needs a counter, and there are at most half as many such tiles as CTAs.
int num_splits(int64_t num_tiles, int seqlen_kv) {
  const int most = ceil_div(seqlen_kv, BLOCK_N * NUM_WARPS);
  return int(std::clamp<int64_t>(num_sms() * CTAS_PER_SM / num_tiles, 1, most));
}

size_t workspace_bytes(const AttentionCall& call) {
  const int64_t tiles = num_packed_tiles(call.num_heads_q, call.num_heads_kv, call.seqlen_q, BLOCK_M);
  const int splits = num_splits(tiles * call.num_heads_kv * call.batch, call.seqlen_kv);
  return splits == 1 ? 0 : bytes_of_partials(call, splits);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const unsigned tiles = num_packed_tiles(params.num_heads_q, params.num_heads_kv, params.seqlen_q, BLOCK_M);
  const int splits = num_splits(int64_t(tiles) * params.num_heads_kv * params.batch, params.seqlen_kv);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, dim3(tiles * splits, params.num_heads_kv, params.batch),
         dim3(NUM_THREADS), sizeof(SharedStorage<Element, HEAD_DIM>), stream, params,
         make_partials<HEAD_DIM>(params, splits));
}

constexpr StepInfo kStep = {
    .title = "One launch: the last CTA of a row merges what all have left",
    .removes = "the second launch, and most of the parts",
    .part = Part::kDecode,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
