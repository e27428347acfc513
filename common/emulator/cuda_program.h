// What an ordinary CUDA program finds in the place of nvcc and of the CUDA runtime, when `flashsteps emulate`
// compiles it with g++: included in front of everything else. Its kernels run when they are launched, and the
// launch returns when they are done: there is one device, and nothing is asynchronous to the host.
//
// All CUDA names are in emulator::cuda, as in cuda.h: the real runtime may be in the same program.
#pragma once

#define FLASHSTEPS_CUDA_PROGRAM  // before cuda.h, which then has no errors in the place of these functions

// C++20's std::lerp, which <math.h> makes ::lerp: many programs, of earlier standards, define that.
#define lerp flashsteps_lerp
#include <math.h>
#undef lerp

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
#include "common/emulator/shared_variables.h"
#include "common/wmma.h"

// Some headers ask by these whether the CUDA runtime's are there. Should a library's header include the
// runtime's own, they are empty.
#define __BUILTIN_TYPES_H__
#define __CUDA_RUNTIME_API_H__
#define __CUDA_RUNTIME_H__
#define __DEVICE_TYPES_H__
#define __DRIVER_TYPES_H__
#define __VECTOR_FUNCTIONS_H__
#define __VECTOR_TYPES_H__

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
  X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")           \
  X(cudaErrorHostMemoryAlreadyRegistered, 712, "the memory is already registered")      \
  X(cudaErrorAssert, 710, "device-side assert triggered")                               \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                              \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                          \
  X(cudaErrorCooperativeLaunchTooLarge, 720, "too many blocks in cooperative launch")   \
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
constexpr unsigned cudaMemAttachGlobal = 1, cudaMemAttachHost = 2, cudaMemAttachSingle = 4;
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
// Memory of the host's that kernels may touch from now on.
constexpr unsigned cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2,
                   cudaHostRegisterReadOnly = 8;
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
inline cudaError_t cudaHostGetDevicePointer(auto** device, void* host, unsigned) {
  return *(void**)device = host, cudaSuccess;
}
enum cudaMemoryType {
  cudaMemoryTypeUnregistered,
  cudaMemoryTypeHost,
  cudaMemoryTypeDevice,
  cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
};
// All that kernels may touch counts as managed.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseUnsetReadMostly,
  cudaMemAdviseSetPreferredLocation,
  cudaMemAdviseUnsetPreferredLocation,
  cudaMemAdviseSetAccessedBy,
  cudaMemAdviseUnsetAccessedBy,
};
inline cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr) {
  return cudaSuccess;
}
// CUDA 13's.
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1, cudaMemLocationTypeHost };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned,
                                        cudaStream_t = nullptr) {
  return cudaSuccess;
}
inline cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t = 0, unsigned = 4) {
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
cudaError_t cudaMemset2D(void* memory, size_t pitch, int value, size_t width, size_t height);

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
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
#define CUDART_CB
using cudaHostFn_t = void (*)(void*);
using cudaStreamCallback_t = void (*)(cudaStream_t, cudaError_t, void*);
inline cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  return function(data), cudaSuccess;
}
inline cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data,
                                         unsigned) {
  return function(stream, cudaPeekAtLastError(), data), cudaSuccess;
}
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

struct cudaUUID_t {
  char bytes[16];
};
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
  int pageableMemoryAccess = 0, cooperativeLaunch = 1, integrated = 0, kernelExecTimeoutEnabled = 0;
  int cooperativeMultiDeviceLaunch = 0, isMultiGpuBoard = 0, tccDriver = 0, computePreemptionSupported = 1;
  int globalL1CacheSupported = 1, localL1CacheSupported = 1, streamPrioritiesSupported = 1;
  int maxTexture1D = 131072, maxTexture2D[2] = {131072, 65536}, maxTexture3D[3] = {16384, 16384, 16384};
  int maxTexture1DLayered[2] = {32768, 2048}, maxTexture2DLayered[3] = {32768, 32768, 2048};
  size_t textureAlignment = 512, texturePitchAlignment = 32, surfaceAlignment = 512;
  int pciBusID = 0, pciDeviceID = 0, pciDomainID = 0;
  cudaUUID_t uuid = {};
};
// The attribute, its number, and the property that has its value.
#define FLASHSTEPS_CUDA_ATTRIBUTES(X)                                            \
  X(cudaDevAttrMaxThreadsPerBlock, 1, maxThreadsPerBlock)                        \
  X(cudaDevAttrMaxBlockDimX, 2, maxThreadsDim[0])                                \
  X(cudaDevAttrMaxBlockDimY, 3, maxThreadsDim[1])                                \
  X(cudaDevAttrMaxBlockDimZ, 4, maxThreadsDim[2])                                \
  X(cudaDevAttrMaxGridDimX, 5, maxGridSize[0])                                   \
  X(cudaDevAttrMaxGridDimY, 6, maxGridSize[1])                                   \
  X(cudaDevAttrMaxGridDimZ, 7, maxGridSize[2])                                   \
  X(cudaDevAttrMaxSharedMemoryPerBlock, 8, sharedMemPerBlock)                    \
  X(cudaDevAttrTotalConstantMemory, 9, totalConstMem)                            \
  X(cudaDevAttrWarpSize, 10, warpSize)                                           \
  X(cudaDevAttrMaxRegistersPerBlock, 12, regsPerBlock)                           \
  X(cudaDevAttrClockRate, 13, clockRate)                                         \
  X(cudaDevAttrGpuOverlap, 15, deviceOverlap)                                    \
  X(cudaDevAttrMultiProcessorCount, 16, multiProcessorCount)                     \
  X(cudaDevAttrIntegrated, 18, integrated)                                       \
  X(cudaDevAttrCanMapHostMemory, 19, canMapHostMemory)                           \
  X(cudaDevAttrComputeMode, 20, computeMode)                                     \
  X(cudaDevAttrConcurrentKernels, 31, concurrentKernels)                         \
  X(cudaDevAttrMemoryClockRate, 36, memoryClockRate)                             \
  X(cudaDevAttrGlobalMemoryBusWidth, 37, memoryBusWidth)                         \
  X(cudaDevAttrL2CacheSize, 38, l2CacheSize)                                     \
  X(cudaDevAttrMaxThreadsPerMultiProcessor, 39, maxThreadsPerMultiProcessor)     \
  X(cudaDevAttrAsyncEngineCount, 40, asyncEngineCount)                           \
  X(cudaDevAttrUnifiedAddressing, 41, unifiedAddressing)                         \
  X(cudaDevAttrComputeCapabilityMajor, 75, major)                                \
  X(cudaDevAttrComputeCapabilityMinor, 76, minor)                                \
  X(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 81, sharedMemPerMultiprocessor) \
  X(cudaDevAttrMaxRegistersPerMultiprocessor, 82, regsPerMultiprocessor)         \
  X(cudaDevAttrManagedMemory, 83, managedMemory)                                 \
  X(cudaDevAttrPageableMemoryAccess, 88, pageableMemoryAccess)                   \
  X(cudaDevAttrConcurrentManagedAccess, 89, concurrentManagedAccess)             \
  X(cudaDevAttrCooperativeLaunch, 95, cooperativeLaunch)                         \
  X(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97, sharedMemPerBlockOptin)         \
  X(cudaDevAttrMaxBlocksPerMultiprocessor, 106, maxBlocksPerMultiProcessor)      \
  X(cudaDevAttrReservedSharedMemoryPerBlock, 111, reservedSharedMemPerBlock)
enum cudaDeviceAttr {
#define FLASHSTEPS_ENUMERATOR(NAME, NUMBER, PROPERTY) NAME = NUMBER,
  FLASHSTEPS_CUDA_ATTRIBUTES(FLASHSTEPS_ENUMERATOR)
#undef FLASHSTEPS_ENUMERATOR
};
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
enum cudaComputeMode {
  cudaComputeModeDefault,
  cudaComputeModeExclusive,
  cudaComputeModeProhibited,
  cudaComputeModeExclusiveProcess,
};
constexpr unsigned cudaDeviceScheduleAuto = 0, cudaDeviceScheduleSpin = 1, cudaDeviceScheduleYield = 2,
                   cudaDeviceScheduleBlockingSync = 4, cudaDeviceBlockingSync = 4, cudaDeviceMapHost = 8;
inline cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize };
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value);  // of the heap; others have no effect
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
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
  cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
};
enum cudaFuncCache {
  cudaFuncCachePreferNone,
  cudaFuncCachePreferShared,
  cudaFuncCachePreferL1,
  cudaFuncCachePreferEqual,
};
enum cudaSharedCarveout {
  cudaSharedmemCarveoutDefault = -1,
  cudaSharedmemCarveoutMaxL1 = 0,
  cudaSharedmemCarveoutMaxShared = 100,
};
inline cudaError_t cudaFuncSetAttribute(auto, cudaFuncAttribute, int) { return cudaSuccess; }
struct cudaFuncAttributes {
  size_t sharedSizeBytes = 0, constSizeBytes = 0, localSizeBytes = 0;
  int maxThreadsPerBlock = 1024, numRegs = 32, ptxVersion = 90, binaryVersion = 90, cacheModeCA = 0;
  int maxDynamicSharedSizeBytes = 49152, preferredShmemCarveout = -1;
};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, auto) {
  return *attributes = {}, cudaSuccess;
}
inline cudaError_t cudaFuncSetCacheConfig(auto, cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
// By its threads and shared memory: the emulator knows of no registers.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, const void* kernel, int block_size,
                                                          size_t smem_bytes);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, auto* kernel, int block_size,
                                                          size_t smem_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas, (const void*)kernel, block_size, smem_bytes);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* ctas, auto* kernel, int block_size,
                                                                   size_t smem_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas, (const void*)kernel, block_size, smem_bytes);
}
// The block with the most threads on an SM; the largest of several such.
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int* min_grid_size, int* block_size, auto* kernel,
                                                           auto smem_bytes_of_block, int limit = 0) {
  const cudaDeviceProp its;
  int most_threads = 0;
  *min_grid_size = *block_size = 0;
  const int largest = limit > 0 && limit < its.maxThreadsPerBlock ? limit : its.maxThreadsPerBlock;
  for (int size = largest; size > 0; size = (size - 1) / its.warpSize * its.warpSize) {
    int ctas = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, size, smem_bytes_of_block(size));
    if (ctas * size <= most_threads) continue;
    most_threads = ctas * size;
    *min_grid_size = ctas * its.multiProcessorCount;
    *block_size = size;
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* min_grid_size, int* block_size, auto* kernel,
                                               size_t smem_bytes = 0, int limit = 0) {
  return cudaOccupancyMaxPotentialBlockSizeVariableSMem(
      min_grid_size, block_size, kernel, [=](int) { return smem_bytes; }, limit);
}

}  // namespace emulator::cuda

namespace emulator::program {

// Ends the program with this sentence, where it comes to what the emulator has not.
[[noreturn]] void stop(const char* why);

// Runs body(arguments) once per thread. A bug in it goes to stderr and becomes the exit status, and the
// program goes on, so that a later launch can show another one.
void run(Location at, cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, void (*body)(void*),
         void* arguments, size_t argument_bytes, const ProgramLaunch& how);

// What translate() makes of `kernel<<<grid, block, smem_bytes, stream>>>(args...)`: call(args...) in every
// thread. Arguments are copied once, and then for each thread, as a kernel's parameters are.
template <typename Call, typename... Args>
void launch_as(const ProgramLaunch& how, Location at, cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes,
               Call call, Args... args) {
  struct Launched {
    Call call;
    std::tuple<Args...> arguments;
  };
  Launched launched{std::move(call), std::tuple<Args...>(std::move(args)...)};
  const auto body = [](void* opaque) {
    Launched& its = *static_cast<Launched*>(opaque);
    // Not std::apply(), which would add a screenful to what g++ says about a template kernel.
    [&]<size_t... I>(std::index_sequence<I...>) { its.call(std::get<I>(its.arguments)...); }
    (std::index_sequence_for<Args...>());
  };
  run(at, grid, block, smem_bytes, body, &launched, sizeof(launched), how);
}
template <typename Call, typename... Args>
void launch(Location at, cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, cuda::cudaStream_t, Call call,
            Args... args) {
  launch_as({}, at, grid, block, smem_bytes, std::move(call), std::move(args)...);
}

// arguments[i] points to a value of the type of the kernel's parameter i.
template <typename... Args>
cuda::cudaError_t launch_with_pointers(const ProgramLaunch& how, void (*kernel)(Args...), cuda::dim3 grid,
                                       cuda::dim3 block, void** arguments, size_t smem_bytes, Location at) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    launch_as(how, at, grid, block, smem_bytes, kernel, *static_cast<Args*>(arguments[I])...);
  }
  (std::index_sequence_for<Args...>());
  return cuda::cudaPeekAtLastError();
}
}  // namespace emulator::program

namespace emulator::cuda {

template <typename... Args>
cudaError_t cudaLaunchKernel(void (*kernel)(Args...), dim3 grid, dim3 block, void** arguments,
                             size_t smem_bytes = 0, cudaStream_t = nullptr,
                             Location at = Location::current()) {
  return program::launch_with_pointers({}, kernel, grid, block, arguments, smem_bytes, at);
}
// The CTAs may wait for each other by this_grid().sync(): all are under way together.
template <typename... Args>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Args...), dim3 grid, dim3 block, void** arguments,
                                        size_t smem_bytes = 0, cudaStream_t = nullptr,
                                        Location at = Location::current()) {
  return program::launch_with_pointers({.cooperative = true}, kernel, grid, block, arguments, smem_bytes, at);
}
[[gnu::error("give cudaLaunchKernel the kernel itself, without a cast to void*")]] cudaError_t
cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t smem_bytes = 0,
                 cudaStream_t stream = nullptr);
[[gnu::error("give cudaLaunchCooperativeKernel the kernel itself, without a cast to void*")]] cudaError_t
cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                            size_t smem_bytes = 0, cudaStream_t stream = nullptr);

// Of the attributes, clusters and cooperative launches count. A kernel that may overlap the one before it
// starts when that has ended.
enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
  cudaLaunchAttributePreferredClusterDimension = 11,
};
union cudaLaunchAttributeValue {
  struct {
    unsigned x, y, z;
  } clusterDim, preferredClusterDim;
  int cooperative, programmaticStreamSerializationAllowed, priority, clusterSchedulingPolicyPreference;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
// With the line that has the call.
struct LaunchConfigAt : cudaLaunchConfig_t {
  LaunchConfigAt(const cudaLaunchConfig_t* config, Location its = Location::current()) : at(its) {
    static_cast<cudaLaunchConfig_t&>(*this) = *config;
  }
  ProgramLaunch how() const {
    ProgramLaunch how;
    for (unsigned i = 0; i < numAttrs; ++i) {
      const cudaLaunchAttributeValue& value = attrs[i].val;
      if (attrs[i].id == cudaLaunchAttributeCooperative) how.cooperative = value.cooperative != 0;
      if (attrs[i].id == cudaLaunchAttributeClusterDimension)
        how.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
    }
    return how;
  }
  Location at;
};
template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(LaunchConfigAt config, void (*kernel)(Params...), Args&&... args) {
  program::launch_as(config.how(), config.at, config.gridDim, config.blockDim, config.dynamicSmemBytes,
                     kernel, static_cast<Params>(std::forward<Args>(args))...);
  return cudaPeekAtLastError();
}
template <typename... Args>
cudaError_t cudaLaunchKernelExC(LaunchConfigAt config, void (*kernel)(Args...), void** arguments) {
  return program::launch_with_pointers(config.how(), kernel, config.gridDim, config.blockDim, arguments,
                                       config.dynamicSmemBytes, config.at);
}

}  // namespace emulator::cuda

// ---- What programs ask the compiler for. Host and device code are one translation unit, and
// `#ifdef __CUDA_ARCH__` is true in both.

#undef __shared__
#define __shared__ __flashsteps_shared__  // for translate()
#define __managed__
#define __cluster_dims__ __flashsteps_cluster_dims__  // for translate()

// Every atomic operation has the widest scope.
#define atomicAdd_block atomicAdd
#define atomicSub_block atomicSub
#define atomicExch_block atomicExch
#define atomicMin_block atomicMin
#define atomicMax_block atomicMax
#define atomicInc_block atomicInc
#define atomicDec_block atomicDec
#define atomicAnd_block atomicAnd
#define atomicOr_block atomicOr
#define atomicXor_block atomicXor
#define atomicCAS_block atomicCAS
#define atomicAdd_system atomicAdd
#define atomicSub_system atomicSub
#define atomicExch_system atomicExch
#define atomicMin_system atomicMin
#define atomicMax_system atomicMax
#define atomicInc_system atomicInc
#define atomicDec_system atomicDec
#define atomicAnd_system atomicAnd
#define atomicOr_system atomicOr
#define atomicXor_system atomicXor
#define atomicCAS_system atomicCAS

#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1  // sm_90a
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
