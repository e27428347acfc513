// CUDA that the emulator does not have: one sentence that says what to use, at the line that wants it. What
// no macro can catch (<<<>>>, an include) is wrap_kernel.cmake's. The table in docs/cuda_on_the_emulator.md
// has the same sentences; test_cuda_page.py holds them together. Part of cuda.h, and its last include: only
// the standard headers that a kernel includes itself come after these macros.
#pragma once

#define FLASHSTEPS_PRAGMA(text) _Pragma(#text)
// An int, so that no second error follows.
#define FLASHSTEPS_UNSUPPORTED(sentence) FLASHSTEPS_PRAGMA(GCC error sentence) emulator::unsupported()

namespace emulator {
inline int unsupported() { return 0; }
}  // namespace emulator

// The statement that follows is compiled for the host, which has had its error by then.
#define asm \
  FLASHSTEPS_PRAGMA(GCC error "put inline PTX into a header like common/exp2.h, beside a twin in C++") __asm__

#define __managed__ FLASHSTEPS_PRAGMA(GCC error "a step gets pointers to all of its tensors")
#define __cluster_dims__(...) FLASHSTEPS_PRAGMA(GCC error "use launch_clusters() of common/launch.h, and common/cluster.h")
#define __cvta_generic_to_shared(...) \
  FLASHSTEPS_UNSUPPORTED("hand the pointer itself to a function of common/, as ldmatrix_x4 takes it")

#define FLASHSTEPS_NO_MASK \
  FLASHSTEPS_UNSUPPORTED(  \
      "warp functions need a mask since CUDA 9, use __shfl_sync(mask, ...), __any_sync(mask, ...)")
#define __shfl(...) FLASHSTEPS_NO_MASK
#define __shfl_up(...) FLASHSTEPS_NO_MASK
#define __shfl_down(...) FLASHSTEPS_NO_MASK
#define __shfl_xor(...) FLASHSTEPS_NO_MASK
#define __any(...) FLASHSTEPS_NO_MASK
#define __all(...) FLASHSTEPS_NO_MASK
#define __ballot(...) FLASHSTEPS_NO_MASK

#define FLASHSTEPS_HOST_MEMORY \
  FLASHSTEPS_UNSUPPORTED("a step gets pointers to all of its tensors, it allocates and copies nothing")
#define cudaMalloc(...) FLASHSTEPS_HOST_MEMORY
#define cudaMallocAsync(...) FLASHSTEPS_HOST_MEMORY
#define cudaFree(...) FLASHSTEPS_HOST_MEMORY
#define cudaFreeAsync(...) FLASHSTEPS_HOST_MEMORY
#define cudaMemcpy(...) FLASHSTEPS_HOST_MEMORY
#define cudaMemcpyAsync(...) FLASHSTEPS_HOST_MEMORY
#define cudaMemset(...) FLASHSTEPS_HOST_MEMORY
#define cudaMemsetAsync(...) FLASHSTEPS_HOST_MEMORY

#define FLASHSTEPS_TO_SYMBOL \
  FLASHSTEPS_UNSUPPORTED("hand the kernel the values as an argument, or give the variable an initialiser")
#define cudaMemcpyToSymbol(...) FLASHSTEPS_TO_SYMBOL
#define cudaMemcpyToSymbolAsync(...) FLASHSTEPS_TO_SYMBOL

#define FLASHSTEPS_HOST_LAUNCH \
  FLASHSTEPS_UNSUPPORTED("launch() of common/launch.h asks for shared memory and checks for errors")
#define cudaGetLastError(...) FLASHSTEPS_HOST_LAUNCH
#define cudaPeekAtLastError(...) FLASHSTEPS_HOST_LAUNCH
#define cudaFuncSetAttribute(...) FLASHSTEPS_HOST_LAUNCH
#define cudaLaunchKernel(...) FLASHSTEPS_HOST_LAUNCH
#define cudaLaunchKernelEx(...) FLASHSTEPS_HOST_LAUNCH

#define FLASHSTEPS_HOST_WAIT FLASHSTEPS_UNSUPPORTED("the harness waits and measures, a step only launches")
#define cudaDeviceSynchronize(...) FLASHSTEPS_HOST_WAIT
#define cudaStreamSynchronize(...) FLASHSTEPS_HOST_WAIT
#define cudaEventCreate(...) FLASHSTEPS_HOST_WAIT
#define cudaEventRecord(...) FLASHSTEPS_HOST_WAIT
#define cudaEventSynchronize(...) FLASHSTEPS_HOST_WAIT

#define FLASHSTEPS_DEVICE FLASHSTEPS_UNSUPPORTED("the emulator has no device to ask")
#define cudaGetDeviceProperties(...) FLASHSTEPS_DEVICE
#define cudaDeviceGetAttribute(...) FLASHSTEPS_DEVICE
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(...) FLASHSTEPS_DEVICE
