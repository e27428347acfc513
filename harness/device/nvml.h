// NVIDIA's management library: clocks and the driver's version. Comes with the driver; opened at run time,
// never linked.
#pragma once

#include <string>

namespace flashsteps {

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

}  // namespace flashsteps
