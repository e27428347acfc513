// What TMA is told about a tensor, once, on the host: where it lies, how large it is, and which box of it one
// copy moves. Plain C++, for both backends.
#pragma once

#include <cstdint>

namespace flashsteps {

// Dimension 0 is contiguous. Limits are those of cuTensorMapEncodeTiled (CUDA driver API, "Tensor map object
// management"): base and strides are multiples of 16 bytes, a box is at most 256 in each dimension, and its
// rows are swizzle_bytes long or less.
struct TensorMapShape {
  static constexpr int RANK = 5;
  const void* base;  // on the device
  int element_bytes;
  uint64_t size[RANK];    // in elements; what lies beyond reads as zero and is not written
  uint64_t stride[RANK];  // in bytes; stride[0] = element_bytes
  uint32_t box[RANK];     // in elements
  int swizzle_bytes;      // 128, 64, 32, or 0 for none

  bool operator==(const TensorMapShape&) const = default;
};

// Throws std::runtime_error with a sentence when TMA cannot address such a tensor. Both backends call it. In
// common/emulator/tensor_map.cpp, since the emulator is part of every program.
void check_tensor_map(const TensorMapShape& shape);

}  // namespace flashsteps
