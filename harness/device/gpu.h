// What the library asks of the CUDA runtime. Plain C++: gpu.cpp answers, or no_gpu.cpp in a build without
// CUDA. Everything throws std::runtime_error with a sentence.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <string>

#include "common/call.h"

namespace flashsteps {

struct Gpu {
  int device;              // as CUDA numbers them
  int compute_capability;  // 90 is 9.0
  std::string name;
  int num_sms;
  double memory_bytes_per_us;  // peak; 0: the driver does not tell
  double l2_bytes;
};
const Gpu& current_gpu();  // the calling thread's current device

// Takes an error that an earlier CUDA call of this thread has left, and that nobody has fetched, off the
// record: it would be blamed on the next launch. Throws when the device itself is lost.
void drop_old_gpu_error();

// Makes `device` the calling thread's current one while it lives. No other device is touched: cudaSetDevice()
// would make a context on the one that it goes back to, where there is none yet.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  [[maybe_unused]] int pushed_ = -1;  // -1: it was the current one already
};

// Memory of the current device. What it throws when there is not enough names the size.
void* gpu_allocate(size_t bytes);
void gpu_release(void* memory);  // unchecked: a device that was lost has no memory left to give back

// Copies on a stream (nullptr: the default one), which are complete when they return; what was launched there
// before comes first.
void gpu_upload(void* to_gpu, const void* from_host, size_t bytes, void* stream = nullptr);
void gpu_download(void* to_host, const void* from_gpu, size_t bytes, void* stream = nullptr);

// Queues on the stream that the memory becomes zero.
void gpu_fill_zero(void* gpu, size_t bytes, void* stream = nullptr);

// AttentionCall::counters on the current device, which are zero. They are the stream's as long as the process
// lives, or, while it is captured, those of the graph and of this stream in it as long as the graph or what
// was made from it lives. nullptr: there are none, for more than 256 streams and graphs.
unsigned* gpu_counters(void* stream);

// Libraries that are used when they are there, opened at run time and never linked.
// nullptr when there is none. Libraries stay open until the process ends: NVIDIA's register exit handlers,
// which must not be unmapped.
inline void* open_library(const std::string& file) { return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); }

template <typename Function>
bool find_symbol(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

// NVIDIA's management library, which comes with the driver: clocks and the driver's version.
class Nvml {
 public:
  // The device as CUDA numbers it, found by its PCI address: NVML does not know CUDA_VISIBLE_DEVICES.
  explicit Nvml(int cuda_device);

  int sm_clock_mhz() const { return clock_mhz(clock_info_); }          // now; 0 when unknown
  int max_sm_clock_mhz() const { return clock_mhz(max_clock_info_); }  // 0 when unknown
  std::string driver_version() const;                                  // "" when unknown

 private:
  // nvml.h is in few toolkits, so its part that is used here is declared by hand. A return value of 0 is
  // success.
  using ClockInfo = int(void* device, int clock_type, unsigned* mhz);
  int clock_mhz(ClockInfo* info) const;
  ClockInfo *clock_info_ = nullptr, *max_clock_info_ = nullptr;
  int (*driver_version_)(char* version, unsigned length) = nullptr;
  void* device_ = nullptr;
};

int max_sm_clock_mhz(int device);

// What a card can do at most, the ceiling that "% of peak" is measured against, in TFLOPS at
// max_sm_clock_mhz: for fp16 and bf16, of dense tensor cores that accumulate in FP32; for fp32, of FMA
// outside them. compute_capability is 10 * major + minor. 0 when the table of device_peaks.cpp has no
// documented value: no guess from a relative's.
double peak_tflops(const std::string& device_name, int compute_capability, int sm_count, int max_sm_clock_mhz,
                   DType dtype);
double gpu_peak_tflops(int device, DType dtype);

}  // namespace flashsteps
