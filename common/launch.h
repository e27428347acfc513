// launch(kernel, grid, block, smem_bytes, stream, args...): kernel<<<...>>>(args...) as a function, because
// <<<>>> is not C++ on the emulator. launch_clusters(cluster_size, ...): the same in clusters.
// launch_overlapping(...): the same, but the kernel may begin before the previous one in the stream has
// ended. Also `smem`, the CTA's dynamic shared memory, declared once for all kernels. And two properties of
// the current GPU: num_sms(), for persistent kernels, and smem_bytes_per_sm(), by which a step may choose its
// tiles.
#pragma once

#include <utility>

#include "common/cuda.h"
#include "common/interface.h"

#ifdef __CUDACC__
#include "common/cuda/launch.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

using Stream = cudaStream_t;

// The CTA's dynamic shared memory: smem_bytes of launch(), uninitialised. 1024-byte alignment is what the
// widest swizzle pattern needs. A kernel lays its own struct over it: auto& shared =
// *reinterpret_cast<Shared*>(smem).
extern __shared__ __align__(1024) unsigned char smem[];

// Asynchronous. Every argument is converted to the kernel's own parameter type.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem_bytes, Stream stream,
            Args&&... args) {
  const LaunchRecord record = prepare_launch(reinterpret_cast<const void*>(kernel), grid, block, smem_bytes);
  if (launch_recorder() != nullptr) {
    launch_recorder()->push_back(record);
    return;
  }
  kernel<<<grid, block, smem_bytes, stream>>>(static_cast<Params>(args)...);
  check_launch();
}

template <typename... Params, typename... Args>
void launch_with(cudaLaunchAttribute attribute, void (*kernel)(Params...), dim3 grid, dim3 block,
                 size_t smem_bytes, Stream stream, Args&&... args) {
  const LaunchRecord record = prepare_launch(reinterpret_cast<const void*>(kernel), grid, block, smem_bytes);
  if (launch_recorder() != nullptr) {
    launch_recorder()->push_back(record);
    return;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  check_launch();
}

// In clusters (common/cluster.h) of 1, 2, 4 or 8 CTAs that are consecutive in x; grid.x is a multiple of
// that. CUDA Runtime API, "cudaLaunchAttributeClusterDimension". sm_90 and newer.
template <typename... Args>
void launch_clusters(int cluster_size, auto* kernel, dim3 grid, Args&&... args) {
  check_cluster(cluster_size, grid);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(cluster_size), 1, 1};
  launch_with(cluster, kernel, grid, std::forward<Args>(args)...);
}

// The kernel may begin before the previous one in the stream has ended (common/griddepcontrol.h). CUDA
// Runtime API, "cudaLaunchAttributeProgrammaticStreamSerialization". sm_90 and newer.
template <typename... Args>
void launch_overlapping(auto* kernel, Args&&... args) {
  cudaLaunchAttribute overlapping{};
  overlapping.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlapping.val.programmaticStreamSerializationAllowed = 1;
  launch_with(overlapping, kernel, std::forward<Args>(args)...);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps

#else
#include "common/emulator/launch.h"
#endif
