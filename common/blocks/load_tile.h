// All threads of a CTA copy a tile from global to shared memory, asynchronously. Spelled out in v11_cp_async.
#pragma once

#include "common/cp_async.h"
#include "common/cuda.h"
#include "common/swizzle.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Starts to copy rows first_row .. first_row + Tile::ROWS - 1 of a head to a SwizzledTile. Rows at or beyond
// num_rows become zero. NUM_THREADS threads call it, each with its number; each moves 16 bytes at a time.
template <int NUM_THREADS, typename Tile>
__device__ void load_tile_async(Tile& tile, const typename Tile::Element* head, int64_t row_stride,
                                int first_row, int num_rows, int thread) {
  constexpr int CHUNK = 16 / sizeof(typename Tile::Element);  // elements
  constexpr int CHUNKS = Tile::COLS / CHUNK;                  // of a row
  constexpr int ROW_STEP = NUM_THREADS / CHUNKS;              // rows that all threads move at once
  static_assert(NUM_THREADS % CHUNKS == 0 && ROW_STEP % 8 == 0 && Tile::ROWS % ROW_STEP == 0);  // see at()
  const int row = thread / CHUNKS;
  const int d = thread % CHUNKS * CHUNK;
  const int offset = Tile::offset_of(row, d);
  const typename Tile::Element* const from = head + (first_row + row) * row_stride + d;
  if (first_row + Tile::ROWS <= num_rows) {  // usually true: no comparison per row
#pragma unroll
    for (int r = 0; r < Tile::ROWS; r += ROW_STEP) cp_async_16(tile.at(offset, r, 0), from + r * row_stride);
  } else {
#pragma unroll
    for (int r = 0; r < Tile::ROWS; r += ROW_STEP)
      cp_async_16_zfill(tile.at(offset, r, 0), from + r * row_stride, first_row + row + r < num_rows);
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
