#include "harness/device/gpu.h"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "common/cuda/check.h"
#include "harness/base/text.h"
#include "harness/include/flashsteps.h"

namespace flashsteps {
namespace {

constexpr int kOldestComputeCapability = 80;

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

Gpu describe_gpu(int device) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  int memory_khz = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device));
  const double transfers_per_us = 2.0 * memory_khz / 1000;  // two in each clock cycle
  return {device,
          10 * properties.major + properties.minor,
          properties.name,
          properties.multiProcessorCount,
          transfers_per_us * properties.memoryBusWidth / 8,
          double(properties.l2CacheSize)};
}

// The driver's functions of contexts. Never linked: this starts on machines without a driver.
struct Driver {
  CUresult (*find)(CUdevice*, int);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*release)(CUdevice);
  CUresult (*push)(CUcontext);
  CUresult (*pop)(CUcontext*);
};

const Driver& driver() {
  static const Driver found = [] {
    void* const library = open_library("libcuda.so.1");
    Driver all{};
    if (library == nullptr || !find_symbol(library, "cuDeviceGet", all.find) ||
        !find_symbol(library, "cuDevicePrimaryCtxRetain", all.retain) ||
        !find_symbol(library, "cuDevicePrimaryCtxRelease_v2", all.release) ||
        !find_symbol(library, "cuCtxPushCurrent_v2", all.push) ||
        !find_symbol(library, "cuCtxPopCurrent_v2", all.pop))
      throw std::runtime_error("no NVIDIA driver");
    return all;
  }();
  return found;
}

void check_driver(CUresult error) {
  if (error != CUDA_SUCCESS)
    throw std::runtime_error("the NVIDIA driver reports error " + std::to_string(int(error)) +
                             " when it is asked for a device's context");
}

// While it lives, this thread's cudaMalloc() does not end captures of streams that it has nothing to do with.
class BesideCaptures {
 public:
  BesideCaptures() { CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// What is being captured from a stream, if anything.
struct Capture {
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;

  explicit Capture(cudaStream_t stream) {
#if CUDART_VERSION >= 13000
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, nullptr, nullptr, nullptr));
#else
    CUDA_CHECK(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr));
#endif
  }
};

// Also while streams are captured.
void* allocate_zeros(size_t bytes) {
  const BesideCaptures relaxed;
  void* const memory = gpu_allocate(bytes);
  cudaStream_t stream;  // not the default one, which may not wait for captures
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  gpu_fill_zero(memory, bytes, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
  return memory;
}

constexpr int kNvmlClockSm = 1;  // NVML_CLOCK_SM

}  // namespace

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

std::string missing_gpu() {
  int driver = 0, runtime = 0, devices = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no NVIDIA driver";
  cudaRuntimeGetVersion(&runtime);
  const cudaError_t error = cudaGetDeviceCount(&devices);
  cudaGetLastError();  // as in check_cuda()
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver is too old: it supports CUDA " + cuda_version_text(driver) +
           ", this program needs " + cuda_version_text(runtime);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && devices == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible ? "no NVIDIA GPU among CUDA_VISIBLE_DEVICES=" + std::string(visible) : "no NVIDIA GPU";
  }
  if (error != cudaSuccess) return describe_error(error);
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const Gpu gpu = describe_gpu(device);
  if (gpu.compute_capability < kOldestComputeCapability)
    return gpu.name + " is sm_" + std::to_string(gpu.compute_capability) +
           ", which is too old: FlashSteps needs sm_80 (Ampere) or newer";
  return "";
}

// Every call asks: what is known of a device is remembered, by each thread for itself.
const Gpu& current_gpu() {
  thread_local Gpu gpu{-1, 0, "", 0, 0, 0};
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    cudaGetLastError();  // as in check_cuda()
    const std::string why = missing_gpu();
    throw std::runtime_error(why.empty() ? describe_error(error) : why);
  }
  if (device != gpu.device) gpu = describe_gpu(device);
  return gpu;
}

void drop_old_gpu_error() {
  if (cudaPeekAtLastError() == cudaSuccess) return;
  cudaGetLastError();
  // What comes back at once is no call's, but the context's.
  if (const cudaError_t lasting = cudaPeekAtLastError(); lasting != cudaSuccess)
    throw DeviceError("the GPU cannot be used any more: " + describe_error(lasting));
}

// The context is the one that CUDA's runtime uses, too. Whoever has memory on the device keeps it.
CurrentDevice::CurrentDevice(int device) {
  int current = 0;
  CUDA_CHECK(cudaGetDevice(&current));
  if (device == current) return;
  CUdevice found = 0;
  CUcontext context = nullptr;
  check_driver(driver().find(&found, device));
  check_driver(driver().retain(&context, found));
  if (const CUresult error = driver().push(context); error != CUDA_SUCCESS) {
    driver().release(found);
    check_driver(error);
  }
  pushed_ = found;
}

CurrentDevice::~CurrentDevice() {
  if (pushed_ < 0) return;
  CUcontext context = nullptr;
  driver().pop(&context);
  driver().release(pushed_);
}

void* gpu_allocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // as in check_cuda()
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw std::runtime_error("not enough memory on " + current_gpu().name + " for " +
                             gibibytes(double(bytes), 2) + ": " + gibibytes(double(free_bytes), 2) +
                             " are free");
  }
  CUDA_CHECK(error);
  return memory;
}

void gpu_release(void* memory) { cudaFree(memory); }

// Not with cudaMemcpy(): its copies may end after it has returned, on a stream that others do not wait for.
void gpu_upload(void* to_gpu, const void* from_host, size_t bytes, void* stream) {
  CUDA_CHECK(cudaMemcpyAsync(to_gpu, from_host, bytes, cudaMemcpyHostToDevice, cudaStream_t(stream)));
  CUDA_CHECK(cudaStreamSynchronize(cudaStream_t(stream)));
}

void gpu_download(void* to_host, const void* from_gpu, size_t bytes, void* stream) {
  CUDA_CHECK(cudaMemcpyAsync(to_host, from_gpu, bytes, cudaMemcpyDeviceToHost, cudaStream_t(stream)));
  CUDA_CHECK(cudaStreamSynchronize(cudaStream_t(stream)));
}

void gpu_fill_zero(void* gpu, size_t bytes, void* stream) {
  CUDA_CHECK(cudaMemsetAsync(gpu, 0, bytes, cudaStream_t(stream)));
}

// A slot of one block of memory for each stream, and for each stream of each graph: graphs may run beside
// others. Streams are known by their ids: a handle may come again, for another stream, while the one that it
// named before still has work. (During a capture it does not, and CUDA does not tell ids.) A graph gives its
// slots back when nobody can launch it any more. Nobody sets a slot to zero again, since every call leaves it
// so.
unsigned* gpu_counters(void* handle) {
  constexpr size_t kSlots = 256;
  struct Owner {
    unsigned long long stream, capture;  // capture 0: the stream itself
    bool operator==(const Owner&) const = default;
  };
  struct Block {
    unsigned* memory = nullptr;
    std::vector<std::optional<Owner>> owners;  // by slot
  };
  static std::map<int, Block>& blocks = *new std::map<int, Block>;  // never destroyed: threads outlive main()
  static std::mutex& mutex = *new std::mutex;

  const auto stream = cudaStream_t(handle);
  if (stream == cudaStreamPerThread) return nullptr;  // which is many streams
  const Capture capture(stream);
  if (capture.status == cudaStreamCaptureStatusInvalidated) return nullptr;
  Owner owner{reinterpret_cast<uintptr_t>(stream), capture.id};
  if (capture.status == cudaStreamCaptureStatusNone) {
    CUDA_CHECK(cudaStreamGetId(stream, &owner.stream));
    owner.capture = 0;
  }

  const std::lock_guard lock(mutex);
  Block& block = blocks[current_gpu().device];
  if (block.memory == nullptr) block.memory = static_cast<unsigned*>(allocate_zeros(kSlots * kCounterBytes));
  std::vector<std::optional<Owner>>& owners = block.owners;
  auto slot = std::ranges::find(owners, std::optional(owner));
  if (slot == owners.end()) {
    slot = std::ranges::find(owners, std::optional<Owner>());
    if (slot == owners.end()) {
      if (owners.size() == kSlots) return nullptr;
      owners.reserve(kSlots);  // what graphs point to does not move
      slot = owners.insert(owners.end(), std::nullopt);
    }
    if (owner.capture != 0) {
      const auto release = [](void* of_graph) {
        const std::lock_guard until_done(mutex);
        static_cast<std::optional<Owner>*>(of_graph)->reset();
      };
      cudaUserObject_t object;
      CUDA_CHECK(cudaUserObjectCreate(&object, &*slot, release, 1, cudaUserObjectNoDestructorSync));
      CUDA_CHECK(cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove));
    }
    *slot = owner;
  }
  return block.memory + (slot - owners.begin()) * kNumCounters;
}

// CUDA knows the advertised boost clock only, which many cards exceed.
int max_sm_clock_mhz(int device) {
  if (const int mhz = Nvml(device).max_sm_clock_mhz(); mhz != 0) return mhz;
  return attribute(cudaDevAttrClockRate, device) / 1000;
}

double gpu_peak_tflops(int device, DType dtype) {
  const Gpu gpu = describe_gpu(device);
  return peak_tflops(gpu.name, gpu.compute_capability, attribute(cudaDevAttrMultiProcessorCount, device),
                     max_sm_clock_mhz(device), dtype);
}

}  // namespace flashsteps
