// The CUDA runtime of programs that `flashsteps emulate` runs, and what becomes of the bugs in their kernels.
#include "common/emulator/cuda_program.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <string>

#include "common/emulator/copy_engine.h"
#include "common/emulator/core.h"
#include "common/emulator/findings.h"

namespace emulator {

// For device_heap.cpp, which is part of programs only.
size_t device_heap_bytes = 8 << 20;
std::atomic<bool> assertion_failed = false;

namespace {

thread_local cuda::cudaError_t last_error = cuda::cudaSuccess;
std::atomic<cuda::cudaError_t> error_of_kernel = cuda::cudaSuccess;  // that nobody has waited for yet

cuda::cudaError_t result(cuda::cudaError_t error) {
  if (error != cuda::cudaSuccess) last_error = error;
  return error;
}
cuda::cudaError_t valid_if(bool condition, cuda::cudaError_t error = cuda::cudaErrorInvalidValue) {
  return result(condition ? cuda::cudaSuccess : error);
}

// Every allocation has an inaccessible page on both sides, so these bytes are in one.
bool is_on_device(const void* memory, size_t bytes) {
  for (const GlobalRange& range : global_memory()) {
    const uintptr_t offset = uintptr_t(memory) - range.begin;
    if (offset < range.bytes && bytes <= range.bytes - offset) return true;
  }
  return false;
}

// Of the machine, without swap.
size_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:")) return size_t(std::stoull(line.substr(13))) << 10;
  }
  return size_t(sysconf(_SC_AVPHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void give_up(const std::string& why) {
  flush_output();
  std::fprintf(stderr, "flashsteps: %s\n", why.c_str());
  _exit(2);
}

// Of the launch under way: one at a time.
std::mutex& launch_mutex = *new std::mutex;
std::vector<Report>& reports = *new std::vector<Report>;

// The modes are those of `flashsteps check --backend emulator`.
void set_order(AsyncMode mode, uint64_t seed) {
  options() = {.async = mode,
               .shuffle = mode == AsyncMode::kRandom,
               .last_cta_first = mode == AsyncMode::kLate,
               .race_detector = true,
               .seed = seed,
               .reports = &reports};
}

void read_options() {
  const auto variable = [](const char* name, const char* otherwise) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : otherwise);
  };
  const std::string mode = variable("FLASHSTEPS_EMULATE_MODE", "early");
  if (mode != "early" && mode != "late" && mode != "random")
    give_up("FLASHSTEPS_EMULATE_MODE is '" + mode + "', but must be early, late or random");
  const std::string seed = variable("FLASHSTEPS_EMULATE_SEED", "1");
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), number);
  if (error != std::errc() || end != seed.data() + seed.size())
    give_up("FLASHSTEPS_EMULATE_SEED is '" + seed + "', but must be a number from 0 to 2^64 - 1");
  set_order(mode == "early"  ? AsyncMode::kEarly
            : mode == "late" ? AsyncMode::kLate
                             : AsyncMode::kRandom,
            number);
}

std::once_flag options_are_set;
void (*receive_finding)(Location launch, const Report& report) = print_finding;

}  // namespace

namespace program {

void stop(const char* why) {
  const InRuntime in_runtime;
  give_up(why);
}

void choose_order(AsyncMode mode, uint64_t seed) {
  std::call_once(options_are_set, [] {});
  set_order(mode, seed);
}

void receive_findings(void (*receiver)(Location launch, const Report& report)) { receive_finding = receiver; }

void run(Location at, cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, void (*body)(void*),
         void* arguments, size_t argument_bytes, const ProgramLaunch& how) {
  std::call_once(options_are_set, read_options);
  try {
    check_launch(grid, block, smem_bytes, /*cluster_size=*/1);
    const std::lock_guard lock(launch_mutex);
    reports.clear();
    emulator::run(grid, block, smem_bytes, body, arguments, argument_bytes, /*cluster_size=*/1,
                  /*overlaps=*/false, &how);
    const bool asserted = assertion_failed.exchange(false);
    for (const Report& report : reports) {
      receive_finding(at, report);
      if (report.goes_on) continue;
      error_of_kernel = result(asserted ? cuda::cudaErrorAssert : cuda::cudaErrorLaunchFailure);
    }
  } catch (const Report& report) {
    receive_finding(at, report);
    result(cuda::cudaErrorInvalidConfiguration);
  } catch (const std::exception& error) {
    give_up("the kernel launched at " + describe(at) + " could not be run: " + error.what());
  }
}

}  // namespace program

namespace cuda {

#define FLASHSTEPS_NAME(NAME, VALUE, TEXT) \
  if (error == NAME) return #NAME;
const char* cudaGetErrorName(cudaError_t error) {
  FLASHSTEPS_CUDA_ERRORS(FLASHSTEPS_NAME)
  return "unrecognized error code";
}
#define FLASHSTEPS_TEXT(NAME, VALUE, TEXT) \
  if (error == NAME) return TEXT;
const char* cudaGetErrorString(cudaError_t error) {
  FLASHSTEPS_CUDA_ERRORS(FLASHSTEPS_TEXT)
  return "unrecognized error code";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > available_memory()) return result(cudaErrorMemoryAllocation);
  try {
    *memory = allocate(bytes);
    return cudaSuccess;
  } catch (const std::bad_alloc&) {
    return result(cudaErrorMemoryAllocation);
  }
}
cudaError_t cudaFree(void* memory) {
  try {
    release(memory);
    return cudaSuccess;
  } catch (const std::runtime_error&) {
    return result(cudaErrorInvalidValue);
  }
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (memory == nullptr || bytes == 0) return result(cudaErrorInvalidValue);
  if (is_on_device(memory, 1)) return result(cudaErrorHostMemoryAlreadyRegistered);
  register_memory(memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  unregister_memory(memory);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  void* const p = const_cast<void*>(pointer);
  if (is_on_device(pointer, 1)) {
    *attributes = {cudaMemoryTypeManaged, 0, p, p};
  } else {
    *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, p};
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = available_memory();
  *total = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return result(cudaErrorInvalidMemcpyDirection);
  if (to_pitch < width || from_pitch < width) return result(cudaErrorInvalidPitchValue);
  // It waits for kernels; the bytes are copied all the same, so that the program can go on.
  const cudaError_t earlier = cudaDeviceSynchronize();
  if (width == 0 || height == 0) return earlier;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to == nullptr || from == nullptr || (to_device && !is_on_device(to, to_pitch * (height - 1) + width)) ||
      (from_device && !is_on_device(from, from_pitch * (height - 1) + width)))
    return result(cudaErrorInvalidValue);
  for (size_t row = 0; row < height; ++row)
    std::memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  return earlier;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (!is_on_device(memory, bytes)) return result(cudaErrorInvalidValue);
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset2D(void* memory, size_t pitch, int value, size_t width, size_t height) {
  if (width > pitch) return result(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = cudaMemset((char*)memory + row * pitch, value, width);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

struct CUstream_st {};
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return valid_if(stream != nullptr, cudaErrorInvalidResourceHandle);
}
cudaError_t cudaDeviceSynchronize() { return result(error_of_kernel.exchange(cudaSuccess)); }

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
  bool is_recorded = false;
};
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return valid_if(event != nullptr, cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (event != nullptr) *event = {std::chrono::steady_clock::now(), true};
  return valid_if(event != nullptr, cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (from == nullptr || to == nullptr || !from->is_recorded || !to->is_recorded)
    return result(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  if (limit == cudaLimitMallocHeapSize) device_heap_bytes = value;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return valid_if(device == 0, cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  return cudaSetDevice(device);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const cudaDeviceProp its;
#define FLASHSTEPS_VALUE(NAME, NUMBER, PROPERTY) \
  if (attribute == NAME) return *value = int(its.PROPERTY), cudaSetDevice(device);
  FLASHSTEPS_CUDA_ATTRIBUTES(FLASHSTEPS_VALUE)
  return result(cudaErrorInvalidValue);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* ctas, const void*, int block_size,
                                                          size_t smem_bytes) {
  const cudaDeviceProp its;
  *ctas = 0;
  if (block_size < 1 || smem_bytes > its.sharedMemPerMultiprocessor) return result(cudaErrorInvalidValue);
  if (block_size > its.maxThreadsPerBlock || smem_bytes > its.sharedMemPerBlockOptin) return cudaSuccess;
  const int threads = (block_size + its.warpSize - 1) / its.warpSize * its.warpSize;
  const size_t by_memory = its.sharedMemPerMultiprocessor / (smem_bytes + its.reservedSharedMemPerBlock);
  const int by_threads = std::min(its.maxThreadsPerMultiProcessor / threads, its.maxBlocksPerMultiProcessor);
  *ctas = int(std::min(by_memory, size_t(by_threads)));
  return cudaSuccess;
}

// ---- The driver

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
          : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
          : error == CUDA_ERROR_NOT_FOUND     ? "CUDA_ERROR_NOT_FOUND"
                                              : "CUDA_ERROR_NOT_SUPPORTED";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS               ? "no error"
          : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
          : error == CUDA_ERROR_NOT_FOUND     ? "named symbol not found"
                                              : "operation not supported";
  return CUDA_SUCCESS;
}

namespace {

// Kernels read it back as such: see map_at() in tma.cpp.
static_assert(sizeof(flashsteps::TensorMapShape) <= sizeof(CUtensorMap));

CUresult refuse_map(CUresult error, const std::string& why) {
  flush_output();
  std::fprintf(stderr, "flashsteps: cuTensorMapEncodeTiled: %s\n", why.c_str());
  return error;
}

int bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    default:
      return 4;
  }
}

}  // namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* memory,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill fill) {
  constexpr unsigned kMaxRank = flashsteps::TensorMapShape::RANK;
  if (rank < 1 || rank > kMaxRank)
    return refuse_map(CUDA_ERROR_INVALID_VALUE,
                      "a tensor has 1 to 5 dimensions, and not " + std::to_string(rank));
  bool steps = false;
  for (unsigned d = 0; d < rank; ++d) steps |= element_strides[d] != 1;
  if (steps || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return refuse_map(
        CUDA_ERROR_NOT_SUPPORTED,
        "the emulator has no steps between elements, no interleaved layouts and no NaN beyond the "
        "tensor");
  flashsteps::TensorMapShape shape{
      .base = memory,
      .element_bytes = bytes_of(type),
      .size = {1, 1, 1, 1, 1},
      .stride = {},
      .box = {1, 1, 1, 1, 1},
      .swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16 << swizzle};
  shape.stride[0] = uint64_t(shape.element_bytes);
  for (unsigned d = 0; d < rank; ++d) {
    shape.size[d] = sizes[d];
    shape.box[d] = box[d];
    if (d > 0) shape.stride[d] = strides[d - 1];
  }
  try {
    flashsteps::check_tensor_map(shape);
  } catch (const std::runtime_error& error) {
    return refuse_map(CUDA_ERROR_INVALID_VALUE, error.what());
  }
  const TypedTensorMap typed{shape, type};
  *map = {};
  std::memcpy(map, &typed, sizeof(typed));
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  const std::pair<const char*, void*> known[] = {
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(cuTensorMapEncodeTiled)},
      {"cuGetErrorName", reinterpret_cast<void*>(cuGetErrorName)},
      {"cuGetErrorString", reinterpret_cast<void*>(cuGetErrorString)},
      {"cuInit", reinterpret_cast<void*>(cuInit)}};
  *function = nullptr;
  for (const auto& [its_name, its_function] : known)
    if (std::strcmp(name, its_name) == 0) *function = its_function;
  if (result != nullptr)
    *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // namespace cuda
}  // namespace emulator

// The host code of a program is compiled as its kernels are, with a call in the place of every atomic
// operation: std::shared_ptr and std::mutex have some. Kernels have none: atomicAdd() is in atomics.cpp.
#define FLASHSTEPS_ATOMIC(BITS, T, NAME, OPERATION)                          \
  T __tsan_atomic##BITS##_##NAME(volatile void* at, T value, int) {          \
    return OPERATION(static_cast<volatile T*>(at), value, __ATOMIC_SEQ_CST); \
  }
#define FLASHSTEPS_COMPARE(BITS, T, NAME)                                                                    \
  bool __tsan_atomic##BITS##_compare_exchange_##NAME(volatile void* at, void* expected, T value, int, int) { \
    return __atomic_compare_exchange_n(static_cast<volatile T*>(at), static_cast<T*>(expected), value,       \
                                       false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                           \
  }
#define FLASHSTEPS_ATOMICS(BITS, T)                                               \
  T __tsan_atomic##BITS##_load(const volatile void* at, int) {                    \
    return __atomic_load_n(static_cast<const volatile T*>(at), __ATOMIC_SEQ_CST); \
  }                                                                               \
  void __tsan_atomic##BITS##_store(volatile void* at, T value, int) {             \
    __atomic_store_n(static_cast<volatile T*>(at), value, __ATOMIC_SEQ_CST);      \
  }                                                                               \
  FLASHSTEPS_ATOMIC(BITS, T, exchange, __atomic_exchange_n)                       \
  FLASHSTEPS_ATOMIC(BITS, T, fetch_add, __atomic_fetch_add)                       \
  FLASHSTEPS_ATOMIC(BITS, T, fetch_sub, __atomic_fetch_sub)                       \
  FLASHSTEPS_ATOMIC(BITS, T, fetch_and, __atomic_fetch_and)                       \
  FLASHSTEPS_ATOMIC(BITS, T, fetch_or, __atomic_fetch_or)                         \
  FLASHSTEPS_ATOMIC(BITS, T, fetch_xor, __atomic_fetch_xor)                       \
  FLASHSTEPS_COMPARE(BITS, T, strong)                                             \
  FLASHSTEPS_COMPARE(BITS, T, weak)

extern "C" {
FLASHSTEPS_ATOMICS(8, unsigned char)
FLASHSTEPS_ATOMICS(16, unsigned short)
FLASHSTEPS_ATOMICS(32, unsigned)
FLASHSTEPS_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
}
