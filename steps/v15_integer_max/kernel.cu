// v15: the test for a score that has outgrown its row's base may be inexact, as long as it misses no such
// score. The kernel compares the bits of scores as integers, of which the GPU compares three at a time.
#include "common/blocks/accumulator.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/key_range.h"
#include "common/blocks/load_tile.h"
#include "common/blocks/operands.h"
#include "common/blocks/tile_order.h"
#include "common/cp_async.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "common/step.h"
#include "common/swizzle.h"

namespace STEP_NAMESPACE {

constexpr int WARP_M = 32;     // query rows per warp: each operand it loads serves two products
constexpr int NUM_STAGES = 2;  // of K and V each: one is computed on while the other is filled
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int M_TILES = WARP_M / MMA_M;

template <typename Element, int HEAD_DIM, int NUM_WARPS, int BLOCK_N>
struct SharedStorage {
  using QTile = SwizzledTile<Element, NUM_WARPS * WARP_M, HEAD_DIM, 128>;
  using KVTile = SwizzledTile<Element, BLOCK_N, HEAD_DIM, 128>;
  QTile q;  // after the loop, O
  KVTile k[NUM_STAGES];
  KVTile v[NUM_STAGES];
};

// How far a score may lie above its row's base, in units of log2. P is then at most 2^15, and fp16 holds up
// to 65,504. Small probabilities become larger by the same factor, so fewer of them underflow.
constexpr float MAX_GROWTH = 15.0f;

// The largest of a lane's scores in row `r` (0: row, 1: row + 8), or 0 if all are negative. As integers, the
// bits of floats from 0 on are in the order of the floats, and those of negative floats are negative. The
// maximum of three integers is one instruction on sm_90 and sm_100.
template <int N_TILES>
__device__ float non_negative_max(const float (&acc_s)[N_TILES][4], int r) {
  int max = 0;
#pragma unroll
  for (int n = 0; n < N_TILES; ++n)
    max = __vimax3_s32(max, __float_as_int(acc_s[n][r * 2]), __float_as_int(acc_s[n][r * 2 + 1]));
  return __int_as_float(max);
}

// Eight warps per SM: two CTAs of four, or one of eight. BLOCK_N keys per tile.
template <typename Element, int HEAD_DIM, bool CAUSAL, int NUM_WARPS, int BLOCK_N>
__global__ void __launch_bounds__(32 * NUM_WARPS, 8 / NUM_WARPS)
    attention_kernel(const AttentionParams<Element> params, int group_size) {
  constexpr int NUM_THREADS = 32 * NUM_WARPS;
  constexpr int BLOCK_M = NUM_WARPS * WARP_M;  // query rows per CTA
  constexpr int S_TILES = BLOCK_N / MMA_N;
  constexpr int O_TILES = HEAD_DIM / MMA_N;
  constexpr int K_STEPS = HEAD_DIM / MMA_K;  // of Q K^T
  constexpr bool Q_IN_REGISTERS = HEAD_DIM == 64;
  using Storage = SharedStorage<Element, HEAD_DIM, NUM_WARPS, BLOCK_N>;
  using Q = typename Storage::QTile;
  using KV = typename Storage::KVTile;
  auto& shared = *reinterpret_cast<Storage*>(smem);

  const auto [first_query, head, batch] = query_tile<BLOCK_M>(params, blockIdx.x, group_size);
  const int warp_row = threadIdx.x / 32 * WARP_M;
  const int lane_id = threadIdx.x % 32;
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  // The place in a tile where this lane begins; at() moves on by distances that the compiler knows.
  const int q_offset = Q::offset_of(warp_row + operand_row(lane_id), operand_col(lane_id));
  const int k_offset = KV::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const int v_offset = KV::offset_of(operand_row(lane_id), operand_col(lane_id));

  // The CTA loads what any of its rows sees; a warp computes what any of its own rows sees.
  const KeyRange cta_keys = key_range<CAUSAL>(params, batch, first_query, BLOCK_M);
  const KeyRange keys = key_range<CAUSAL>(params, batch, first_query + warp_row, WARP_M);
  const int num_kv_tiles = cta_keys.num_tiles(BLOCK_N);
  const Element* const k_head = params.k_head(batch, head);
  const Element* const v_head = params.v_head(batch, head);
  const auto load_kv_async = [&](int kv_tile) {
    const int stage = kv_tile % NUM_STAGES;
    load_tile_async<NUM_THREADS>(shared.k[stage], k_head, params.k.row_stride, kv_tile * BLOCK_N, keys.kv_len,
                                 threadIdx.x);
    load_tile_async<NUM_THREADS>(shared.v[stage], v_head, params.v.row_stride, kv_tile * BLOCK_N, keys.kv_len,
                                 threadIdx.x);
  };

  // Of the rows acc_row + r * 8 of each 16 x 8 tile.
  float row_base[M_TILES][2];      // P is relative to it: an earlier maximum of the row's scores, scaled
  float row_sum[M_TILES][2] = {};  // of this lane's columns only: the lanes' sums are added after the loop
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) row_base[m][0] = row_base[m][1] = -INFINITY;
  float acc_o[M_TILES][O_TILES][4] = {};

  load_tile_async<NUM_THREADS>(shared.q, params.q_head(batch, head), params.q.row_stride, first_query,
                               params.seqlen_q, threadIdx.x);
  cp_async_commit();
  if (num_kv_tiles > 0) load_kv_async(0);
  cp_async_commit();
  uint32_t frag_q[Q_IN_REGISTERS ? K_STEPS : 1][M_TILES][4];
  if constexpr (Q_IN_REGISTERS) {
    cp_async_wait<1>();  // this thread's part of Q has arrived; K and V may still be in flight
    __syncthreads();     // every thread's part has
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m)
        ldmatrix_x4(frag_q[step][m], shared.q.at(q_offset, m * MMA_M, step * MMA_K));
    }
  }
  for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile) {
    const int first_key = kv_tile * BLOCK_N;
    const int stage = kv_tile % NUM_STAGES;

    cp_async_wait<0>();  // this thread's part of K and V (and of Q) has arrived
    __syncthreads();     // every thread's part has, and all warps are done with the stage that is filled next
    if (kv_tile + 1 < num_kv_tiles) load_kv_async(kv_tile + 1);
    cp_async_commit();
    if (first_key >= keys.end) continue;  // beyond the diagonal of this warp's rows

    // S = Q K^T.
    float acc_s[M_TILES][S_TILES][4] = {};
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
      auto& a = frag_q[Q_IN_REGISTERS ? step : 0];
      if constexpr (!Q_IN_REGISTERS) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) ldmatrix_x4(a[m], shared.q.at(q_offset, m * MMA_M, step * MMA_K));
      }
#pragma unroll
      for (int n = 0; n < S_TILES; n += 2) {
        uint32_t frag_k[4];  // two B operands
        ldmatrix_x4(frag_k, shared.k[stage].at(k_offset, n * MMA_N, step * MMA_K));
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma_m16n8k16<Element>(acc_s[m][n], a[m], {frag_k[0], frag_k[1]});
          mma_m16n8k16<Element>(acc_s[m][n + 1], a[m], {frag_k[2], frag_k[3]});
        }
      }
    }
    // Usually no score of the warp exceeds its row's base by much, and no mask is needed. Then P can stay
    // relative to the row's base, and O and the sums stay as they are.
    const bool needs_mask = keys.needs_mask(first_key, BLOCK_N);
    float growth = -INFINITY;  // or a larger number, where all scores of a row are negative
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        growth =
            fmaxf(growth, fmaf(non_negative_max(acc_s[m], r), params.softmax_scale_log2, -row_base[m][r]));
    }
    if (__any_sync(0xffffffff, needs_mask || growth > MAX_GROWTH)) {
      if (needs_mask)
        mask_scores<CAUSAL>(acc_s, params, keys.kv_len, first_query + warp_row + acc_row,
                            first_key + acc_col);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float tile_max = quad_reduce_max(lane_max(acc_s[m], r));
          // Rounded down: the FFMA below takes the product exactly, so the largest p is never below 1.
          float base = fmaxf(row_base[m][r], __fmul_rd(tile_max, params.softmax_scale_log2));
          // A row that sees no key: -inf - (-inf) would be NaN. Any finite base gives exp2(-inf) = 0.
          if (base == -INFINITY) base = 0.0f;
          const float row_scale = exp2_approx(row_base[m][r] - base);  // by how much what came before shrinks
          row_base[m][r] = base;
          row_sum[m][r] *= row_scale;
#pragma unroll
          for (int n = 0; n < O_TILES; ++n) {
            acc_o[m][n][r * 2] *= row_scale;
            acc_o[m][n][r * 2 + 1] *= row_scale;
          }
        }
      }
    }

    // O += P V, with 16 keys of P at a time, made just before they are needed: two neighbouring 16 x 8 tiles
    // of S, rounded, are an A operand.
#pragma unroll
    for (int step = 0; step < BLOCK_N / MMA_K; ++step) {
      uint32_t frag_p[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = i % 2;
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float s = acc_s[m][step * 2 + i / 2][r * 2 + e];
            p[e] = exp2_approx(fmaf(s, params.softmax_scale_log2, -row_base[m][r]));
          }
          row_sum[m][r] += p[0] + p[1];
          frag_p[m][i] = pack2<Element>(p[0], p[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < O_TILES; n += 2) {
        uint32_t frag_v[4];  // two B operands
        ldmatrix_x4_trans(frag_v, shared.v[stage].at(v_offset, step * MMA_K, n * MMA_N));
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          mma_m16n8k16<Element>(acc_o[m][n], frag_p[m], {frag_v[0], frag_v[1]});
          mma_m16n8k16<Element>(acc_o[m][n + 1], frag_p[m], {frag_v[2], frag_v[3]});
        }
      }
    }
  }

  // O, rounded, goes where this warp's rows of Q were, to be stored in rows of 16 bytes per lane.
  const int num_rows = min(WARP_M, params.seqlen_q - first_query - warp_row);
  finish_rows(params, batch, head, first_query + warp_row + acc_row, lane_id, row_base, row_sum);
  cp_async_wait<0>();  // without any tile, Q may still be in flight
  __syncthreads();     // Q is complete: no thread of another warp has a copy to these rows left
  store_normalised(shared.q, Q::offset_of(warp_row + acc_row, acc_col), acc_o, row_sum);
  __syncwarp();  // this warp's O is complete
  const int64_t row_stride = params.o.row_stride;
  store_rows(shared.q, warp_row, num_rows, params.o_head(batch, head) + (first_query + warp_row) * row_stride,
             row_stride, lane_id, 32);
}

template <int NUM_WARPS, int BLOCK_N, typename Element, int HEAD_DIM, bool CAUSAL>
void launch_tiles(const AttentionParams<Element>& params, Stream stream) {
  using Storage = SharedStorage<Element, HEAD_DIM, NUM_WARPS, BLOCK_N>;
  static_assert(sizeof(Storage) <= 101376);  // the smallest limit among sm_86, sm_89 and sm_120
  const dim3 grid(ceil_div(params.seqlen_q, NUM_WARPS * WARP_M) * params.num_heads_q * params.batch);
  launch(attention_kernel<Element, HEAD_DIM, CAUSAL, NUM_WARPS, BLOCK_N>, grid, dim3(32 * NUM_WARPS),
         sizeof(Storage), stream, params, heads_per_group<HEAD_DIM, CAUSAL>(params));
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_attention(const AttentionParams<Element>& params, Stream stream) {
  params.configuration == 0 ? launch_tiles<4, 64, Element, HEAD_DIM, CAUSAL>(params, stream)
                            : launch_tiles<8, 32, Element, HEAD_DIM, CAUSAL>(params, stream);
}

// At D = 128 an SM with less than 194 KB has room for only one CTA of either kind, so it takes the one of
// eight warps.
int choose_configuration(const AttentionCall& call) {
  constexpr int CTA_BYTES = sizeof(SharedStorage<__half, 128, 4, 64>) + 1024;  // CUDA takes 1 KB per CTA
  return call.head_dim == 128 && smem_bytes_per_sm() < 2 * CTA_BYTES ? 1 : 0;
}

constexpr StepInfo kStep = {
    .title = "Scores are compared as integers: one instruction finds the largest of three",
    .removes = "half of the maxima",
    .part = Part::kMmaSync,
    .alignment_bytes = 16,
    .spills = "at D = 128 O, S and the operands need all of the 255 registers that a thread can have",
    .configurations = {"128x64", "256x32"},
    .choose = choose_configuration,
};
REGISTER_STEP(launch_attention, kStep);

}  // namespace STEP_NAMESPACE
