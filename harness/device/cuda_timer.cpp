#include "harness/device/cuda_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "common/cuda/check.h"

namespace flashsteps {
namespace {

constexpr double kSampleMs = 2;    // long against launching, and the half microsecond that events resolve
constexpr int kMaxLaunches = 200;  // per sample
constexpr int kMaxColdLaunches = 50;
constexpr int kMaxFlushes = 128;  // before a launch: some 10 ms
constexpr double kGraphBelowMs = 0.5;  // a host takes up to 0.3 ms for a call from Python
// An idle GPU takes tens of milliseconds to raise its clocks. It has them if a timer has used it just before.
constexpr std::chrono::milliseconds kWarmUp{100}, kStaysWarm{50};
std::chrono::steady_clock::time_point last_used;

Owned<cudaEvent_t> make_event() {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreate(&event));
  return {event, cudaEventDestroy};
}

// A number of launches, recorded once and replayed with one call.
Owned<cudaGraphExec_t> make_graph(cudaStream_t stream, int launches, const std::function<void()>& launch) {
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    for (int i = 0; i < launches; ++i) launch();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);  // the stream must be usable again, whatever became of the graph
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CUDA_CHECK(error);
  return {executable, cudaGraphExecDestroy};
}

double elapsed_ms(const Owned<cudaEvent_t>& begin, const Owned<cudaEvent_t>& end) {
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return ms;
}

// How many launches a sample should have that take so long.
int launches_for(double ms, int most) {
  return int(std::clamp(std::ceil(kSampleMs / std::max(ms, 1e-3)), 1.0, double(most)));
}

class CudaTimer : public Timer {
 public:
  CudaTimer(cudaStream_t stream, TimedCall call, std::function<void()> flush, json method)
      : stream_(stream),
        launch_(std::move(call.launch)),
        flush_(std::move(flush)),
        method_(std::move(method)) {
    const auto start = std::chrono::steady_clock::now();
    const auto warm_up = start - last_used < kStaysWarm ? std::chrono::milliseconds(0) : kWarmUp;
    CudaTimer::sample({});  // the very first launch loads the kernel: not a time to go by
    const int most = flush_ ? kMaxColdLaunches : kMaxLaunches;
    double ms = CudaTimer::sample({});  // of a single launch
    do {
      launches_ = launches_for(ms, most);
      ms = CudaTimer::sample({});
    } while (std::chrono::steady_clock::now() - start < warm_up);
    launches_ = launches_for(ms, most);
    if (!flush_ && call.record && ms < kGraphBelowMs && (replay_ = call.record(launches_))) {
      // The host may have been slower than the kernel.
      const int now = launches_for(CudaTimer::sample({}), most);
      if (now > 2 * launches_) replay_ = call.record(launches_ = now);
    }
    method_.update({{"launches_per_sample", launches_}, {"graph", bool(replay_)}});
    if (flush_) method_["l2"] = "cold";
  }

  double sample(const std::function<void()>& while_running) override {
    const double ms = time_sample(while_running);
    last_used = std::chrono::steady_clock::now();
    return ms;
  }

  json method() const override { return method_; }

 private:
  double time_sample(const std::function<void()>& while_running) const {
    if (flush_) return time_cold(stream_, launch_, flush_, launches_, while_running);
    // One goes ahead, so that the device is busy while the host launches what counts.
    (replay_ ? replay_ : launch_)();
    if (!replay_) return time_launches(stream_, launch_, launches_, while_running);
    return time_launches(stream_, replay_, 1, while_running) / launches_;
  }

  cudaStream_t stream_;
  std::function<void()> launch_, flush_, replay_;
  json method_;
  int launches_ = 1;
};

}  // namespace

double time_launches(cudaStream_t stream, const std::function<void()>& launch, int launches,
                     const std::function<void()>& while_running) {
  const Owned<cudaEvent_t> begin = make_event(), end = make_event();
  CUDA_CHECK(cudaEventRecord(begin.get(), stream));
  for (int i = 0; i < launches; ++i) launch();
  CUDA_CHECK(cudaEventRecord(end.get(), stream));
  if (while_running) while_running();
  CUDA_CHECK(cudaEventSynchronize(end.get()));
  return elapsed_ms(begin, end) / launches;
}

double time_cold(cudaStream_t stream, const std::function<void()>& launch, const std::function<void()>& flush,
                 int launches, const std::function<void()>& while_running) {
  std::vector<std::pair<Owned<cudaEvent_t>, Owned<cudaEvent_t>>> around;
  for (int flushes = 1; int(around.size()) < launches;) {
    const auto& [begin, end] = around.emplace_back(make_event(), make_event());
    for (int i = 0; i < flushes; ++i) flush();
    CUDA_CHECK(cudaEventRecord(begin.get(), stream));
    launch();
    CUDA_CHECK(cudaEventRecord(end.get(), stream));
    const cudaError_t reached = cudaEventQuery(begin.get());
    if (reached == cudaErrorNotReady) continue;
    CUDA_CHECK(reached);
    // The GPU may have waited for the host.
    around.pop_back();
    if (flushes == kMaxFlushes)
      throw std::runtime_error("a launch keeps the host longer than the GPU can be made to wait");
    flushes *= 2;
  }
  if (while_running) while_running();
  CUDA_CHECK(cudaEventSynchronize(around.back().second.get()));
  std::vector<double> ms;
  for (const auto& [begin, end] : around) ms.push_back(elapsed_ms(begin, end));
  const auto middle = ms.begin() + launches / 2;
  std::nth_element(ms.begin(), middle, ms.end());
  return *middle;
}

TimedCall recordable(cudaStream_t stream, std::function<void()> launch) {
  const auto record = [stream, launch](int launches) -> std::function<void()> {
    return [stream, graph = make_graph(stream, launches, launch)] {
      CUDA_CHECK(cudaGraphLaunch(graph.get(), stream));
    };
  };
  return {std::move(launch), record};
}

std::unique_ptr<Timer> make_cuda_timer(cudaStream_t stream, TimedCall call, std::function<void()> flush,
                                       json method) {
  return std::make_unique<CudaTimer>(stream, std::move(call), std::move(flush), std::move(method));
}

}  // namespace flashsteps
