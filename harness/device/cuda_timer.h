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

}  // namespace flashsteps
