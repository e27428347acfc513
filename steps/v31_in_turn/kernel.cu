// v31: a CTA has one range of keys, and its warps take the tiles of this range in turn. At any time the four
// warps read one piece of memory. In v30 each warp has its own range of keys, so they read four pieces.
#include <algorithm>

#include "common/blocks/one_launch.h"
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

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  struct Tiles {
    SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128> k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
  };
  SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128> q;
  union {
    Tiles tiles;
    WarpParts<NUM_WARPS, BLOCK_M, HEAD_DIM> parts;
  };
};

// The smallest limit among sm_86, sm_89 and sm_120.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

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
  // The CTA's tiles are first_tile .. end - 1; this warp takes every NUM_WARPS-th, from `begin` on.
  const auto [first_tile, end] = tiles_of_part(keys.num_tiles(BLOCK_N), split, num_splits);
  const int begin = first_tile + warp_id;
  // Its tiles fill the stages alternately. NUM_WARPS is even, so kv_tile % NUM_STAGES would never change.
  const auto stage_of = [](int kv_tile) { return kv_tile / NUM_WARPS % NUM_STAGES; };
  auto& k = shared.tiles.k[warp_id];
  auto& v = shared.tiles.v[warp_id];
  const auto load_kv_async = [&](int kv_tile) {
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
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
  for (int kv_tile = begin; kv_tile < end; kv_tile += NUM_WARPS) {
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
    cp_async_wait<0>();  // this lane's part of K and V has arrived
    __syncwarp();        // every lane's part has, and all lanes are done with the stage that is filled next
    if (kv_tile + NUM_WARPS < end) load_kv_async(kv_tile + NUM_WARPS);
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
  __syncthreads();  // all warps have read their last tiles, which the parts overwrite; no copy is in flight
  shared.parts.store(warp_id, lane_id, acc_o[0], row_base[0], row_sum[0]);
  __syncthreads();  // all warps' parts are complete before another warp merges them
  merge_in_one_launch(shared.parts, partials, rows, batch, first_row, num_rows, split,
                      &params.counters[(batch * params.num_heads_kv + kv_head) * num_tiles + tile]);
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
    .title = "The warps of a CTA take its tiles of keys in turn",
    .removes = "reads that are scattered over memory",
    .part = Part::kDecode,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
