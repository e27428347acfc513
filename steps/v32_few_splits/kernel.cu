// v32: few splits. One CTA for each SM keeps memory busy if two tiles of each warp are in flight while it
// computes on a third. So there are fewer CTAs, and fewer parts of a row to merge.
#include <algorithm>
#include <string>
#include <type_traits>

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
constexpr int NUM_STAGES = 3;   // of K and V each: one is computed on while the others are filled
constexpr int CTAS_PER_SM = 2;  // at most, where there are more tiles of rows than SMs
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  struct Tiles {
    SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128> k[NUM_WARPS][NUM_STAGES], v[NUM_WARPS][NUM_STAGES];
  };
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
  auto& shared = *reinterpret_cast<Storage*>(smem);
  auto& shared_q = shared.tiles.v[0][NUM_STAGES - 1];  // free until the loop fills it
  using Q = std::remove_reference_t<decltype(shared_q)>;
  static_assert(Q::ROWS == BLOCK_M);

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
  // Its tiles fill one stage after the other, from stage 0 on.
  const auto stage_of = [&](int kv_tile) { return (kv_tile - first_tile) / NUM_WARPS % NUM_STAGES; };
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

  load_rows_async(shared_q, num_rows, threadIdx.x, NUM_THREADS, [&](int row) {
    return params.q_head(batch, rows.head(first_row + row)) +
           rows.query(first_row + row) * params.q.row_stride;
  });
  cp_async_commit();
#pragma unroll
  for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
    const int kv_tile = begin + stage * NUM_WARPS;
    if (kv_tile < end) load_kv_async(kv_tile);
    cp_async_commit();
  }
  cp_async_wait<NUM_STAGES - 1>();  // this thread's part of Q has arrived; K and V may still be in flight
  __syncthreads();                  // every thread's part has
  uint32_t frag_q[K_STEPS][1][4];
  load_q(frag_q, shared_q, q_offset);
  __syncthreads();  // all warps have read Q, whose place warp 0 fills. From here on, none waits for another

  float row_base[1][2] = {{-INFINITY, -INFINITY}};  // of the rows acc_row and acc_row + 8
  float row_sum[1][2] = {};                         // of this lane's columns only
  float acc_o[1][O_TILES][4] = {};
  for (int kv_tile = begin; kv_tile < end; kv_tile += NUM_WARPS) {
    const int stage = stage_of(kv_tile), first_key = kv_tile * BLOCK_N;
    cp_async_wait<NUM_STAGES - 2>();  // this lane's part of K and V has arrived
    __syncwarp();  // every lane's part has, and all lanes are done with the stage that is filled next
    const int next = kv_tile + (NUM_STAGES - 1) * NUM_WARPS;
    if (next < end) load_kv_async(next);
    cp_async_commit();

    float acc_s[1][S_TILES][4] = {};
    mma_qk<Element>(acc_s, frag_q, shared_q, q_offset, k[stage], k_offset, 0);
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

constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128};  // by configuration

int64_t num_tiles_of(const AttentionCall& call) {  // of rows
  return int64_t(num_packed_tiles(call.num_heads_q, call.num_heads_kv, call.seqlen_q, BLOCK_M)) *
         call.num_heads_kv * call.batch;
}

// The largest number of splits with an SM for each CTA and a tile of keys for each of its warps.
int choose_configuration(const AttentionCall& call) {
  const int64_t most =
      std::min<int64_t>(num_sms() / num_tiles_of(call), ceil_div(call.seqlen_kv, BLOCK_N * NUM_WARPS));
  int c = 0;
  while (c + 1 < int(std::size(kSplits)) && kSplits[c + 1] <= most) ++c;
  return c;
}

std::string refuses(const AttentionCall& call) {
  const bool counts = kSplits[call.configuration] > 1;
  return counts && num_tiles_of(call) > kNumCounters
             ? "splits the keys of " + std::to_string(kNumCounters) + " tiles of rows at most"
             : "";
}

size_t workspace_bytes(const AttentionCall& call) {
  const int splits = kSplits[call.configuration];
  return splits == 1 ? 0 : bytes_of_partials(call, splits);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  const unsigned tiles = num_packed_tiles(params.num_heads_q, params.num_heads_kv, params.seqlen_q, BLOCK_M);
  const int splits = kSplits[params.configuration];
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, dim3(tiles * splits, params.num_heads_kv, params.batch),
         dim3(NUM_THREADS), sizeof(SharedStorage<Element, HEAD_DIM>), stream, params,
         make_partials<HEAD_DIM>(params, splits));
}

constexpr StepInfo kStep = {
    .title = "One CTA for each SM, with more tiles on their way: fewer parts to merge",
    .removes = "CTAs that memory does not need, and their parts",
    .part = Part::kDecode,
    .purpose = Purpose::kDecode,
    .alignment_bytes = 16,
    .configurations = {"splits1", "splits2", "splits3", "splits4", "splits6", "splits8", "splits12",
                       "splits16", "splits32", "splits64", "splits128"},
    .choose = choose_configuration,
    .workspace_bytes = workspace_bytes,
    .uses_counters = true,
    .refuses = refuses,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
