// Times whatever is put on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "harness/device/backend.h"

namespace flashsteps {

// One of CUDA's objects, which goes with its last owner.
template <typename Handle>
using Owned = std::shared_ptr<std::remove_pointer_t<Handle>>;

// `launch` puts one launch on the stream and returns. `method` is added to what Timer::method() says. With
// `may_capture`, short launches are timed as a CUDA graph: the host could not launch them as fast as they
// run.
std::unique_ptr<Timer> make_cuda_timer(cudaStream_t stream, std::function<void()> launch, bool may_capture,
                                       json method = json::object());

// The same with a cold L2: `flush` is put on the stream before every launch, and events stand around the
// launch alone. A sample is the median of several. The flush takes the GPU longer than host needs for all of
// this, so the launches follow without gaps, and no graph is needed.
std::unique_ptr<Timer> make_cold_cuda_timer(cudaStream_t stream, std::function<void()> launch,
                                            std::function<void()> flush, json method = json::object());

// Milliseconds of a launch behind a flush: the median of so many.
double time_cold(cudaStream_t stream, const std::function<void()>& launch, const std::function<void()>& flush,
                 int launches, const std::function<void()>& while_running = {});

}  // namespace flashsteps
