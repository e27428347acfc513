// What every launch on a GPU needs to know, looked up once per kernel and remembered.
#include "common/cuda/launch.h"

#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>

#include "common/cuda/check.h"

namespace flashsteps {
inline namespace on_cuda {
namespace {

struct Key {
  int device;
  const void* kernel;
  size_t smem_bytes;
  unsigned block[3];
  bool operator==(const Key&) const = default;
};

struct HashKey {
  size_t operator()(const Key& key) const {
    size_t hash = reinterpret_cast<size_t>(key.kernel);
    for (const size_t part : {size_t(key.device), key.smem_bytes, size_t(key.block[0]), size_t(key.block[1]),
                              size_t(key.block[2])})
      hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 32);  // the map takes the low bits, the multiply mixes best into the high ones
  }
};

// Never destroyed: a thread that outlives main() may still launch.
std::shared_mutex& cache_mutex = *new std::shared_mutex;
std::unordered_map<Key, LaunchRecord, HashKey>& cache = *new std::unordered_map<Key, LaunchRecord, HashKey>;

[[noreturn]] void refuse(const std::string& why) { throw std::runtime_error(why); }

// Exact: a limit that is missed by a few bytes must not read "needs 99 KiB, allows 99 KiB".
std::string size_text(size_t bytes) {
  return bytes % 1024 == 0 ? std::to_string(bytes / 1024) + " KiB" : std::to_string(bytes) + " bytes";
}

// Limits that all compute capabilities share: CUDA Programming Guide, "Technical Specifications".
void check_extent(const char* what, unsigned extent, unsigned limit) {
  if (extent == 0) refuse(std::string(what) + " is 0: the launch would be empty");
  if (extent > limit)
    refuse(std::string(what) + " is " + std::to_string(extent) + ", the limit is " + std::to_string(limit));
}

void check_shape(dim3 grid, dim3 block) {
  check_extent("grid.x", grid.x, 0x7fffffff);
  check_extent("grid.y", grid.y, 65535);
  check_extent("grid.z", grid.z, 65535);
  check_extent("block.x", block.x, 1024);
  check_extent("block.y", block.y, 1024);
  check_extent("block.z", block.z, 64);
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Every call asks, some several times: what is known of a device is remembered, by each thread for itself.
struct Sms {
  int device = -1, count = 0, smem_bytes = 0;
};
const Sms& current_sms() {
  thread_local Sms known;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  if (device != known.device)
    known = {device, attribute(cudaDevAttrMultiProcessorCount, device),
             attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)};
  return known;
}

std::string device_name(int device) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

cudaFuncAttributes kernel_attributes(int device, const void* kernel) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();  // as in check_cuda()
    refuse("this build has no code for sm_" +
           std::to_string(attribute(cudaDevAttrComputeCapabilityMajor, device)) +
           std::to_string(attribute(cudaDevAttrComputeCapabilityMinor, device)) + " (it was built for " +
           FLASHSTEPS_ARCHITECTURES + ")");
  }
  CUDA_CHECK(error);
  return attributes;
}

LaunchRecord look_up(int device, const void* kernel, dim3 block, size_t smem_bytes) {
  const cudaFuncAttributes attributes = kernel_attributes(device, kernel);
  const int threads = int(block.x * block.y * block.z);
  if (threads > attributes.maxThreadsPerBlock)
    refuse("has " + std::to_string(threads) + " threads per CTA, the kernel's " +
           std::to_string(attributes.numRegs) + " registers per thread or its launch bounds allow " +
           std::to_string(attributes.maxThreadsPerBlock));

  const size_t needed = smem_bytes + attributes.sharedSizeBytes;
  const size_t allowed = size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (needed > allowed)
    refuse("needs " + size_text(needed) + " of shared memory per CTA, " + device_name(device) + " allows " +
           size_text(allowed));
  // The opt-in belongs to the kernel and not to the launch. It is only ever raised (from CUDA's default of 48
  // KiB), because a smaller value would refuse a larger launch that is already in the cache.
  if (smem_bytes > size_t(attributes.maxDynamicSharedSizeBytes))
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem_bytes)));

  LaunchRecord record{};
  record.smem_bytes = smem_bytes;
  record.registers = attributes.numRegs;
  record.spill_bytes = int(attributes.localSizeBytes);
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&record.ctas_per_sm, kernel, threads, smem_bytes));
  if (record.ctas_per_sm == 0)
    refuse("a CTA of " + std::to_string(threads) + " threads with " + std::to_string(record.registers) +
           " registers each and " + size_text(needed) + " of shared memory does not fit an SM of " +
           device_name(device));
  return record;
}

LaunchRecord cached(int device, const void* kernel, dim3 block, size_t smem_bytes) {
  const Key key{device, kernel, smem_bytes, {block.x, block.y, block.z}};
  {
    const std::shared_lock lock(cache_mutex);
    if (const auto found = cache.find(key); found != cache.end()) return found->second;
  }
  // Held through the look-up: two threads must not read and then raise the same kernel's opt-in.
  const std::unique_lock lock(cache_mutex);
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  return cache[key] = look_up(device, kernel, block, smem_bytes);
}

}  // namespace

LaunchRecord prepare_launch(const void* kernel, dim3 grid, dim3 block, size_t smem_bytes) {
  check_shape(grid, block);
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  LaunchRecord record = cached(device, kernel, block, smem_bytes);
  const unsigned extents[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  for (int i = 0; i < 3; ++i) {
    record.grid[i] = extents[i];
    record.block[i] = extents[3 + i];
  }
  return record;
}

int num_sms() { return current_sms().count; }
int smem_bytes_per_sm() { return current_sms().smem_bytes; }

void check_cluster(int cluster_size, dim3 grid) {
  if (cluster_size != 1 && cluster_size != 2 && cluster_size != 4 && cluster_size != 8)
    refuse("a cluster has 1, 2, 4 or 8 CTAs, not " + std::to_string(cluster_size));
  if (grid.x % unsigned(cluster_size) != 0)
    refuse("grid.x is " + std::to_string(grid.x) + ", not a multiple of the cluster's " +
           std::to_string(cluster_size) + " CTAs");
}

void check_launch() {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw DeviceError("a launch failed: " + describe_error(error));
}

}  // namespace on_cuda
}  // namespace flashsteps
