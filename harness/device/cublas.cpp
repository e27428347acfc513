#include "harness/device/ceilings.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/cuda/check.h"
#include "harness/base/element.h"
#include "harness/base/random.h"
#include "harness/device/gpu.h"
#endif

namespace flashsteps {

#if __has_include(<cublas_v2.h>)
namespace {

constexpr int kMatmulSize = 8192;

// Where cuBLAS may be: on the loader's path, or in the toolkit.
void* open_cublas() {
  std::vector<std::string> folders{"", "/usr/local/cuda/lib64/"};
  if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(std::string(home) + "/lib64/");
  for (const std::string& folder : folders) {
    for (const char* file : {"libcublas.so.13", "libcublas.so.12"}) {
      if (void* library = open_library(folder + file)) return library;
    }
  }
  return nullptr;
}

// cublasGemmEx; the header declares a second, older one under the same name.
using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                  const void* alpha, const void* a, cudaDataType, int lda, const void* b,
                                  cudaDataType, int ldb, const void* beta, void* c, cudaDataType, int ldc,
                                  cublasComputeType_t, cublasGemmAlgo_t);

// The same block of N(0, 1) again and again. Its length is odd, so that no two rows are alike.
void fill_normal(void* matrix, size_t elements, uint64_t seed) {
  std::vector<uint16_t> block((size_t(1) << 20) + 1);
  for (size_t i = 0; i < block.size(); ++i) {
    float a, b;
    random_normal_pair(seed, 0, i, a, b);
    block[i] = float_to_bfloat16(a);
  }
  for (size_t at = 0; at < elements; at += block.size())
    gpu_upload(static_cast<uint16_t*>(matrix) + at, block.data(),
               std::min(block.size(), elements - at) * sizeof(uint16_t));
}

}  // namespace

CeilingLaunch make_cublas_matmul(cudaStream_t stream) {
  constexpr int n = kMatmulSize;
  void* const library = open_cublas();
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  GemmEx gemm = nullptr;
  if (library == nullptr || !find_symbol(library, "cublasCreate_v2", create) ||
      !find_symbol(library, "cublasDestroy_v2", destroy) ||
      !find_symbol(library, "cublasSetStream_v2", set_stream) || !find_symbol(library, "cublasGemmEx", gemm))
    return {};
  std::shared_ptr<void> matrices[3];
  for (int i = 0; i < 3; ++i) {
    void* memory = nullptr;
    if (cudaMalloc(&memory, size_t(n) * n * sizeof(uint16_t)) != cudaSuccess) {
      cudaGetLastError();  // as in check_cuda()
      return {};
    }
    matrices[i].reset(memory, cudaFree);
    if (i < 2) fill_normal(memory, size_t(n) * n, i + 1);
  }
  cublasHandle_t created = nullptr;
  if (create(&created) != CUBLAS_STATUS_SUCCESS) return {};
  const std::shared_ptr<void> handle(created, [destroy](void* its) { destroy(cublasHandle_t(its)); });
  const auto launch = [=] {
    const float one = 1, zero = 0;
    return gemm(cublasHandle_t(handle.get()), CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, matrices[0].get(),
                CUDA_R_16BF, n, matrices[1].get(), CUDA_R_16BF, n, &zero, matrices[2].get(), CUDA_R_16BF, n,
                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
  };
  if (set_stream(created, stream) != CUBLAS_STATUS_SUCCESS || !launch())
    return {};  // is the device supported?
  return {"cuBLAS bf16 8192x8192x8192", "FLOP", 2.0 * n * n * n, [launch] {
            if (!launch()) throw DeviceError("cublasGemmEx failed");
          }};
}
#else
CeilingLaunch make_cublas_matmul(cudaStream_t) { return {}; }
#endif

}  // namespace flashsteps
