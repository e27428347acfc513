// Tensor maps are encoded by the driver, which is looked up at run time: the program links with the CUDA
// runtime only and starts on machines without a driver.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <stdexcept>
#include <string>

#include "common/tensor_map.h"
#include "harness/src/cuda_check.h"

namespace flashsteps {
inline namespace on_cuda {
namespace {

constexpr int kFirstCudaWithTma = 12000;

PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kFirstCudaWithTma,
                                              cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    throw std::runtime_error("needs a driver for CUDA 12.0 or newer: this one cannot encode tensor maps");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMapSwizzle swizzle_mode(int bytes) {
  switch (bytes) {
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

// Declared in common/tma.h.
CUtensorMap encode_tensor_map(const TensorMapShape& shape) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  constexpr int RANK = TensorMapShape::RANK;
  // A call that is only described has no memory yet; the rest of it is checked all the same.
  void* const base = shape.base != nullptr ? const_cast<void*>(shape.base) : reinterpret_cast<void*>(4096);
  cuuint64_t size[RANK], stride[RANK - 1];
  cuuint32_t box[RANK], every_element[RANK];
  for (int i = 0; i < RANK; ++i) {
    size[i] = shape.size[i];
    box[i] = shape.box[i];
    every_element[i] = 1;
    if (i > 0) stride[i - 1] = shape.stride[i];
  }
  // TMA only moves the elements: their width is all it must know.
  const CUtensorMapDataType type =
      shape.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  CUtensorMap map;
  const CUresult result = encode(&map, type, RANK, base, size, stride, box, every_element,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(shape.swizzle_bytes),
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string text = "TMA cannot address a tensor of these sizes and strides (in bytes):";
    for (int i = 0; i < RANK; ++i)
      text += " " + std::to_string(shape.size[i]) + " x " + std::to_string(shape.stride[i]);
    throw std::runtime_error(text);
  }
  return map;
}

}  // namespace on_cuda
}  // namespace flashsteps
