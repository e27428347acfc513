// The layout of tiles that TMA has swizzled into shared memory. ldmatrix and wgmma must read a tile the way
// it was swizzled. This is checked only with the race detector, which knows whether the load's bytes are
// still there.
#pragma once

#include <cstdint>
#include <vector>

#include "common/emulator/core.h"
#include "common/emulator/shared_races.h"

namespace emulator {

constexpr size_t kChunkBytes = 16;  // what a swizzle moves

// Where a byte of a box lies, when unswizzled it would lie at `address`: bits 4 and up of the address are
// exchanged, depending on the bits from 7 on, which count units of 128 bytes.
inline uintptr_t swizzled(uintptr_t address, int swizzle_bytes) {
  const uintptr_t chunks_per_row = uintptr_t(swizzle_bytes) / kChunkBytes;
  return swizzle_bytes == 0 ? address : address ^ (address / 128 & (chunks_per_row - 1)) * kChunkBytes;
}

// Which chunk of which of a box's rows a swizzled load has put at an address.
struct TileChunk {
  int16_t row = 0;
  int16_t column = -1;  // -1: no such load was the last to write here
  int16_t swizzle_bytes = 0;
  uint64_t load = 0;  // of several loads each has its own
  Site site() const { return SharedRaces::site_of_write(load); }
};

class TileLayouts {
 public:
  void start_launch() {
    chunks_.resize(kMaxSmemBytes / kChunkBytes + static_shared_bytes() / kChunkBytes + 2);
    forget();
  }
  void forget() { std::fill(chunks_.begin(), chunks_.end(), TileChunk{}); }

  // `chunk.load` was the last write here.
  void remember(uintptr_t address, const TileChunk& chunk) { chunks_[index(address)] = chunk; }
  TileChunk at(uintptr_t address) const {
    const TileChunk& chunk = chunks_[index(address)];
    return chunk.column >= 0 && chunk.load == cta->races->last_write(address) ? chunk : TileChunk{};
  }

 private:
  // First those of dynamic shared memory, then those of static.
  static size_t index(uintptr_t address) {
    const uintptr_t offset = address - uintptr_t(cta->smem);
    if (offset < kMaxSmemBytes) return offset / kChunkBytes;
    return kMaxSmemBytes / kChunkBytes + (address / kChunkBytes - static_shared_begin() / kChunkBytes);
  }

  std::vector<TileChunk> chunks_;
};

}  // namespace emulator
