// NVIDIA's management library: clocks and the driver's version. Comes with the driver; opened at run time,
// never linked.
#pragma once

#include <string>

namespace flashsteps {

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

}  // namespace flashsteps
