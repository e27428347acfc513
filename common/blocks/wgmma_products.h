// The two products of a tile of keys, by a warpgroup. Spelled out in v21_wgmma; waiting for them, in
// v22_overlap. accumulator.h says what a lane holds; with wgmma each warp's 16 rows lie below those of the
// warp before.
#pragma once

#include "common/blocks/accumulator.h"
#include "common/wgmma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Starts S = Q K^T as a group. The descriptors are those of the warpgroup's rows of Q and of the tile of K.
template <typename Q, typename KV, int S_TILES>
__device__ __forceinline__ void start_qk(float (&acc_s)[1][S_TILES][4], SmemDescriptor q, SmemDescriptor k) {
  warpgroup_fence_operand(wgmma_accumulator(acc_s));
  warpgroup_arrive();
#pragma unroll
  for (int col = 0; col < Q::COLS; col += 16)
    wgmma_m64k16<typename Q::Element>(wgmma_accumulator(acc_s), advance<Q>(q, 0, col), advance<KV>(k, 0, col),
                                      col > 0);
  warpgroup_commit_batch();
}

// Starts O += P V, or O = P V if it is the first. V has a row per key, so its rows run along B's N, not along
// its K.
template <typename KV, int P_STEPS, int O_TILES>
__device__ __forceinline__ void start_pv(float (&acc_o)[1][O_TILES][4],
                                         const uint32_t (&frag_p)[P_STEPS][1][4], SmemDescriptor v,
                                         bool first) {
  warpgroup_fence_operand(wgmma_accumulator(acc_o));
  warpgroup_arrive();
#pragma unroll
  for (int step = 0; step < P_STEPS; ++step)
    wgmma_m64k16<typename KV::Element, Major::kMN>(wgmma_accumulator(acc_o), frag_p[step][0],
                                                   advance<KV>(v, step * 16, 0), step > 0 || !first);
  warpgroup_commit_batch();
}

// Waits until all groups but the latest PENDING are complete, after which acc may be read.
template <int PENDING, int N_TILES>
__device__ __forceinline__ void wait_for(float (&acc)[1][N_TILES][4]) {
  warpgroup_wait<PENDING>();
  warpgroup_fence_operand(wgmma_accumulator(acc));
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
