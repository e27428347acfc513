#include "harness/device/nvml.h"

#include <cuda_runtime_api.h>

#include "harness/device/shared_library.h"

namespace flashsteps {

constexpr int kNvmlClockSm = 1;  // NVML_CLOCK_SM

Nvml::Nvml(int cuda_device) {
  void* const library = open_library("libnvidia-ml.so.1");
  if (library == nullptr) return;
  int (*init)() = nullptr;
  int (*handle_by_pci_bus_id)(const char*, void**) = nullptr;
  if (!find_symbol(library, "nvmlInit_v2", init) || init() != 0) return;
  find_symbol(library, "nvmlSystemGetDriverVersion", driver_version_);
  char address[32];
  if (!find_symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", handle_by_pci_bus_id) ||
      cudaDeviceGetPCIBusId(address, sizeof(address), cuda_device) != cudaSuccess ||
      handle_by_pci_bus_id(address, &device_) != 0)
    return;
  find_symbol(library, "nvmlDeviceGetClockInfo", clock_info_);
  find_symbol(library, "nvmlDeviceGetMaxClockInfo", max_clock_info_);
}

int Nvml::clock_mhz(ClockInfo* info) const {
  unsigned mhz = 0;
  return info != nullptr && info(device_, kNvmlClockSm, &mhz) == 0 ? int(mhz) : 0;
}

std::string Nvml::driver_version() const {
  char version[80] = "";  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  return driver_version_ != nullptr && driver_version_(version, sizeof(version)) == 0 ? version : "";
}

}  // namespace flashsteps
