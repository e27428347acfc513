#include "harness/device/ceilings.h"

#ifdef FLASHSTEPS_HAVE_CUBLAS_H
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
#include "harness/device/shared_library.h"
#endif

namespace flashsteps {

#ifdef FLASHSTEPS_HAVE_CUBLAS_H
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

class CublasMatmul {
 public:
  ~CublasMatmul() {
    if (handle_ != nullptr) destroy_(handle_);
    for (void* matrix : matrices_) cudaFree(matrix);
  }

  bool set_up(int n, cudaStream_t stream) {
    n_ = n;
    void* const library = open_cublas();
    return library != nullptr && find_symbol(library, "cublasCreate_v2", create_) &&
           find_symbol(library, "cublasDestroy_v2", destroy_) &&
           find_symbol(library, "cublasSetStream_v2", set_stream_) &&
           find_symbol(library, "cublasGemmEx", gemm_) && allocate() &&
           create_(&handle_) == CUBLAS_STATUS_SUCCESS &&
           set_stream_(handle_, stream) == CUBLAS_STATUS_SUCCESS &&
           launch();  // once: is the device supported?
  }

  bool launch() const {
    const float one = 1, zero = 0;
    return gemm_(handle_, CUBLAS_OP_N, CUBLAS_OP_N, n_, n_, n_, &one, matrices_[0], CUDA_R_16BF, n_,
                 matrices_[1], CUDA_R_16BF, n_, &zero, matrices_[2], CUDA_R_16BF, n_, CUBLAS_COMPUTE_32F,
                 CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  bool allocate() {
    const size_t elements = size_t(n_) * n_;
    for (void*& matrix : matrices_) {
      if (cudaMalloc(&matrix, elements * sizeof(uint16_t)) != cudaSuccess) {
        cudaGetLastError();  // as in check_cuda()
        return false;
      }
    }
    fill_normal(matrices_[0], elements, 1);
    fill_normal(matrices_[1], elements, 2);
    return true;
  }

  // The same block again and again. Its length is odd, so that no two rows are alike.
  static void fill_normal(void* matrix, size_t elements, uint64_t seed) {
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

  int n_ = 0;
  void* matrices_[3] = {};
  cublasHandle_t handle_ = nullptr;
  decltype(&cublasCreate_v2) create_ = nullptr;
  decltype(&cublasDestroy_v2) destroy_ = nullptr;
  decltype(&cublasSetStream_v2) set_stream_ = nullptr;
  GemmEx gemm_ = nullptr;
};

}  // namespace

CeilingLaunch make_cublas_matmul(cudaStream_t stream) {
  const auto matmul = std::make_shared<CublasMatmul>();
  if (!matmul->set_up(kMatmulSize, stream)) return {};
  return {"cuBLAS bf16 8192x8192x8192", "FLOP", 2.0 * kMatmulSize * kMatmulSize * kMatmulSize, [matmul] {
            if (!matmul->launch()) throw DeviceError("cublasGemmEx failed");
          }};
}
#else
CeilingLaunch make_cublas_matmul(cudaStream_t) { return {}; }
#endif

}  // namespace flashsteps
