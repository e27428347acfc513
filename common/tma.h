// TMA, the tensor memory accelerator: one thread requests a box of a tensor; the copy engine computes the
// addresses, moves the box between global and shared memory, swizzles it, and signals an mbarrier. PTX ISA,
// "Data movement and conversion instructions: cp.async.bulk.tensor". sm_90 and newer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/cuda.h"
#include "common/swizzle.h"
#include "common/tensor_map.h"
#include "common/view.h"

#ifndef __CUDACC__
#include "common/emulator/tma.h"
#else

#include <cuda.h>

namespace flashsteps {
inline namespace on_cuda {

// A kernel takes it as `const __grid_constant__ TensorMap`: by value, and never copied to local memory.
using TensorMap = CUtensorMap;

// Throws std::runtime_error with a sentence when TMA cannot address such a tensor. In
// common/cuda/tensor_map.cpp.
TensorMap encode_tensor_map(const TensorMapShape& shape);

// Starts to copy the box at coordinates c0 .. c4 (c0 is the contiguous dimension) to `shared`, which is
// aligned to 128 bytes or, with swizzle, to 8 of its rows. Does not wait. When the box is complete, TMA
// reports its bytes to `barrier`: those of the whole box, even where it reaches beyond the tensor, which
// reads as zero. One thread.
__device__ __forceinline__ void tma_load_5d(void* shared, const TensorMap& map, uint64_t* barrier, int c0,
                                            int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
      :
      : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(&map),
        "r"(uint32_t(__cvta_generic_to_shared(barrier))), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// The same to several CTAs of the cluster (common/cluster.h), those whose rank's bit is set in `cta_mask`.
// Each gets the box at the offset of `shared` in its own dynamic shared memory, and TMA reports the bytes to
// its own mbarrier at the offset of `barrier`. One thread of any CTA; the box is read once. Only on sm_90a:
// ptxas advises against it on others.
__device__ __forceinline__ void tma_load_5d_multicast(void* shared, const TensorMap& map, uint64_t* barrier,
                                                      uint16_t cta_mask, int c0, int c1, int c2, int c3,
                                                      int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;"
      :
      : "r"(uint32_t(__cvta_generic_to_shared(shared))), "l"(&map),
        "r"(uint32_t(__cvta_generic_to_shared(barrier))), "h"(cta_mask), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
        "r"(c4)
      : "memory");
}

// Starts to copy a box from shared to global memory; what reaches beyond the tensor is not written. The store
// joins the thread's current bulk group: see tma_store_commit. One thread. Before, the threads that have
// written the box must have called fence_proxy_async, and a barrier must have followed.
__device__ __forceinline__ void tma_store_5d(const TensorMap& map, const void* shared, int c0, int c1, int c2,
                                             int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
               :
               : "l"(&map), "r"(uint32_t(__cvta_generic_to_shared(shared))), "r"(c0), "r"(c1), "r"(c2),
                 "r"(c3), "r"(c4)
               : "memory");
}

// Commits this thread's stores since the last commit as a bulk group.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

// Waits until all but this thread's latest PENDING bulk groups have read their shared memory, which may then
// be overwritten. A thread must not exit before, because the CTA may then lose its shared memory.
template <int PENDING>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(PENDING) : "memory");
}

// TMA accesses shared memory through a separate path, the async proxy, which is not ordered with the threads'
// accesses. This fence must come between what threads have written and a TMA copy that reads or overwrites
// it, and between what they have read and a TMA copy that overwrites it. Either those threads call it, before
// the barrier or mbarrier that orders the two, or the thread that starts the copy calls it after that
// barrier.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

}  // namespace on_cuda
}  // namespace flashsteps

#endif

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// The map of a tensor whose rows have Tile::COLS elements, to be copied in boxes of Tile::ROWS rows of one
// head that lie in shared memory as Tile, a SwizzledTile. Coordinates: (0, row, 0, head, batch). If a box has
// only some of the panels, the third coordinate is its first panel.
//
// Rows, heads and batches are separate dimensions, so that a box that reaches beyond the last row of a head
// is filled with zeros and not with the next head's rows. A row is two dimensions, the panel and the column
// in it, because a row of the box must not be longer than the swizzle is wide.
template <typename Tile, int BOX_PANELS = Tile::COLS / Tile::PANEL_COLS, typename T>
TensorMap make_tensor_map(const View<T>& tensor) {
  static_assert(std::is_same_v<std::remove_const_t<T>, typename Tile::Element>);
  constexpr int ELEMENT_BYTES = sizeof(T);
  const auto in_bytes = [](int64_t stride) { return uint64_t(stride) * ELEMENT_BYTES; };
  return encode_tensor_map(
      {.base = tensor.data,
       .element_bytes = ELEMENT_BYTES,
       .size = {Tile::PANEL_COLS, uint64_t(tensor.num_rows), Tile::COLS / Tile::PANEL_COLS,
                uint64_t(tensor.num_heads), uint64_t(tensor.batch)},
       .stride = {ELEMENT_BYTES, in_bytes(tensor.row_stride), Tile::ROW_BYTES, in_bytes(tensor.head_stride),
                  in_bytes(tensor.batch_stride)},
       .box = {Tile::PANEL_COLS, Tile::ROWS, BOX_PANELS, 1, 1},
       .swizzle_bytes = Tile::SWIZZLE_BYTES});
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
