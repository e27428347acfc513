// A CUDA device as a place where steps run.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <future>
#include <optional>

#include "common/cuda/check.h"
#include "harness/device/backend.h"
#include "harness/device/ceilings.h"
#include "harness/device/checksum.h"
#include "harness/device/cuda_timer.h"
#include "harness/device/gpu.h"
#include "harness/include/flashsteps.h"
#include "harness/problem/problem.h"

namespace flashsteps {

namespace {

// Non-blocking: unlike others, it does not wait for work on the legacy default stream, nor that for it.
Owned<cudaStream_t> make_stream() {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream, cudaStreamDestroy};
}

class CudaBackend : public GpuBackend {
 public:
  explicit CudaBackend(int device) : device_(device), nvml_(device) {
    CUDA_CHECK(cudaGetDeviceProperties(&properties_, device_));
  }

  void* allocate(size_t bytes) override { return gpu_allocate(bytes); }
  void release(void* device) override { gpu_release(device); }

  void upload(void* device, const void* host, size_t bytes) override {
    gpu_upload(device, host, bytes, stream_);
  }
  void download(void* host, const void* device, size_t bytes) override {
    gpu_download(host, device, bytes, stream_);
  }
  uint64_t checksum(const void* device, size_t bytes) override {
    return gpu_checksum(device, bytes, stream_);
  }

  size_t free_memory() const override {
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
  }

  std::string architecture_refusal(const StepInfo& info) const override {
    return flashsteps::architecture_refusal(info, properties_.name, compute_capability());
  }

  void run(const Step& step, const AttentionCall& call) override {
    step.run(call, stream_);
    const cudaError_t error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) throw DeviceError(describe_error(error));
  }

  void run_together(const Step& step, const std::vector<AttentionCall>& calls,
                    const std::function<void(size_t)>& check) override {
    constexpr int kRounds = 16, kLaunches = 4;  // of a round: each may meet another call's
    std::vector<Owned<cudaStream_t>> streams;
    for (size_t i = 0; i < calls.size(); ++i) streams.push_back(make_stream());
    for (int round = 0; round < kRounds; ++round) {
      std::barrier start(std::ptrdiff_t(calls.size()));
      std::vector<std::future<void>> running;
      for (size_t i = 0; i < calls.size(); ++i) {
        running.push_back(std::async(std::launch::async, [&, i] {
          CUDA_CHECK(cudaSetDevice(device_));
          start.arrive_and_wait();
          for (int launch = 0; launch < kLaunches; ++launch) step.run(calls[i], streams[i].get());
          if (const cudaError_t error = cudaStreamSynchronize(streams[i].get()); error != cudaSuccess)
            throw DeviceError(describe_error(error));
        }));
      }
      for (std::future<void>& each : running) each.wait();
      for (std::future<void>& each : running) each.get();
      for (size_t i = 0; i < calls.size(); ++i) check(i);
    }
  }

  std::unique_ptr<Timer> make_timer(const Step& step, const AttentionCall& call, bool cold_l2) override {
    const auto launch = [step, call, stream = stream_] { step.run(call, stream); };
    return make_timer(recordable(stream_, launch), cold_l2);
  }

  std::unique_ptr<Timer> make_timer(const TimedCall& call, bool cold_l2) override {
    return make_cuda_timer(stream_, call, cold_l2 ? l2_flush() : nullptr);
  }

  void* stream() override { return stream_; }

  double time_launches(void* stream, const std::function<void()>& launch, int launches) override {
    return flashsteps::time_launches(static_cast<cudaStream_t>(stream), launch, launches);
  }

  std::unique_ptr<Timer> make_ceiling(const std::string& name) override {
    if (name == "matmul" && !matmul_) matmul_ = make_cublas_matmul(stream_);
    const CeilingLaunch launch = name == "matmul"          ? *matmul_
                                 : name.ends_with("wgmma") ? make_wgmma_loop(name, stream_)
                                 : name == "read" ? quickest_read(bytes_beyond_l2(), "global memory, read ")
                                                  : make_ceiling_loop(name, stream_);
    if (!launch.run) return nullptr;
    // cuBLAS would need a workspace of its own under capture, and one launch of each is long enough without.
    return make_cuda_timer(stream_, {launch.run, {}}, nullptr, method_of(launch));
  }

  std::unique_ptr<Timer> make_cold_read(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const CeilingLaunch launch = quickest_read(bytes, "as many bytes as K and V, L2 cold, read ");
    if (!launch.run) return nullptr;
    return make_cuda_timer(stream_, {launch.run, {}}, l2_flush(), method_of(launch));
  }

  int sm_clock_mhz() override { return nvml_.sm_clock_mhz(); }

  json device() const override {
    int runtime = 0;
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    json facts = {
        {"name", properties_.name},
        {"compute_capability", std::to_string(properties_.major) + "." + std::to_string(properties_.minor)},
        {"sm_count", properties_.multiProcessorCount},
        {"l2_bytes", properties_.l2CacheSize},
        {"memory_bytes", properties_.totalGlobalMem},
        {"memory_bytes_per_us", current_gpu().memory_bytes_per_us},
        {"smem_optin_bytes", properties_.sharedMemPerBlockOptin},
        {"max_sm_clock_mhz", max_sm_clock_mhz(device_)},
        {"driver", driver_version()},
        {"cuda_runtime", cuda_version_text(runtime)}};
    for (const auto& [text, dtype] : kDTypeNames) {
      if (const double peak = gpu_peak_tflops(device_, dtype); peak > 0) facts["peak_tflops"][text] = peak;
    }
    return facts;
  }

 private:
  static json method_of(const CeilingLaunch& launch) {
    return {{"what", launch.what}, {"unit", launch.unit}, {"work", launch.work}};
  }

  const std::function<void()>& l2_flush() {
    if (!l2_flush_) l2_flush_ = make_l2_flush(stream_);
    return l2_flush_;
  }

  // Of the ways to read so many bytes. Its name follows `what`.
  CeilingLaunch quickest_read(size_t bytes, const std::string& what) {
    constexpr int kLaunches = 9;  // of each way, to choose by
    CeilingLaunch quickest;
    double least_ms = INFINITY;
    for (const CeilingLaunch& way : make_read_loops(bytes, stream_)) {
      time_cold(stream_, way.run, l2_flush(), 1);  // loads the kernel
      const double ms = time_cold(stream_, way.run, l2_flush(), kLaunches);
      if (ms < least_ms) quickest = way;
      least_ms = std::min(ms, least_ms);
    }
    quickest.what = what + quickest.what;
    return quickest;
  }

  int compute_capability() const { return 10 * properties_.major + properties_.minor; }

  std::string driver_version() const {
    if (std::string version = nvml_.driver_version(); !version.empty()) return version;
    int version = 0;
    CUDA_CHECK(cudaDriverGetVersion(&version));
    return "unknown, for CUDA " + cuda_version_text(version);
  }

  const int device_;
  cudaDeviceProp properties_;
  const Owned<cudaStream_t> owned_stream_ = make_stream();
  const cudaStream_t stream_ = owned_stream_.get();
  std::function<void()> l2_flush_;
  std::optional<CeilingLaunch> matmul_;  // its matrices take a while to fill
  Nvml nvml_;
};

}  // namespace

std::unique_ptr<GpuBackend> make_cuda_backend(std::string& why, int device) {
  try {
    why = missing_gpu();
    if (!why.empty()) return nullptr;
    CUDA_CHECK(cudaSetDevice(device));
    return std::make_unique<CudaBackend>(device);
  } catch (const std::exception& error) {
    why = error.what();
  }
  return nullptr;
}

}  // namespace flashsteps
