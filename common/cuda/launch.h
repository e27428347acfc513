// The part of launch() that the host compiler builds: common/cuda/launch.cpp. Kernels include
// common/launch.h.
#pragma once

#include <cuda_runtime.h>

#include "common/interface.h"

namespace flashsteps {
inline namespace on_cuda {

// Opts the kernel in to smem_bytes of dynamic shared memory (more than 48 KiB must be asked for) and looks up
// its registers and occupancy. Done once per kernel, device and size, then cached. Throws std::runtime_error
// with a sentence when the device cannot launch this.
LaunchRecord prepare_launch(const void* kernel, dim3 grid, dim3 block, size_t smem_bytes);
// Throws std::runtime_error when a grid cannot be divided into such clusters.
void check_cluster(int cluster_size, dim3 grid);
int num_sms();            // of the current device
int smem_bytes_per_sm();  // of the current device
void check_launch();      // throws DeviceError when the launch just made, or a kernel before it, has failed

}  // namespace on_cuda
}  // namespace flashsteps
