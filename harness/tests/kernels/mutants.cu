// Broken kernels that the harness must reject, and the same kernel unbroken, which it must accept. Each is one mistake
// that people make, or a published kernel made; each registers as a step of its own, mutant_<name>.
//
// One thread per query row, 64 keys at a time, with the online softmax per tile as in v02.
#include "common/step.h"
#include "harness/tests/kernels/mutations.h"

namespace STEP_NAMESPACE {

constexpr int BLOCK_M = 64;
constexpr int BLOCK_N = 64;

using namespace mutations;

// Towards zero, where every step rounds to nearest.
template <typename Element>
__device__ float truncated(float x) {
  const float nearest = float(Element(x));
  if (fabsf(nearest) <= fabsf(x)) return nearest;
  const float unit = float(Element(1.001f)) > 1.0f ? 0x1p-11f : 0x1p-8f;  // fp16, bf16
  return float(Element(x * (1.0f - unit)));
}

// By how many powers of two P may grow before a row's sums are rescaled. Every right step has a bound at which P and its
// sums, rounded to the type or not, still are finite.
__device__ float growth_allowed(Mutation mutation, int row) {
  const bool upper = row % 16 < 8;
  if (mutation == kGrowthOf16) return 16.0f;
  if (mutation == kGrowthOf99) return 99.0f;
  if (mutation == kGrowthOf127) return 127.0f;
  if (mutation == kGrowthInUpperRows && upper) return 1000.0f;
  if (mutation == kGrowthInLowerRows && !upper) return 1000.0f;
  if (mutation == kGrowthInOtherRows && row % 64 == 37) return 1000.0f;
  return 0.0f;
}

// The keys' pages have other sizes than some kernel was written for.
__device__ bool is_page_size(Mutation mutation, int page_size) {
  return (mutation == kPagesOf2 && page_size == 2) || (mutation == kPagesOf4 && page_size == 4) ||
         (mutation == kPagesOf8 && page_size == 8) || (mutation == kPagesOf32 && page_size == 32) ||
         (mutation == kPagesOf512 && page_size == 512);
}

__device__ float scratch[1];

// The row's result together with the earlier one, which it replaces. O is acc_o * inverse_sum.
template <typename Element, int HEAD_DIM>
__device__ void merge(const AttentionParams<Element>& params, Mutation mutation, int batch, int head, int row,
                      float (&acc_o)[HEAD_DIM], float& inverse_sum, float& lse) {
  PartialResult earlier = params.earlier;
  if (mutation == kEarlierRows) earlier.rows = params.seqlen_q;
  const int64_t at = (int64_t(batch) * params.num_heads_q + head) * earlier.rows + row;
  const float before = earlier.lse[at];
  const float both = fmaxf(before, lse) == -INFINITY ? -INFINITY
                                                     : fmaxf(before, lse) + log1pf(expf(-fabsf(before - lse)));
  const float kept = before == -INFINITY ? 0.0f : expf(before - both);
  const float weight = lse == -INFINITY ? 0.0f : expf(lse - both);
  for (int d = 0; d < HEAD_DIM; ++d) {
    float& o = earlier.o[at * HEAD_DIM + d];
    const bool skip = kept == 0.0f && mutation != kEarlierOfNoKey;
    const float merged = (skip ? 0.0f : kept * o) + weight * (acc_o[d] * inverse_sum);
    o = mutation == kEarlierForgotten ? acc_o[d] * inverse_sum : merged;
    if (mutation != kEarlierNotInO) acc_o[d] = o;
  }
  if (mutation != kEarlierNotInO) inverse_sum = 1.0f;
  if (mutation != kEarlierLseKept) earlier.lse[at] = both;
  if (mutation == kEarlierSpareRow && row == params.seqlen_q - 1) earlier.lse[at + 1] = both;
}

template <typename Element, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(BLOCK_M)
    attention_kernel(const AttentionParams<Element> params, Mutation mutation, int launch_number) {
  const int row = blockIdx.x * BLOCK_M + threadIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  if (row >= params.seqlen_q) return;
  const bool chosen_row = row == params.seqlen_q / 2 && head == 0 && batch == 0;
  if (mutation == kRowNeverWritten && chosen_row) return;

  const int group = params.num_heads_q / params.num_heads_kv;
  int q_row_index = mutation == kOneRowWrong && chosen_row ? 0 : row;
  if (mutation == kRowsFrom320) q_row_index = min(row, 319);
  if (mutation == kRowsFrom2048) q_row_index = min(row, 2047);
  int q_head_index = mutation == kHeadsFrom8 ? head % 8 : head;
  if (mutation == kGroupFrom16) q_head_index = head / group * group + head % group % 16;
  int kv_batch = mutation == kBatchesFrom2 ? min(batch, 1) : batch;
  if (mutation == kBatchesFrom32) kv_batch = min(batch, 31);
  int kv_head = params.kv_head(head);
  if (mutation == kGroupOf2 && group == 2) kv_head = head % params.num_heads_kv;
  if (mutation == kGroupAbove4 && group > 4) kv_head = min(head / 4, params.num_heads_kv - 1);
  if (mutation == kGroupNoPowerOf2) kv_head = min(head >> (31 - __clz(group)), params.num_heads_kv - 1);
  const Element* q_row = params.q_head(batch, q_head_index) + q_row_index * params.q.row_stride;
  if (mutation == k32BitOffsets) {
    const uint32_t offset = uint32_t(batch) * uint32_t(params.q.batch_stride) +
                            uint32_t(head) * uint32_t(params.q.head_stride) + uint32_t(row) * uint32_t(params.q.row_stride);
    q_row = params.q.data + int(offset);
  }
  const int kv_len = params.kv_length(batch);
  const bool paged = params.page_table.pages != nullptr;
  const auto row_of = [&](const View<const Element>& view, int key, int64_t row_stride) {
    if (!paged) return view.head(kv_batch, kv_head) + key * row_stride;
    int page = params.page_of(mutation == kTableOfBatch0 ? 0 : batch, key);
    if (mutation == kPagesInOrder) page = min(key >> params.log2_page_size, view.batch - 1);
    if (mutation == kFirstPageOnly) page = params.page_of(batch, 0);
    if (mutation == kTableOneBeyond) page = params.page_of(batch, min(key + 1, params.seqlen_kv - 1));
    if (mutation == kTableAsWideAsNeeded)
      page = params.page_table.pages[batch * ceil_div(params.seqlen_kv, params.page_table.page_size) +
                                     (key >> params.log2_page_size)];
    if (is_page_size(mutation, params.page_table.page_size)) page = params.page_of(batch, 0);
    return view.head(page, kv_head) + params.row_in_page(key) * row_stride;
  };
  const auto k_row = [&](int key) { return row_of(params.k, key, params.k.row_stride); };
  int visible = params.template visible_keys<CAUSAL>(row, kv_len);
  if (mutation == kMaskOffByOne) visible = min(visible + 1, kv_len);
  int num_tiles = ceil_div(visible, BLOCK_N);
  if (mutation == kLastTileDropped && num_tiles > 1) --num_tiles;
  if (mutation == kRoundBy128 && kv_len % 128 == 0 && visible == kv_len) --num_tiles;
  if (mutation == kRoundBy256 && kv_len % 256 == 0 && visible == kv_len) --num_tiles;
  if (mutation == kKeysFrom1024) num_tiles = min(num_tiles, 16);
  if (mutation == kKeysFrom16384) num_tiles = min(num_tiles, 256);

  float acc_o[HEAD_DIM];
  for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] = 0.0f;
  float row_max = mutation == kMaxStartsAtZero ? 0.0f : mutation == kMaxStartsAt300 ? -300.0f : -INFINITY;
  float row_sum = 0.0f;
  const int64_t v_row_stride = mutation == kVUsesKStrides ? params.k.row_stride : params.v.row_stride;
  const auto v_row = [&](int key) { return row_of(params.v, key, v_row_stride); };
  // The slot behind the last key, if its page has one.
  if (mutation == kSlotInMaximum && paged && params.row_in_page(kv_len) != 0) {
    const Element* const last = k_row(kv_len - 1);
    row_max = fmaxf(row_max, float(q_row[0]) * float(last[params.k.row_stride]));
  }
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int first_key = tile * BLOCK_N;
    float s[BLOCK_N];
    float new_max = row_max;
    // Memory that nobody has written, or may read: harmless as long as it holds a NaN, which fmaxf drops.
    if (mutation == kMaxFromShared && tile == 0) new_max = fmaxf(new_max, reinterpret_cast<float*>(smem)[threadIdx.x]);
    if (mutation == kGapInMaximum) new_max = fmaxf(new_max, float(k_row(first_key)[HEAD_DIM]));
    for (int j = 0; j < BLOCK_N; ++j) {
      const int key = first_key + j;
      s[j] = -INFINITY;
      if (key >= visible) {
        // Zero-filled keys beyond the end score 0 and take part in the softmax unless they are masked.
        if (mutation == kTailNotMasked && key >= kv_len) s[j] = 0.0f;
        new_max = fmaxf(new_max, s[j]);
        if (mutation == kPaddingInMaximum && key >= kv_len && key < params.seqlen_kv)
          new_max = fmaxf(new_max, float(q_row[0]) * float(k_row(key)[0]));
        continue;
      }
      float score = 0.0f;
      const Element* const k = k_row(key);
#pragma unroll 1  // or the addresses of rows in pages need too many registers
      for (int d = 0; d < HEAD_DIM; ++d) {
        float element;
        if (mutation == kKTransposed) {  // ldmatrix.trans on K: every 8x8 block is transposed
          const int k_key = key / 8 * 8 + d % 8;
          element = k_key < kv_len ? float(k_row(k_key)[d / 8 * 8 + key % 8]) : 0.0f;
        } else {
          element = float(k[d]);
        }
        score += float(q_row[d]) * element;
      }
      const float scale_log2 = mutation == kScaleIgnored ? rsqrtf(HEAD_DIM) * kLog2e : params.softmax_scale_log2;
      s[j] = mutation == kQkSkipped ? 0.0f : score * scale_log2;
      if (mutation == kScoresClamped) s[j] = fminf(fmaxf(s[j], -200.0f), 200.0f);
      if (mutation == kScoresClampedAbove) s[j] = fminf(s[j], 200.0f);
      new_max = fmaxf(new_max, s[j]);
    }
    if (mutation == kNoMax) new_max = 0.0f;
    if (mutation == kMaxOfFirstTileOnly && tile > 0) new_max = row_max;
    if (new_max - row_max <= growth_allowed(mutation, row)) new_max = row_max;
    const float row_scale = exp2f(row_max - new_max);
    row_max = new_max;
    if (mutation != kSumNotRescaled) row_sum *= row_scale;
    if (mutation != kONotRescaled)
      for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] *= row_scale;
    for (int j = 0; j < BLOCK_N; ++j) {
      const int key = first_key + j;
      float p = exp2f(s[j] - new_max);
      row_sum += p;
      if (mutation == kPTruncated) p = truncated<Element>(p);
      if (growth_allowed(mutation, row) > 0.0f) p = float(Element(p));  // as an operand of a product
      // A stage that is read one phase too early still holds the tile of two tiles before.
      const int v_key = mutation == kStaleFromTile13 && tile >= 13 ? key - 2 * BLOCK_N : key;
      const bool load = mutation == kPaddingRead ? key < params.seqlen_kv : key < visible;  // 0 * NaN is NaN
      if (!load) continue;
      const Element* const v = v_row(v_key);
      for (int d = 0; d < HEAD_DIM; ++d) acc_o[d] += p * float(v[d]);
    }
  }

  float inverse_sum = row_sum > 0.0f ? 1.0f / row_sum : 0.0f;
  // Far too little for the gates; enough to change some bits between two launches on the same inputs.
  if (mutation == kNotDeterministic) inverse_sum *= 1.0f + 1e-4f * float(launch_number % 2);
  float lse = num_tiles > 0 ? row_max * kLn2 + logf(row_sum) : -INFINITY;
  if (params.earlier.o != nullptr) merge(params, mutation, batch, head, row, acc_o, inverse_sum, lse);
  if (mutation == kScratchInVariable && chosen_row) {
    scratch[0] = inverse_sum;
    inverse_sum = scratch[0];
  }
  Element* const o_row = params.o_head(batch, head) + row * params.o.row_stride;
  for (int d = 0; d < HEAD_DIM; ++d) {
    const float before = float(o_row[d]);
    o_row[d] = Element(acc_o[d] * inverse_sum);
    if (mutation == kOTruncated) o_row[d] = Element(truncated<Element>(acc_o[d] * inverse_sum));
    if (mutation == kElementOff && chosen_row && d == 3) o_row[d] = Element(acc_o[d] * inverse_sum * 1.01f);
    if (mutation == kOutputKept && before > float(o_row[d])) o_row[d] = Element(before);
  }
  if (mutation == kLseInLog2 && num_tiles > 0) lse *= kLog2e;
  if (mutation == kEmptyRowNotZero && visible == 0) {
    o_row[0] = Element(1e-6f);
    lse = -1e30f;
  }
  if (mutation == kLseKept && params.lse != nullptr) lse = fmaxf(lse, params.lse_head(batch, head)[row]);
  if (mutation == kLseAlways) params.lse_head(batch, head)[row] = lse;
  const bool beyond = mutation == kLseStride && batch >= 2;
  params.store_lse(batch, beyond ? head / group : head, row, lse);

  if (mutation == kWritesNan && chosen_row) o_row[3] = Element(NAN);
  if (mutation == kWritesInf && chosen_row) o_row[3] = Element(INFINITY);
  const bool last_row = row == params.seqlen_q - 1 && head == params.num_heads_q - 1 && batch == params.batch - 1;
  if (mutation == kPastTheEnd && last_row) o_row[HEAD_DIM] = Element(0.0f);
  const bool first_row = row == 0 && head == 0 && batch == 0;
  if (mutation == kBeforeTheStart && first_row) o_row[-1] = Element(0.0f);
  if (mutation == kInputModified && first_row) const_cast<Element*>(q_row)[0] = Element(0.5f);
}

int launches = 0;

template <Mutation MUTATION>
struct MutantLauncher {
  template <typename Element, int HEAD_DIM, bool CAUSAL>
  static void run(const AttentionParams<Element>& params, Stream stream) {
    const dim3 grid(ceil_div(params.seqlen_q, BLOCK_M), params.num_heads_q, params.batch);
    const size_t smem_bytes = MUTATION == kMaxFromShared ? BLOCK_M * sizeof(float) : 0;
    launch(attention_kernel<Element, HEAD_DIM, CAUSAL>, grid, dim3(BLOCK_M), smem_bytes, stream, params, MUTATION,
           ++launches);
  }
};

constexpr StepInfo kStepInfo{.title = "a broken kernel for the tests", .removes = "nothing", .merges = true, .pages = true};

template <int... MUTATIONS>
bool register_all(std::integer_sequence<int, MUTATIONS...>) {
  return (register_step({kNames[MUTATIONS], kThisBackend, kStepInfo,
                         dispatch<MutantLauncher<Mutation(MUTATIONS)>, kStepInfo>}) &&
          ...);
}
const bool kRegistered = register_all(std::make_integer_sequence<int, kNumMutations>());

}  // namespace STEP_NAMESPACE
