// Where in shared memory wgmma finds an operand, in 64 bits. PTX ISA, "Asynchronous warpgroup level matrix
// shared memory layout" and "Matrix descriptor". make_smem_descriptor() in wgmma.h makes one.
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Which of an operand's two dimensions its tile's rows run along. A: M x K, B: K x N. Q and K are kK, as the
// head dimension is summed over; V is kMN. FP8 only has kK.
enum class Major { kK, kMN };

// Where in shared memory an operand begins, and how it lies there.
//   bits  0-13  address / 16
//   bits 16-29  bytes / 16 from one panel of the tile to the next. kMN only; in kK K ends within a row.
//   bits 32-45  bytes / 16 from 8 rows of the tile to the next 8
//   bits 62-63  swizzle: 1 for 128 bytes, 2 for 64, 3 for 32
// The other bits are 0. The PTX ISA, "Matrix descriptor", calls the first three start address, leading byte
// offset and stride byte offset.
struct SmemDescriptor {
  uint64_t bits;
};

// The descriptor of the operand that begins `rows` rows and `cols` columns further: the next 16 of K (32 in
// FP8) are as many columns further in kK, and rows in kMN. `descriptor` must be one of column 0, because the
// sum of two columns could lie in another panel. If the compiler knows the two numbers, this is one addition.
template <typename Tile>
__device__ __forceinline__ SmemDescriptor advance(SmemDescriptor descriptor, int rows, int cols) {
  const int bytes = cols / Tile::PANEL_COLS * Tile::PANEL_BYTES + rows * Tile::ROW_BYTES +
                    cols % Tile::PANEL_COLS * int(sizeof(typename Tile::Element));
  return {descriptor.bits + uint64_t(bytes / 16)};
}

// The descriptor of a tile at this address of the shared window. In a cluster, bits 24 and up of the address
// are the CTA's rank, which without the mask would change the leading offset. The mask is that of
// matrix-descriptor-encode in the PTX ISA.
template <bool IN_CLUSTER, typename Tile>
__device__ __forceinline__ SmemDescriptor smem_descriptor_at(uint32_t address) {
  static_assert(sizeof(typename Tile::Element) <= 2 && Tile::SWIZZLE_BYTES != 0);
  constexpr uint64_t SWIZZLE = Tile::SWIZZLE_BYTES == 128 ? 1 : Tile::SWIZZLE_BYTES == 64 ? 2 : 3;
  constexpr uint64_t LEADING = Tile::PANEL_BYTES / 16, STRIDE = 8 * Tile::ROW_BYTES / 16;
  static_assert(LEADING < 1 << 14);
  if (IN_CLUSTER) address &= 0x3ffff;
  return {address / 16 | LEADING << 16 | STRIDE << 32 | SWIZZLE << 62};
}

template <int NUM_ACC>
constexpr bool kIsWgmmaAccumulator = NUM_ACC % 4 == 0 && NUM_ACC >= 4 && NUM_ACC <= 128;

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
