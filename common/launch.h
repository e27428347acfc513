// launch(kernel, grid, block, smem_bytes, stream, args...): kernel<<<...>>>(args...) as a function, because
// <<<>>> is not C++ on the emulator. Also `smem`, the CTA's dynamic shared memory, declared once for all
// kernels. And what the current GPU has: num_sms(), for kernels whose CTAs stay, and smem_bytes_per_sm(), for
// a step that chooses its tiles by it.
#pragma once

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

// The same, but the kernel may start as soon as every CTA of the kernel before it in the stream has called
// let_next_kernel_start(); what that one does is there after wait_for_kernel_before().
template <typename... Params, typename... Args>
void launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem_bytes, Stream stream,
                  Args&&... args) {
  const LaunchRecord record = prepare_launch(reinterpret_cast<const void*>(kernel), grid, block, smem_bytes);
  if (launch_recorder() != nullptr) {
    launch_recorder()->push_back(record);
    return;
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  check_launch();
}
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}
__device__ __forceinline__ void wait_for_kernel_before() {
  asm volatile("griddepcontrol.wait;" : : : "memory");
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps

#else
#include "common/emulator/launch.h"
#endif
