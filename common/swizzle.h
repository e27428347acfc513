// Swizzled tiles in shared memory: no bank conflicts without padding, laid out as TMA writes and reads them.
// PTX ISA, "Tensors: swizzling modes".
#pragma once

#include <cstdint>

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// A tile of ROWS x COLS elements. Its rows are SWIZZLE_BYTES long (128, 64 or 32), so a wider tile consists
// of panels of this width, one after the other. Within a row, chunks of 16 bytes change places: chunk c of
// row r lies where chunk c ^ r would (with 128 bytes; in shorter rows, r counts units of 128 bytes). So a
// column of chunks, 8 rows high, as ldmatrix reads it, is spread over all 32 banks. SWIZZLE_BYTES = 0: one
// panel, chunks where they are.
//
// The pattern depends on the address and repeats every 1024 bytes, so a tile must be aligned to 1024 bytes.
template <typename Element_, int ROWS_, int COLS_, int SWIZZLE_BYTES_>
struct alignas(1024) SwizzledTile {
  using Element = Element_;
  static constexpr int ROWS = ROWS_;
  static constexpr int COLS = COLS_;
  static constexpr int SWIZZLE_BYTES = SWIZZLE_BYTES_;
  static constexpr int ROW_BYTES = SWIZZLE_BYTES == 0 ? COLS * int(sizeof(Element)) : SWIZZLE_BYTES;
  static constexpr int PANEL_COLS = ROW_BYTES / int(sizeof(Element));
  static constexpr int PANEL_BYTES = ROWS * ROW_BYTES;
  static_assert(SWIZZLE_BYTES == 128 || SWIZZLE_BYTES == 64 || SWIZZLE_BYTES == 32 || SWIZZLE_BYTES == 0);
  static_assert(ROWS % 8 == 0 && COLS % PANEL_COLS == 0);
  static_assert((ROW_BYTES & (ROW_BYTES - 1)) == 0);  // or at() could not XOR

  Element data[COLS / PANEL_COLS][ROWS][PANEL_COLS];

  // Where element (row, col) lies, in bytes. The rest of its chunk follows it.
  static __device__ int offset_of(int row, int col) {
    const int in_row = col % PANEL_COLS * int(sizeof(Element));
    return col / PANEL_COLS * PANEL_BYTES + row * ROW_BYTES + (in_row ^ swizzle_of(row));
  }

  // The element `rows` below and `cols` to the right of the one at `offset`. This is cheaper than another
  // offset_of(): if the compiler knows `rows` and `cols`, it is usually one XOR. The pattern repeats every 8
  // rows, so `rows` must be a multiple of 8. `cols` must be a multiple of 8 none of whose bits are set in the
  // column that `offset` stands for: adding it is then the same as XORing it, and this XOR may come after
  // that of the swizzle.
  __device__ Element* at(int offset, int rows, int cols) {
    const int in_row = cols % PANEL_COLS * int(sizeof(Element));
    const int moved = cols / PANEL_COLS * PANEL_BYTES + rows * ROW_BYTES + (offset ^ in_row);
    return reinterpret_cast<Element*>(reinterpret_cast<char*>(data) + moved);
  }

 private:
  static __device__ int swizzle_of(int row) {
    if constexpr (SWIZZLE_BYTES == 0) {
      return 0;
    } else {
      return row / (128 / ROW_BYTES) % (SWIZZLE_BYTES / 16) * 16;
    }
  }
};

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
