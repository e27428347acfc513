// Rows of a V tile that lie beyond the batch's length: TMA brings them, as it does not know of lengths, and
// whatever they hold would get through, for 0 * NaN is NaN. Spelled out in v10_tma_warpspec.
#pragma once

#include <cstdint>

#include "common/attention.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Sets rows first_row .. Tile::ROWS - 1 to zero. By `num_threads` threads, each with its number; a barrier among
// them must follow before the tile is read.
template <typename Tile>
__device__ void clear_rows_from(Tile& tile, int first_row, int thread, int num_threads) {
  constexpr int WORDS = Tile::COLS * sizeof(typename Tile::Element) / 4;  // of a row
  for (int i = thread; i < (Tile::ROWS - first_row) * WORDS; i += num_threads) {
    const int offset = Tile::offset_of(first_row + i / WORDS, i % WORDS * 2);
    *reinterpret_cast<uint32_t*>(tile.at(offset, 0, 0)) = 0;
  }
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
