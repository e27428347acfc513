// A tile of rows whose keys several CTAs share: each leaves its part of O, and those that are there when the
// last part is complete merge all parts together. Spelled out in v37_even_shares.
//
// The unit is a warp with its 16 rows. It meets the warps of other CTAs that have the same rows.
#pragma once

#include "common/atomic_acq_rel.h"
#include "common/blocks/epilogue.h"
#include "common/blocks/one_launch.h"
#include "common/blocks/split_keys.h"
#include "common/blocks/uniform.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

constexpr int kPatience = 64;  // how often a warp looks whether all parts are there

// A warpgroup's parts of 64 rows, in the order of its registers: thread t has o[n][t] of columns 8 n on.
template <int HEAD_DIM>
struct Parts {
  float4 (*o)[HEAD_DIM / kAccumulatorCols][128];
  Softmax (*softmax)[64];

  // On the host.
  static size_t bytes(int64_t num_parts) { return num_parts * (sizeof(*o) + sizeof(*softmax)); }
  static Parts in(void* memory, int64_t num_parts) {
    const auto o = static_cast<float4(*)[HEAD_DIM / kAccumulatorCols][128]>(memory);
    return {o, reinterpret_cast<Softmax(*)[64]>(o + num_parts)};
  }
};

// Two counters of a warp's rows: how many parts have arrived, and how many warps have drawn a ticket.
// Each ticket stands for a slice of the columns, and there are as many as parts.
struct Meeting {
  unsigned *arrived, *tickets;
  static constexpr int COUNTERS = 2;
  static constexpr unsigned QUIT = 1 << 16;  // added by a warp that does not wait for the others

  __device__ explicit Meeting(unsigned* counters) : arrived(counters), tickets(counters + 1) {}

  // This warp's part of num_parts is complete. Returns how many tickets the warp must draw: 0 if others will
  // merge. Only warps that have nothing else to do wait for the others, and these not for ever: the others
  // may not run yet, if something else occupies the GPU. All lanes call it, and lane 0 has the result.
  __device__ int arrive(int num_parts, bool may_wait, int lane_id) const {
    __syncwarp();  // all lanes have written
    if (lane_id != 0) return 0;
    const unsigned before = atomic_add_acq_rel(arrived, 1);
    // The last one also draws for those that have quit.
    if (before % QUIT == unsigned(num_parts - 1)) return 1 + before / QUIT;
    for (int i = 0; may_wait && i < kPatience; ++i)
      if (load_acquire(arrived) % QUIT == unsigned(num_parts)) return 1;
    return atomic_add_acq_rel(arrived, QUIT) % QUIT == unsigned(num_parts) ? 1 : 0;  // just in time?
  }
  // The number of a slice that this warp must merge. The last ticket leaves both counters 0.
  __device__ int draw(int num_parts, int lane_id) const {
    int ticket = 0;
    if (lane_id == 0) {
      ticket = atomicInc(tickets, num_parts - 1);
      if (ticket == num_parts - 1) atomicExch(arrived, 0);  // all have drawn: nobody looks any more
    }
    return __shfl_sync(0xffffffff, ticket, 0);
  }
  // If there are two parts, the second warp merges them. Is this warp the second one? Before it is counted,
  // the first one must leave its part.
  __device__ bool other_is_there(int lane_id) const {
    const bool is = __any_sync(0xffffffff, lane_id == 0 && load_acquire(arrived) == 1);
    if (is && lane_id == 0) *arrived = 0;
    return is;
  }
  __device__ bool is_second(int lane_id) const {
    __syncwarp();  // all lanes have written
    return __any_sync(0xffffffff, lane_id == 0 && atomic_inc_acq_rel(arrived, 1) == 1);
  }
};

// Adds another part of the same rows to the one in registers. Which of the two is which does not matter to
// the result: both are rounded after their multiplication.
template <int O_TILES>
__device__ void add_part(float (&acc_o)[1][O_TILES][4], float (&row_base)[1][2], float (&row_sum)[1][2],
                         const float4* o, const Softmax* softmax) {
  float ours[2], theirs[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Softmax other = softmax[r * 8];
    const float base = fmaxf(row_base[0][r], other.base);
    ours[r] = exp2_approx(row_base[0][r] - base);
    theirs[r] = exp2_approx(other.base - base);
    row_base[0][r] = base;
    row_sum[0][r] = __fadd_rn(__fmul_rn(row_sum[0][r], ours[r]), __fmul_rn(other.sum, theirs[r]));
  }
#pragma unroll
  for (int n = 0; n < O_TILES; ++n) {
    const float4 columns = o[n * 128];
    const float other[4] = {columns.x, columns.y, columns.z, columns.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      acc_o[0][n][i] = __fadd_rn(__fmul_rn(acc_o[0][n][i], ours[i / 2]), __fmul_rn(other[i], theirs[i / 2]));
  }
}

// Merges num_parts parts of COLUMNS tiles of 8 columns, PARTS of them at a time: a warp has so many loads
// under way. `o` and `softmax` are those of the first part, of this lane's columns and rows; the next parts
// follow at a distance of `stride` parts. `whole` has the columns of the lane's first row, then those of its
// second one.
//
// No array here has several dimensions and a type with a constructor: nvcc 13.0 constructs the elements of
// the first row alone, and the others become zero.
template <int COLUMNS, int PARTS, int HEAD_DIM>
__device__ void merge_parts(RowPart<2> (&whole)[2 * COLUMNS], const float4* o, const Softmax* softmax,
                            int stride, int num_parts) {
#pragma unroll 1
  for (int part = 0; uniform(part < num_parts); part += PARTS) {
    float4 columns[COLUMNS][PARTS];
    Softmax of_rows[2][PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const bool exists = part + i < num_parts;  // one that does not has the weight 0
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) columns[c][i] = exists ? o[c * 128] : float4{};
#pragma unroll
      for (int r = 0; r < 2; ++r) of_rows[r][i] = exists ? softmax[r * 8] : Softmax{-FLT_MAX, 0.0f};
      o += stride * (HEAD_DIM / kAccumulatorCols) * 128;
      softmax += stride * 64;
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      RowPart<2> first[PARTS], second[PARTS];
#pragma unroll
      for (int i = 0; i < PARTS; ++i) {
        first[i] = {of_rows[0][i], {columns[c][i].x, columns[c][i].y}};
        second[i] = {of_rows[1][i], {columns[c][i].z, columns[c][i].w}};
      }
      whole[c].add(first);
      whole[COLUMNS + c].add(second);
    }
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
