// A tile of V for P V in FP8: transposed, and with its keys in the order in which a lane has P. Spelled out
// in v40_fp8.
#pragma once

#include "common/cuda.h"
#include "common/vector_copy.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// In shared memory. A row has KEYS keys of one column of V, four of them in a word. wgmma wants P of four
// keys in one register, and of 16 keys a lane has those of 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, with c = lane %
// 4: so these four are word c.
template <int HEAD_DIM, int KEYS>
struct TransposedTile {
  static constexpr int WORDS = KEYS / 4, CHUNKS = HEAD_DIM / 16;
  uint32_t rows[HEAD_DIM][WORDS];

  __device__ static int key_of(int word, int byte) {
    return word / 4 * 16 + word % 4 * 2 + byte % 2 + byte / 2 * 8;
  }
  // Rows that are 16 apart have their halves exchanged, so that the warps of fill() write to all banks.
  __device__ static int place_of(int row, int word) { return word ^ row / 16 % 2 * (WORDS / 2); }

  // load(key, column) returns 16 columns of a key. By all threads of the CTA; a barrier must follow.
  template <int THREADS, typename Load>
  __device__ void fill(Load load) {
    // Two neighbouring lanes have 32 columns of a key.
    for (int i = threadIdx.x; i < WORDS * CHUNKS; i += THREADS) {
      const int word = i / 2 % WORDS, chunk = i / (2 * WORDS) * 2 + i % 2;
      uint4 keys[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) keys[j] = load(key_of(word, j), chunk * 16);
#pragma unroll
      for (int col = 0; col < 16; col += 4) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = reinterpret_cast<const uint32_t*>(&keys[j])[col / 4];
        transpose_bytes(words);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = chunk * 16 + col + j;
          rows[row][place_of(row, word)] = words[j];
        }
      }
    }
  }
  // Four words of a row.
  __device__ uint4 load_words(int row, int word) const {
    return load_16_bytes(&rows[row][place_of(row, word)]);
  }

 private:
  // Four keys of four columns, a word of each key, become a word of each column.
  __device__ static void transpose_bytes(uint32_t (&words)[4]) {
    const uint32_t left_01 = __byte_perm(words[0], words[1], 0x5140);  // columns 0 and 1 of keys 0 and 1
    const uint32_t left_23 = __byte_perm(words[2], words[3], 0x5140);
    const uint32_t right_01 = __byte_perm(words[0], words[1], 0x7362);  // columns 2 and 3
    const uint32_t right_23 = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(left_01, left_23, 0x5410);
    words[1] = __byte_perm(left_01, left_23, 0x7632);
    words[2] = __byte_perm(right_01, right_23, 0x5410);
    words[3] = __byte_perm(right_01, right_23, 0x7632);
  }
};

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
