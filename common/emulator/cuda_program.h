// What an ordinary CUDA program finds in the place of nvcc and of the CUDA runtime, when `flashsteps emulate`
// compiles it with g++: included in front of everything else. Its kernels run when they are launched, and the
// launch returns when they are done: there is one device, and nothing is asynchronous to the host.
//
// All CUDA names are in emulator::cuda, as in cuda.h: the real runtime may be in the same program.
#pragma once

#define FLASHSTEPS_CUDA_PROGRAM  // before cuda.h, which then has no errors in the place of these functions

// What nvcc includes unasked.
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <tuple>
#include <utility>

// The emulator's headers, in front of __CUDACC__: they ask by it whether nvcc compiles.
#include "common/cuda.h"
#include "common/emulator/cuda_driver.h"
#include "common/emulator/ptx.h"
#include "common/wmma.h"

namespace emulator::program {

// Dynamic shared memory: the same variable as emulator::cuda::smem. That name would be ambiguous in a program
// that has an `smem` at namespace scope.
extern constinit thread_local unsigned char* const smem __asm__("_ZN8emulator4cuda4smemE")
    __attribute__((tls_model("initial-exec")));

}  // namespace emulator::program

namespace emulator::cuda {

// ---- Errors

#define FLASHSTEPS_CUDA_ERRORS(X)                                                       \
  X(cudaSuccess, 0, "no error")                                                         \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                       \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                      \
  X(cudaErrorInitializationError, 3, "initialization error")                            \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                 \
  X(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                           \
  X(cudaErrorInvalidSymbol, 13, "invalid device symbol")                                \
  X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                        \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")           \
  X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient")             \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                      \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                       \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                              \
  X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available on the device") \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                     \
  X(cudaErrorNotReady, 600, "device not ready")                                         \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")           \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")      \
  X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")             \
  X(cudaErrorAssert, 710, "device-side assert triggered")                               \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                              \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                          \
  X(cudaErrorNotSupported, 801, "operation not supported")                              \
  X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define FLASHSTEPS_ENUMERATOR(NAME, VALUE, TEXT) NAME = VALUE,
  FLASHSTEPS_CUDA_ERRORS(FLASHSTEPS_ENUMERATOR)
#undef FLASHSTEPS_ENUMERATOR
};
using cudaError_t = cudaError;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
// The last one of this host thread's calls and launches. A kernel with a bug is one, too.
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

// ---- Memory: device, managed and pinned memory are the same, which kernels and the host may touch

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
constexpr unsigned cudaMemAttachGlobal = 1, cudaMemAttachHost = 2;
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
                   cudaHostAllocWriteCombined = 4;
constexpr int cudaCpuDeviceId = -1;

// All of its bytes are 0xff: what nobody has written is NaN.
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaMalloc(auto** p, size_t bytes) { return cudaMalloc((void**)p, bytes); }
cudaError_t cudaMallocAsync(auto** p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }
cudaError_t cudaMallocManaged(auto** p, size_t bytes, unsigned = 1) { return cudaMalloc(p, bytes); }
cudaError_t cudaMallocHost(auto** p, size_t bytes, unsigned = 0) { return cudaMalloc(p, bytes); }
cudaError_t cudaHostAlloc(auto** p, size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
cudaError_t cudaMallocPitch(auto** p, size_t* pitch, size_t width, size_t height) {
  return cudaMalloc(p, (*pitch = (width + 511) / 512 * 512) * height);
}
cudaError_t cudaFree(void* memory);
inline cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaHostGetDevicePointer(auto** device, void* host, unsigned) {
  return *(void**)device = host, cudaSuccess;
}
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr) {
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

// Copies and fills. What `kind` says is on the device must be there.
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                         size_t height, cudaMemcpyKind kind);
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, cudaMemcpyKind kind,
                                     cudaStream_t = nullptr) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpy2D(to, bytes, from, bytes, bytes, 1, kind);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t = nullptr) {
  return cudaMemset(memory, value, bytes);
}

// Symbols: __device__ and __constant__ variables, which are variables of the program.
inline cudaError_t cudaMemcpyToSymbol(const auto& symbol, const void* from, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  const bool fits = offset <= sizeof(symbol) && bytes <= sizeof(symbol) - offset;
  return cudaMemcpy(fits ? (char*)&symbol + offset : nullptr, from, bytes, kind);
}
inline cudaError_t cudaMemcpyToSymbolAsync(const auto& symbol, const void* from, size_t bytes, size_t offset,
                                           cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
inline cudaError_t cudaMemcpyFromSymbol(void* to, const auto& symbol, size_t bytes, size_t offset = 0,
                                        cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  const bool fits = offset <= sizeof(symbol) && bytes <= sizeof(symbol) - offset;
  return cudaMemcpy(to, fits ? (const char*)&symbol + offset : nullptr, bytes, kind);
}
inline cudaError_t cudaMemcpyFromSymbolAsync(void* to, const auto& symbol, size_t bytes, size_t offset,
                                             cudaMemcpyKind kind, cudaStream_t = nullptr) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
inline cudaError_t cudaGetSymbolAddress(auto** p, const auto& symbol) {
  return *(void**)p = (void*)&symbol, cudaSuccess;
}
inline cudaError_t cudaGetSymbolSize(size_t* bytes, const auto& symbol) {
  return *bytes = sizeof(symbol), cudaSuccess;
}

// ---- Streams, which wait for nothing, as every call is done when it returns

constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreate(cudaStream_t* stream);
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream);
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
// Returns the error of a kernel that had a bug, once.
cudaError_t cudaDeviceSynchronize();
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }

// ---- Events. Their times are the host's and say nothing about a GPU: the emulator has no clock.

constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
cudaError_t cudaEventCreate(cudaEvent_t* event);
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

// ---- The device: one, with an H200's numbers

struct cudaDeviceProp {
  char name[256] = "FlashSteps emulator";
  int major = 9, minor = 0;
  int multiProcessorCount = 132, warpSize = 32;
  int maxThreadsPerBlock = 1024, maxThreadsPerMultiProcessor = 2048, maxBlocksPerMultiProcessor = 32;
  int maxThreadsDim[3] = {1024, 1024, 64};
  int maxGridSize[3] = {0x7fffffff, 65535, 65535};
  size_t totalGlobalMem = 150109880320, totalConstMem = 65536, memPitch = 0x7fffffff;
  size_t sharedMemPerBlock = 49152, sharedMemPerBlockOptin = 232448, sharedMemPerMultiprocessor = 233472,
         reservedSharedMemPerBlock = 1024;
  int regsPerBlock = 65536, regsPerMultiprocessor = 65536;
  int l2CacheSize = 62914560, persistingL2CacheMaxSize = 0;
  int clockRate = 1980000, memoryClockRate = 3201000, memoryBusWidth = 6016;  // kHz, bits
  int asyncEngineCount = 3, deviceOverlap = 1, concurrentKernels = 1, computeMode = 0, ECCEnabled = 1;
  int managedMemory = 1, concurrentManagedAccess = 1, unifiedAddressing = 1, canMapHostMemory = 1;
  int pageableMemoryAccess = 0, cooperativeLaunch = 0, integrated = 0, kernelExecTimeoutEnabled = 0;
  int pciBusID = 0, pciDeviceID = 0, pciDomainID = 0;
};
// The attribute, its number, and the property that has its value.
#define FLASHSTEPS_CUDA_ATTRIBUTES(X)                                            \
  X(cudaDevAttrMaxThreadsPerBlock, 1, maxThreadsPerBlock)                        \
  X(cudaDevAttrMaxBlockDimX, 2, maxThreadsDim[0])                                \
  X(cudaDevAttrMaxGridDimX, 5, maxGridSize[0])                                   \
  X(cudaDevAttrMaxSharedMemoryPerBlock, 8, sharedMemPerBlock)                    \
  X(cudaDevAttrTotalConstantMemory, 9, totalConstMem)                            \
  X(cudaDevAttrWarpSize, 10, warpSize)                                           \
  X(cudaDevAttrMaxRegistersPerBlock, 12, regsPerBlock)                           \
  X(cudaDevAttrClockRate, 13, clockRate)                                         \
  X(cudaDevAttrMultiProcessorCount, 16, multiProcessorCount)                     \
  X(cudaDevAttrMemoryClockRate, 36, memoryClockRate)                             \
  X(cudaDevAttrGlobalMemoryBusWidth, 37, memoryBusWidth)                         \
  X(cudaDevAttrL2CacheSize, 38, l2CacheSize)                                     \
  X(cudaDevAttrMaxThreadsPerMultiProcessor, 39, maxThreadsPerMultiProcessor)     \
  X(cudaDevAttrComputeCapabilityMajor, 75, major)                                \
  X(cudaDevAttrComputeCapabilityMinor, 76, minor)                                \
  X(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 81, sharedMemPerMultiprocessor) \
  X(cudaDevAttrMaxRegistersPerMultiprocessor, 82, regsPerMultiprocessor)         \
  X(cudaDevAttrManagedMemory, 83, managedMemory)                                 \
  X(cudaDevAttrConcurrentManagedAccess, 89, concurrentManagedAccess)             \
  X(cudaDevAttrCooperativeLaunch, 95, cooperativeLaunch)                         \
  X(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97, sharedMemPerBlockOptin)
enum cudaDeviceAttr {
#define FLASHSTEPS_ENUMERATOR(NAME, NUMBER, PROPERTY) NAME = NUMBER,
  FLASHSTEPS_CUDA_ATTRIBUTES(FLASHSTEPS_ENUMERATOR)
#undef FLASHSTEPS_ENUMERATOR
};
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaSetDevice(int device);
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 12080, cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 12080, cudaSuccess; }
inline cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }  // and frees nothing
inline cudaError_t cudaProfilerStart() { return cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Of the driver's functions there are those of cuda_driver.h.
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result = nullptr);
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                    unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* result = nullptr) {
  return cudaGetDriverEntryPoint(name, function, flags, result);
}

// ---- What a kernel may have. Nothing is remembered: a launch may always have all of the shared memory.

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
enum cudaFuncCache {
  cudaFuncCachePreferNone,
  cudaFuncCachePreferShared,
  cudaFuncCachePreferL1,
  cudaFuncCachePreferEqual,
};
inline cudaError_t cudaFuncSetAttribute(auto, cudaFuncAttribute, int) { return cudaSuccess; }
inline cudaError_t cudaFuncSetCacheConfig(auto, cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
// By its threads and shared memory: the emulator knows of no registers.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, const void* kernel, int block_size,
                                                          size_t smem_bytes);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, auto* kernel, int block_size,
                                                          size_t smem_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas, (const void*)kernel, block_size, smem_bytes);
}

}  // namespace emulator::cuda

namespace emulator::program {

// Runs body(arguments) once per thread. A bug in it goes to stderr and becomes the exit status, and the
// program goes on, so that a later launch can show another one.
void run(Location at, cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, void (*body)(void*),
         void* arguments, size_t argument_bytes);

// What translate() makes of `kernel<<<grid, block, smem_bytes, stream>>>(args...)`: call(args...) in every
// thread. Arguments are copied once, and then for each thread, as a kernel's parameters are.
template <typename Call, typename... Args>
void launch(Location at, cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, cuda::cudaStream_t, Call call,
            Args... args) {
  struct Launched {
    Call call;
    std::tuple<Args...> arguments;
  };
  Launched launched{std::move(call), std::tuple<Args...>(std::move(args)...)};
  const auto body = [](void* opaque) {
    Launched& its = *static_cast<Launched*>(opaque);
    std::apply(its.call, its.arguments);
  };
  run(at, grid, block, smem_bytes, body, &launched, sizeof(launched));
}

}  // namespace emulator::program

// ---- What programs ask the compiler for. Host and device code are one translation unit, and
// `#ifdef __CUDA_ARCH__` is true in both.

#undef __shared__
#define __shared__ __flashsteps_shared__  // for translate()
#define __managed__
#define __cluster_dims__(...) _Pragma("GCC error \"clusters are not supported by flashsteps emulate\"")

#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1  // sm_90a
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
