// Tensor maps are encoded by the driver, which is looked up at run time: the program links with the CUDA
// runtime only and starts on machines without a driver.
#include "common/tensor_map.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "common/cuda/check.h"
#include "common/cuda/launch.h"

namespace flashsteps {
inline namespace on_cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  constexpr int kFirstCudaWithTma = 12000;
  CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(kName, &function, kFirstCudaWithTma, cudaEnableDefault, &found));
#else
  CUDA_CHECK(cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess)
    throw std::runtime_error("needs a driver for CUDA 12.0 or newer: this one cannot encode tensor maps");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// TMA only moves elements: all it must know is how wide they are.
CUtensorMapDataType type_of_width(int bytes) {
  switch (bytes) {
    case 1:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case 2:
      return CU_TENSOR_MAP_DATA_TYPE_UINT16;
    case 4:
      return CU_TENSOR_MAP_DATA_TYPE_UINT32;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT64;
  }
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

CUtensorMap encode(const TensorMapShape& shape) {
  check_tensor_map(shape);
  // A call that is only described has everything but memory.
  const bool described = launch_recorder() != nullptr;
  void* const base = described ? reinterpret_cast<void*>(4096) : const_cast<void*>(shape.base);
  if (base == nullptr) throw std::runtime_error("TMA needs a tensor, and not a null pointer");
  static const PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = find_encoder();
  constexpr int RANK = TensorMapShape::RANK;
  cuuint64_t size[RANK], stride[RANK - 1];
  cuuint32_t box[RANK], every_element[RANK];
  for (int i = 0; i < RANK; ++i) {
    size[i] = shape.size[i];
    box[i] = shape.box[i];
    every_element[i] = 1;
    if (i > 0) stride[i - 1] = shape.stride[i];
  }
  CUtensorMap map;
  // With a promotion of 256 bytes, an H200's memory delivers a tenth less: trials that only copied K and V of
  // 1 GB, which are not recorded. 128 bytes are a line of L2, and a row of a box with the widest swizzle.
  const CUresult result =
      encode_tiled(&map, type_of_width(shape.element_bytes), RANK, base, size, stride, box, every_element,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(shape.swizzle_bytes),
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  if (result == CUDA_ERROR_INVALID_VALUE) {
    std::string text = "TMA cannot address a tensor of these sizes and strides (in bytes):";
    for (int i = 0; i < RANK; ++i)
      text += " " + std::to_string(shape.size[i]) + " x " + std::to_string(shape.stride[i]);
    throw std::runtime_error(text);
  }
  // Not the tensor's fault: the driver also reports errors of earlier kernels.
  check_launch();
  throw DeviceError("cuTensorMapEncodeTiled failed: CUDA driver error " + std::to_string(result));
}

size_t hash(const TensorMapShape& shape) {
  uint64_t mixed = reinterpret_cast<uint64_t>(shape.base);
  const auto add = [&](uint64_t value) { mixed = (mixed ^ value) * 0x9e3779b97f4a7c15ull; };
  for (int i = 0; i < TensorMapShape::RANK; ++i) {
    add(shape.size[i]);
    add(shape.stride[i]);
  }
  return mixed >> 32;  // a multiply mixes best into the high bits
}

}  // namespace

// Declared in common/tma.h. A training loop or a server calls with the same few tensors again and again, so
// maps are cached. The key is all that goes into a map, above all the address. A map says nothing about the
// memory at the address, so it stays valid when that memory is freed and allocated again. Each thread has its
// own cache of fixed size: no locks, no growth.
CUtensorMap encode_tensor_map(const TensorMapShape& shape) {
  struct Entry {
    TensorMapShape shape{};  // no tensor's is all zeros
    CUtensorMap map;
  };
  if (launch_recorder() != nullptr) return encode(shape);  // a map of a made-up address, not to be cached
  constexpr size_t kEntries = 64;                          // a call has four
  // On the heap, because a library that is loaded late, as Python loads one, has little room for thread-local
  // variables.
  thread_local const auto cache = std::make_unique<std::array<Entry, kEntries>>();
  Entry& entry = (*cache)[hash(shape) % kEntries];
  if (entry.shape == shape) return entry.map;
  entry.map = encode(shape);
  entry.shape = shape;
  return entry.map;
}

}  // namespace on_cuda
}  // namespace flashsteps
