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

// `call` puts its launches on the stream and returns. `method` is added to what Timer::method() says.
//
// With a cold L2, where there is a `flush`: that is put on the stream before every launch, and events stand
// around the launch alone. A sample is the median of several. While the GPU flushes, the host launches, so
// that no graph is needed; where it is not done in time, the flush is repeated until it is, so that no time
// has the host's in it.
std::unique_ptr<Timer> make_cuda_timer(cudaStream_t stream, TimedCall call, std::function<void()> flush = {},
                                       json method = json::object());

// A launch of CUDA's, which is recorded as a graph.
TimedCall recordable(cudaStream_t stream, std::function<void()> launch);

// Milliseconds of a launch between two events, after so many of them.
double time_launches(cudaStream_t stream, const std::function<void()>& launch, int launches,
                     const std::function<void()>& while_running = {});

// Milliseconds of a launch behind a flush: the median of so many. Throws std::runtime_error when the host
// cannot launch as fast as the GPU flushes many times.
double time_cold(cudaStream_t stream, const std::function<void()>& launch, const std::function<void()>& flush,
                 int launches, const std::function<void()>& while_running = {});

}  // namespace flashsteps
