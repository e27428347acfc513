// What both backends refuse, before the driver sees it.
#include "common/tensor_map.h"

#include <stdexcept>

namespace flashsteps {

void check_tensor_map(const TensorMapShape& shape) {
  const auto demand = [](bool holds, const char* sentence) {
    if (!holds) throw std::runtime_error(sentence);
  };
  const int swizzle = shape.swizzle_bytes;
  const uint64_t box_row_bytes = uint64_t(shape.box[0]) * uint64_t(shape.element_bytes);
  demand(shape.element_bytes == 1 || shape.element_bytes == 2 || shape.element_bytes == 4 ||
             shape.element_bytes == 8,
         "TMA needs elements of 1, 2, 4 or 8 bytes");
  demand(uintptr_t(shape.base) % 16 == 0, "TMA needs a tensor that begins at a multiple of 16 bytes");
  demand(shape.stride[0] == uint64_t(shape.element_bytes), "TMA needs rows that are contiguous");
  for (int d = 0; d < TensorMapShape::RANK; ++d) {
    demand(shape.size[d] >= 1 && shape.size[d] <= uint64_t(1) << 32,
           "TMA needs sizes from 1 to 2^32 in every dimension");
    demand(shape.box[d] >= 1 && shape.box[d] <= 256,
           "TMA needs boxes of 1 to 256 elements in every dimension");
    if (d == 0) continue;
    demand(shape.stride[d] % 16 == 0, "TMA needs row strides that are multiples of 16 bytes");
    demand(int64_t(shape.stride[d]) >= 0, "TMA needs strides that are not negative");
    demand(shape.stride[d] < uint64_t(1) << 40, "TMA needs strides below 2^40 bytes");
  }
  demand(box_row_bytes % 16 == 0, "TMA needs boxes whose rows are a multiple of 16 bytes long");
  demand(swizzle == 0 || swizzle == 32 || swizzle == 64 || swizzle == 128,
         "TMA swizzles over 32, 64 or 128 bytes, or not at all");
  demand(swizzle == 0 || box_row_bytes <= uint64_t(swizzle),
         "TMA needs boxes whose rows are no longer than the swizzle is wide");
}

}  // namespace flashsteps
