// The tensors of a call, with their sizes.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "common/call.h"

namespace flashsteps {

struct CallTensor {
  const char* name;
  TensorView view;
  int batch, heads, rows;
  size_t row_bytes, element_bytes;

  int64_t num_rows() const { return int64_t(batch) * heads * rows; }
  size_t bytes() const { return num_rows() * row_bytes; }  // without gaps
  // Row number `index`, batch by batch and head by head.
  char* row(int64_t index) const {
    const int64_t element = index / rows / heads * view.batch_stride +
                            index / rows % heads * view.head_stride + index % rows * view.row_stride;
    return static_cast<char*>(view.data) + element * int64_t(element_bytes);
  }
  // From the lowest to the highest address, whatever the strides' signs.
  char* begin() const { return static_cast<char*>(view.data) + span(-1) * int64_t(element_bytes); }
  size_t extent() const { return (span(1) - span(-1)) * element_bytes + row_bytes; }

 private:
  int64_t span(int sign) const {
    int64_t sum = 0;
    for (const int64_t each :
         {(batch - 1) * view.batch_stride, (heads - 1) * view.head_stride, (rows - 1) * view.row_stride}) {
      if (each * sign > 0) sum += each;
    }
    return sum;
  }
};

inline std::array<CallTensor, 4> tensors_of(const AttentionCall& c) {
  const size_t bytes = element_bytes(c.dtype), row_bytes = c.head_dim * bytes;
  const size_t kv_bytes = element_bytes(c.kv_dtype()), kv_row_bytes = c.head_dim * kv_bytes;
  const size_t o_bytes = element_bytes(output_type(c.dtype));
  return {{{"Q", c.q, c.batch, c.num_heads_q, c.seqlen_q, row_bytes, bytes},
           {"K", c.k, c.kv_blocks(), c.num_heads_kv, c.kv_block_rows(), kv_row_bytes, kv_bytes},
           {"V", c.v, c.kv_blocks(), c.num_heads_kv, c.kv_block_rows(), kv_row_bytes, kv_bytes},
           {"O", c.o, c.batch, c.num_heads_q, c.seqlen_q, c.head_dim * o_bytes, o_bytes}}};
}

// What a backward pass has besides.
inline std::array<CallTensor, 4> gradients_of(const AttentionCall& c) {
  const size_t bytes = element_bytes(c.dtype), row_bytes = c.head_dim * bytes;
  return {{{"dO", c.d_o, c.batch, c.num_heads_q, c.seqlen_q, row_bytes, bytes},
           {"dQ", c.dq, c.batch, c.num_heads_q, c.seqlen_q, row_bytes, bytes},
           {"dK", c.dk, c.batch, c.num_heads_kv, c.seqlen_kv, row_bytes, bytes},
           {"dV", c.dv, c.batch, c.num_heads_kv, c.seqlen_kv, row_bytes, bytes}}};
}

// How many numbers lie between the first scale and the last one, both included.
inline int64_t descale_extent(const AttentionCall& c, const Descale& descale) {
  return (c.batch - 1) * descale.batch_stride + (c.num_heads_kv - 1) * descale.head_stride + 1;
}

// What of a call's memory a kernel may touch, the workspace aside.
struct CallMemory {
  const char* name;
  void* begin;
  size_t bytes;
};
inline std::vector<CallMemory> memory_of(const AttentionCall& c) {
  std::vector<CallMemory> memory;
  for (const CallTensor& tensor : tensors_of(c))
    memory.push_back({tensor.name, tensor.begin(), tensor.extent()});
  for (const CallTensor& tensor : gradients_of(c)) {
    if (c.backward) memory.push_back({tensor.name, tensor.begin(), tensor.extent()});
  }
  if (c.lse != nullptr)
    memory.push_back({"LSE", c.lse, sizeof(float) * c.batch * c.num_heads_q * c.seqlen_q});
  if (c.kv_lengths != nullptr)
    memory.push_back({"lengths", const_cast<int*>(c.kv_lengths), sizeof(int) * c.batch});
  for (const auto& [name, descale] :
       {std::pair("scales of Q", c.q_descale), std::pair("scales of K", c.k_descale),
        std::pair("scales of V", c.v_descale)}) {
    if (descale.data != nullptr)
      memory.push_back({name, const_cast<float*>(descale.data), sizeof(float) * descale_extent(c, descale)});
  }
  if (const PageTable& table = c.page_table; table.pages != nullptr)
    memory.push_back({"page table", const_cast<int*>(table.pages), sizeof(int) * c.batch * table.max_pages});
  if (c.earlier.o != nullptr) {  // from the first query's row to the last one's
    const size_t rows = (size_t(c.batch) * c.num_heads_q - 1) * c.earlier.rows + c.seqlen_q;
    memory.push_back({"earlier O", c.earlier.o, sizeof(float) * rows * c.head_dim});
    memory.push_back({"earlier LSE", c.earlier.lse, sizeof(float) * rows});
  }
  return memory;
}

}  // namespace flashsteps
