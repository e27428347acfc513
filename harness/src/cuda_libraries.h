// NVIDIA's libraries that the program uses when they are there: opened at run time, never linked.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace flashsteps {

// The management library: clocks and the driver's version. Comes with the driver.
class Nvml {
 public:
  // The device as CUDA numbers it, found by its PCI address: NVML does not know CUDA_VISIBLE_DEVICES.
  explicit Nvml(int cuda_device);

  int sm_clock_mhz() const;            // now; 0 when unknown
  int max_sm_clock_mhz() const;        // 0 when unknown
  std::string driver_version() const;  // "" when unknown

 private:
  // nvml.h is in few toolkits, so its part that is used here is declared by hand. A return value of 0 is
  // success.
  int (*clock_info_)(void* device, int clock_type, unsigned* mhz) = nullptr;
  int (*max_clock_info_)(void* device, int clock_type, unsigned* mhz) = nullptr;
  int (*driver_version_)(char* version, unsigned length) = nullptr;
  void* device_ = nullptr;
};

// A launch of C = A B in bf16 with FP32 accumulation, all n x n, by cuBLAS; owns the matrices, filled with
// N(0, 1): on zeros a GPU draws less power and clocks higher than any real product would. Empty when there is
// no cuBLAS, or not enough memory for it.
std::function<void()> make_cublas_matmul(int n, cudaStream_t stream);

}  // namespace flashsteps
