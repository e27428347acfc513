// v43: q, k, v and O in 16 bits, and FP8 in between. A first kernel finds the largest magnitude of each tile,
// and a second one has each head's scales from these, rounds q, k and v to e4m3, and writes V as the tensor
// cores want it, transposed. The attention kernel is v41's.
#include "common/blocks/bytes_of_p.h"
#include "common/blocks/transposed_tile.h"
#include "common/elect.h"
#include "common/griddepcontrol.h"
#include "common/setmaxnreg.h"
#include "common/step.h"
#include "common/unpack.h"

namespace STEP_NAMESPACE {

using namespace fp16_scores;

// ---- The quantizer. Two kernels read q, k and v in tiles of TILE_ROWS rows, a CTA for each.

constexpr int TILE_ROWS = V_N;
constexpr int THREADS = 256;
constexpr int CHUNK = 8;  // elements of 16 bits that a lane loads at a time

// Everything is contiguous.
struct Workspace {
  Fp8 *q, *k;           // [batch, heads, rows, HEAD_DIM]
  uint4* v_transposed;  // [batch, num_heads_kv, kv_tiles, HEAD_DIM + SUMS, V_N]
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
  griddepcontrol_launch_dependents();  // the attention kernel begins where an SM has room for it
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

    const int64_t number = head_number() * workspace.kv_tiles + tile.first_row / V_N;
    store_tile_of_v<HEAD_DIM, THREADS>(shared.v,
                                       workspace.v_transposed + number * ((HEAD_DIM + SUMS) * V_N / 16));
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

// ---- The attention kernel, which is v41's. Its O has the type of the call's tensors.

// D, pipelines, warpgroups, keys of a tile, stages of K and V, turns.
constexpr int BLOCK_N = 256;
template <typename Output_, int HEAD_DIM>
struct Config : PipelineConfig<HEAD_DIM, 1, 2, BLOCK_N, 2, 2, true> {
  using Output = Output_;
  using Softmax = BytesOfP;
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
    return load_tiles<CAUSAL, Keys::kLastToFirst, /*COUNTS=*/CAUSAL, /*SKIPS=*/false, /*OVERLAPS=*/true>(
        shared, params, maps, order, num_tiles, blockIdx.x);
  }
  warpgroup_reg_alloc<C::CONSUMER_REGISTERS, C::REGISTERS_AT_LAUNCH>();
  Consumer<CAUSAL, C>(params, shared, uniform(int(threadIdx.x / 128))).run();
}

// ---- The host.

// Of a (batch, KV head): the CTAs of a row of the quantizer's grid.
int tiles_of_kv_head(const auto& call) {
  const int group = call.num_heads_q / call.num_heads_kv;
  return group * ceil_div(call.seqlen_q, TILE_ROWS) + 2 * num_v_tiles(call.seqlen_kv, BLOCK_N);
}

// Of each part of the workspace. All but the last are multiples of the 16 bytes that a tensor map wants.
struct Sizes {
  size_t q, k, v, descales, maxima;
};
Sizes sizes_of(const auto& call, int head_dim) {
  const size_t heads = size_t(call.batch) * call.num_heads_kv;
  return {.q = size_t(call.batch) * call.num_heads_q * call.seqlen_q * head_dim,
          .k = heads * call.seqlen_kv * head_dim,
          .v = heads * num_v_tiles(call.seqlen_kv, BLOCK_N) * V_N * (head_dim + SUMS),
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
          .kv_tiles = num_v_tiles(params.seqlen_kv, BLOCK_N)};
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
  launch_overlapping(
      attention_kernel<CAUSAL, C>, dim3(min(num_tiles, num_sms())), dim3(C::NUM_THREADS), sizeof(Storage<C>),
      stream, params,
      TensorMaps{.q = make_tensor_map<typename Storage<C>::Q>(params.q),
                 .k = make_tensor_map<typename Storage<C>::K>(params.k),
                 .v = make_v_map<typename Storage<C>::V>(workspace.v_transposed, workspace.kv_tiles,
                                                         params.num_heads_kv, params.batch),
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
