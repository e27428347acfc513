// v52: all five products on the tensor cores, in one loop. A CTA owns a tile of keys, and goes through the
// queries that see it. It computes S and P once, not twice. dK and dV stay in its registers. It adds its
// part of dQ to that of other CTAs with atomicAdd. The order of these additions, and so the rounding of dQ,
// changes from run to run.
#include "common/blocks/accumulator.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/load_tile.h"
#include "common/blocks/operands.h"
#include "common/blocks/products.h"
#include "common/cp_async.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "common/step.h"
#include "common/swizzle.h"
#include "common/unpack.h"
#include "common/vector_copy.h"

namespace STEP_NAMESPACE {

constexpr int NUM_WARPS = 4;
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int BLOCK_M = 32;    // queries per tile
constexpr int NUM_STAGES = 2;  // of Q and dO each: one is computed on while the other is filled
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int QUAD = 4;  // lanes that share a row

// A warp owns 16 keys at D = 128, 32 at D = 64. Their dK and dV are 128 registers of each lane.
template <int HEAD_DIM>
constexpr int KEY_TILES = 128 / HEAD_DIM;  // of 16 keys
template <int HEAD_DIM>
constexpr int WARP_KEYS = KEY_TILES<HEAD_DIM>* MMA_M;
template <int HEAD_DIM>
constexpr int BLOCK_N = NUM_WARPS* WARP_KEYS<HEAD_DIM>;  // keys per CTA
constexpr int QUERY_TILES = BLOCK_M / MMA_N;             // of 8 queries: columns of S^T

// Of dQ a warp computes all 32 rows, and a quarter of the columns.
template <int HEAD_DIM>
constexpr int DQ_WARP_COLS = HEAD_DIM / NUM_WARPS;
template <int HEAD_DIM>
using DqAccumulator = float[BLOCK_M / MMA_M][DQ_WARP_COLS<HEAD_DIM> / MMA_N][4];

template <typename Element, int HEAD_DIM>
using KVTile = SwizzledTile<Element, BLOCK_N<HEAD_DIM>, HEAD_DIM, 128>;
template <typename Element, int HEAD_DIM>
using QTile = SwizzledTile<Element, BLOCK_M, HEAD_DIM, 128>;
template <typename Element, int HEAD_DIM>
using DSTile = SwizzledTile<Element, BLOCK_N<HEAD_DIM>, BLOCK_M, 64>;  // dS^T: a row for each key

// What P and dS need to know of a query.
struct Row {
  float lse_log2, delta;
};

template <typename Element, int HEAD_DIM>
struct SharedStorage {
  KVTile<Element, HEAD_DIM> k, v;  // after the loop, dK and dV
  QTile<Element, HEAD_DIM> q[NUM_STAGES], d_o[NUM_STAGES];
  DSTile<Element, HEAD_DIM> ds;
  Row rows[NUM_STAGES][BLOCK_M];
};

// The shared memory of a CTA on sm_86, sm_89 and sm_120, the GPUs with the least.
static_assert(sizeof(SharedStorage<__half, 128>) <= 101376);

// What the three kernels share of a tile of queries, in the workspace. The sums of dQ are in the order of the
// registers that they come from, so that the 32 lanes of a warp add to 128 contiguous bytes.
template <int HEAD_DIM>
struct QueryTile {
  Row rows[BLOCK_M];
  float dq[sizeof(DqAccumulator<HEAD_DIM>) / sizeof(float)][NUM_THREADS];
};
template <int HEAD_DIM, typename Element>
__device__ QueryTile<HEAD_DIM>& query_tile(const BackwardParams<Element>& params, int batch, int head,
                                           int index) {
  const int64_t row = int64_t(batch) * params.num_heads_q + head;
  return static_cast<QueryTile<HEAD_DIM>*>(
      params.workspace)[row * ceil_div(params.seqlen_q, BLOCK_M) + index];
}

// The first kernel: a CTA prepares a tile of queries.
template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(NUM_THREADS) prepare_kernel(const BackwardParams<Element> params) {
  constexpr int CHUNK = 8;  // elements, 16 bytes
  static_assert(NUM_THREADS == BLOCK_M * QUAD);
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int row = threadIdx.x / QUAD;
  const int query = blockIdx.x * BLOCK_M + row;
  QueryTile<HEAD_DIM>& tile = query_tile<HEAD_DIM>(params, batch, head, blockIdx.x);

  // D = rowsum(dO * O). The LSE of a query that sees no key, or is beyond the last one, becomes inf: P is
  // then 0.
  Row result = {.lse_log2 = INFINITY, .delta = 0.0f};
  if (query < params.seqlen_q) {
    const Element* const o_row = params.o_head(batch, head) + query * params.o.row_stride;
    const Element* const d_o_row = params.d_o_head(batch, head) + query * params.d_o.row_stride;
#pragma unroll
    for (int d = threadIdx.x % QUAD * CHUNK; d < HEAD_DIM; d += QUAD * CHUNK) {
      const uint4 o = load_16_bytes(o_row + d), d_o = load_16_bytes(d_o_row + d);
      const uint32_t pairs[][2] = {{o.x, d_o.x}, {o.y, d_o.y}, {o.z, d_o.z}, {o.w, d_o.w}};
#pragma unroll
      for (const auto& pair : pairs) {
        const float2 a = unpack2<Element>(pair[0]), b = unpack2<Element>(pair[1]);
        result.delta += a.x * b.x + a.y * b.y;
      }
    }
    const float lse = params.lse_head(batch, head)[query];
    if (lse != -INFINITY) result.lse_log2 = lse * kLog2e;
  }
  result.delta = quad_reduce_sum(result.delta);
  if (threadIdx.x % QUAD == 0) tile.rows[row] = result;

  for (auto& lanes : tile.dq) lanes[threadIdx.x] = 0.0f;
}

// acc += A B, a sum over 16 queries. A, in registers, is P^T or dS^T; B is the tile of dO or Q, from row
// first_row on. `offset` is the place in the tile of the first row that this lane passes to ldmatrix.
template <typename Element, typename Tile, int M_TILES, int N_TILES>
__device__ void mma_over_queries(float (&acc)[M_TILES][N_TILES][4], const uint32_t (&a)[M_TILES][4],
                                 Tile& tile, int offset, int first_row) {
#pragma unroll
  for (int n = 0; n < N_TILES; n += 2) {
    uint32_t b[4];  // two B operands
    ldmatrix_x4_trans(b, tile.at(offset, first_row, n * MMA_N));
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
      mma_m16n8k16<Element>(acc[m][n], a[m], {b[0], b[1]});
      mma_m16n8k16<Element>(acc[m][n + 1], a[m], {b[2], b[3]});
    }
  }
}

// Rounds scale * acc and stores it in a tile in shared memory. `offset` is the place of the lane's first
// element.
template <typename Tile, int M_TILES, int N_TILES>
__device__ void store_scaled(Tile& tile, int offset, const float (&acc)[M_TILES][N_TILES][4], float scale) {
#pragma unroll
  for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
    for (int n = 0; n < N_TILES; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<uint32_t*>(tile.at(offset, m * MMA_M + r * 8, n * MMA_N)) =
            scaled2<typename Tile::Element>(&acc[m][n][r * 2], scale);
      }
    }
  }
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(NUM_THREADS, 2) backward_kernel(const BackwardParams<Element> params) {
  constexpr int M_TILES = KEY_TILES<HEAD_DIM>;
  using KV = KVTile<Element, HEAD_DIM>;
  using Q = QTile<Element, HEAD_DIM>;
  using DS = DSTile<Element, HEAD_DIM>;
  auto& shared = *reinterpret_cast<SharedStorage<Element, HEAD_DIM>*>(smem);

  const int first_key = blockIdx.x * BLOCK_N<HEAD_DIM>;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  const int warp_id = threadIdx.x / 32;
  const int lane_id = threadIdx.x % 32;
  const int warp_key = warp_id * WARP_KEYS<HEAD_DIM>;
  const int dq_warp_col = warp_id * DQ_WARP_COLS<HEAD_DIM>;
  const int acc_row = accumulator_row(lane_id);
  const int acc_col = accumulator_col(lane_id);
  // The place in a tile where this lane begins; at() moves on by distances that the compiler knows.
  const int key_a_offset = KV::offset_of(warp_key + operand_row(lane_id), operand_col(lane_id));
  const int query_b_offset = Q::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const int query_b_trans_offset = Q::offset_of(operand_row(lane_id), operand_col(lane_id));
  const int ds_acc_offset = DS::offset_of(warp_key + acc_row, acc_col);
  const int ds_a_trans_offset = DS::offset_of(k_operand_row(lane_id), k_operand_col(lane_id));
  const int key_b_trans_offset = KV::offset_of(operand_row(lane_id), dq_warp_col + operand_col(lane_id));

  // The loop: all tiles with a query that sees one of the keys, of all heads that share this head of K and V.
  const int kv_len = params.kv_length(batch);
  const int first_tile = params.template first_query<CAUSAL>(first_key, kv_len) / BLOCK_M;
  const int end_tile = first_key < kv_len ? ceil_div(params.seqlen_q, BLOCK_M) : first_tile;
  const int first_head = kv_head * params.group_size();
  const int end_head = first_tile < end_tile ? first_head + params.group_size() : first_head;
  struct Position {
    int head, tile;
  };
  const auto next = [&](Position at) {
    return at.tile + 1 < end_tile ? Position{at.head, at.tile + 1} : Position{at.head + 1, first_tile};
  };

  const auto load_queries_async = [&](int stage, Position from) {
    const int first_query = from.tile * BLOCK_M;
    load_tile_async<NUM_THREADS>(shared.q[stage], params.q_head(batch, from.head), params.q.row_stride,
                                 first_query, params.seqlen_q, threadIdx.x);
    load_tile_async<NUM_THREADS>(shared.d_o[stage], params.d_o_head(batch, from.head), params.d_o.row_stride,
                                 first_query, params.seqlen_q, threadIdx.x);
    constexpr int ROWS = 16 / sizeof(Row);  // that a lane copies
    const int row = threadIdx.x * ROWS;
    if (row < BLOCK_M)
      cp_async_16(&shared.rows[stage][row],
                  &query_tile<HEAD_DIM>(params, batch, from.head, from.tile).rows[row]);
  };

  float acc_dk[M_TILES][HEAD_DIM / MMA_N][4] = {};
  float acc_dv[M_TILES][HEAD_DIM / MMA_N][4] = {};
  Position at = {first_head, first_tile};
  if (at.head < end_head) {
    load_tile_async<NUM_THREADS>(shared.k, params.k.head(batch, kv_head), params.k.row_stride, first_key,
                                 kv_len, threadIdx.x);
    load_tile_async<NUM_THREADS>(shared.v, params.v.head(batch, kv_head), params.v.row_stride, first_key,
                                 kv_len, threadIdx.x);
    load_queries_async(0, at);
  }
  cp_async_commit();
  for (int stage = 0; at.head < end_head; at = next(at), stage ^= 1) {
    const int first_query = at.tile * BLOCK_M;
    cp_async_wait<0>();  // this thread's part of Q and dO (and of K and V) has arrived
    __syncthreads();     // every thread's part has, and all warps are done with dS and with the stage that is
                         // filled next
    if (next(at).head < end_head) load_queries_async(stage ^ 1, next(at));
    cp_async_commit();

    // S^T = K Q^T and dP^T = V dO^T. A row belongs to a key, so this warp gets all of P^T and dS^T of its
    // keys.
    float acc_s[M_TILES][QUERY_TILES][4] = {};
    float acc_dp[M_TILES][QUERY_TILES][4] = {};
    uint32_t frag_k[1][M_TILES][4], frag_v[1][M_TILES][4];
    mma_qk<Element>(acc_s, frag_k, shared.k, key_a_offset, shared.q[stage], query_b_offset, 0);
    mma_qk<Element>(acc_dp, frag_v, shared.v, key_a_offset, shared.d_o[stage], query_b_offset, 0);

    // Keys that a query does not see. The first query sees the fewest.
    if (params.template visible_keys<CAUSAL>(first_query, kv_len) < first_key + BLOCK_N<HEAD_DIM>) {
#pragma unroll
      for (int i = 0; i < 2 * QUERY_TILES; ++i) {
        const int query = first_query + i / 2 * MMA_N + acc_col + i % 2;
        const int visible =
            params.template visible_keys<CAUSAL>(query, kv_len) - (first_key + warp_key + acc_row);
#pragma unroll
        for (int r = 0; r < 2 * M_TILES; ++r) {
          if (r * 8 >= visible) acc_s[r / 2][i / 2][r % 2 * 2 + i % 2] = -INFINITY;
        }
      }
    }

    // P = exp2(S - LSE) and dS = P * (dP - D), of 16 queries at a time. Rounded, they are operands of dV +=
    // P^T dO and dK += dS^T Q. dQ is a sum over the keys of all warps, so dS must be in shared memory, too.
#pragma unroll
    for (int step = 0; step < BLOCK_M / MMA_K; ++step) {
      uint32_t frag_p[M_TILES][4], frag_ds[M_TILES][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // the two 8-query tiles of an operand
        const Row* const rows = &shared.rows[stage][step * MMA_K + i * MMA_N + acc_col];
        const Row row[2] = {rows[0], rows[1]};
#pragma unroll
        for (int r = 0; r < 2 * M_TILES; ++r) {
          float p[2], ds[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float s = acc_s[r / 2][step * 2 + i][r % 2 * 2 + e];
            const float dp = acc_dp[r / 2][step * 2 + i][r % 2 * 2 + e];
            p[e] = exp2_approx(fmaf(s, params.softmax_scale_log2, -row[e].lse_log2));
            ds[e] = p[e] * (dp - row[e].delta);
          }
          frag_p[r / 2][i * 2 + r % 2] = pack2<Element>(p[0], p[1]);
          frag_ds[r / 2][i * 2 + r % 2] = pack2<Element>(ds[0], ds[1]);
          *reinterpret_cast<uint32_t*>(shared.ds.at(ds_acc_offset, r * 8, step * MMA_K + i * MMA_N)) =
              frag_ds[r / 2][i * 2 + r % 2];
        }
      }
      mma_over_queries<Element>(acc_dv, frag_p, shared.d_o[stage], query_b_trans_offset, step * MMA_K);
      mma_over_queries<Element>(acc_dk, frag_ds, shared.q[stage], query_b_trans_offset, step * MMA_K);
    }

    // dQ = dS K.
    __syncthreads();  // dS of all warps is complete
    DqAccumulator<HEAD_DIM> acc_dq = {};
#pragma unroll 2  // all at once would cost registers: for sm_90 and sm_120 ptxas then spills 8 bytes
    for (int step = 0; step < BLOCK_N<HEAD_DIM> / MMA_K; ++step) {
      uint32_t a[BLOCK_M / MMA_M][4];
#pragma unroll
      for (int m = 0; m < BLOCK_M / MMA_M; ++m)
        ldmatrix_x4_trans(a[m], shared.ds.at(ds_a_trans_offset, step * MMA_K, m * MMA_M));
#pragma unroll
      for (int n = 0; n < DQ_WARP_COLS<HEAD_DIM> / MMA_N; n += 2) {
        uint32_t b[4];  // two B operands
        ldmatrix_x4_trans(b, shared.k.at(key_b_trans_offset, step * MMA_K, n * MMA_N));
#pragma unroll
        for (int m = 0; m < BLOCK_M / MMA_M; ++m) {
          mma_m16n8k16<Element>(acc_dq[m][n], a[m], {b[0], b[1]});
          mma_m16n8k16<Element>(acc_dq[m][n + 1], a[m], {b[2], b[3]});
        }
      }
    }
    auto& dq = query_tile<HEAD_DIM>(params, batch, at.head, at.tile).dq;
    const float* const sums = &acc_dq[0][0][0];
#pragma unroll
    for (int i = 0; i < int(sizeof(acc_dq) / sizeof(float)); ++i) atomicAdd(&dq[i][threadIdx.x], sums[i]);
  }

  // dK and dV, rounded, go where this warp's rows of K and V were, to be stored in rows of 16 bytes per lane.
  cp_async_wait<0>();
  __syncthreads();  // all warps are done with K
  const int acc_offset = KV::offset_of(warp_key + acc_row, acc_col);
  store_scaled(shared.k, acc_offset, acc_dk, params.softmax_scale);
  store_scaled(shared.v, acc_offset, acc_dv, 1.0f);
  __syncwarp();  // this warp's rows are complete
  const int first_row = first_key + warp_key;
  const int num_rows = min(WARP_KEYS<HEAD_DIM>, params.seqlen_kv - first_row);
  store_rows(shared.k, warp_key, num_rows, params.dk_head(batch, kv_head) + first_row * params.dk.row_stride,
             params.dk.row_stride, lane_id, 32);
  store_rows(shared.v, warp_key, num_rows, params.dv_head(batch, kv_head) + first_row * params.dv.row_stride,
             params.dv.row_stride, lane_id, 32);
}

// The last kernel: a CTA scales and rounds a tile of dQ.
template <typename Element, int HEAD_DIM>
__global__ void __launch_bounds__(NUM_THREADS) finish_kernel(const BackwardParams<Element> params) {
  using Q = QTile<Element, HEAD_DIM>;
  Q& shared = *reinterpret_cast<Q*>(smem);
  const int first_query = blockIdx.x * BLOCK_M;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int lane_id = threadIdx.x % 32;

  const auto& dq = query_tile<HEAD_DIM>(params, batch, head, blockIdx.x).dq;
  DqAccumulator<HEAD_DIM> acc_dq;
  float* const sums = &acc_dq[0][0][0];
#pragma unroll
  for (int i = 0; i < int(sizeof(acc_dq) / sizeof(float)); ++i) sums[i] = dq[i][threadIdx.x];
  const int warp_col = threadIdx.x / 32 * DQ_WARP_COLS<HEAD_DIM>;
  store_scaled(shared, Q::offset_of(accumulator_row(lane_id), warp_col + accumulator_col(lane_id)), acc_dq,
               params.softmax_scale);
  __syncthreads();  // the tile is complete
  store_rows(shared, 0, min(BLOCK_M, params.seqlen_q - first_query),
             params.dq_head(batch, head) + first_query * params.dq.row_stride, params.dq.row_stride,
             threadIdx.x, NUM_THREADS);
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
void launch_backward(const BackwardParams<Element>& params, Stream stream) {
  const dim3 queries(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
  const dim3 keys(ceil_div(params.seqlen_kv, BLOCK_N<HEAD_DIM>), params.num_heads_kv, params.batch);
  launch(prepare_kernel<Element, HEAD_DIM>, queries, dim3(NUM_THREADS), 0, stream, params);
  launch(backward_kernel<Element, HEAD_DIM, CAUSAL>, keys, dim3(NUM_THREADS),
         sizeof(SharedStorage<Element, HEAD_DIM>), stream, params);
  launch(finish_kernel<Element, HEAD_DIM>, queries, dim3(NUM_THREADS), sizeof(QTile<Element, HEAD_DIM>),
         stream, params);
}

size_t workspace_bytes(const AttentionCall& call) {
  const size_t num_tiles = size_t(call.batch) * call.num_heads_q * ceil_div(call.seqlen_q, BLOCK_M);
  return num_tiles * (call.head_dim == 64 ? sizeof(QueryTile<64>) : sizeof(QueryTile<128>));
}

constexpr StepInfo kStep = {
    .title = "A CTA owns a tile of keys, computes all five products with mma.sync, and adds to dQ atomically",
    .removes = "scalar products; S and P computed twice",
    .part = Part::kBackward,
    .alignment_bytes = 16,
    .workspace_bytes = workspace_bytes,
    .backward = true,
    .varies = "CTAs add to dQ in the order in which they get there",
};
REGISTER_STEP(launch_backward, kStep);

}  // namespace STEP_NAMESPACE
