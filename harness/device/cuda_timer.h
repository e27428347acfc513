// Times whatever is put on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "harness/device/backend.h"

namespace flashsteps {

// `launch` puts one launch on the stream and returns. With `may_capture`, short launches are timed as a CUDA
// graph: the host could not launch them as fast as they run.
std::unique_ptr<Timer> make_cuda_timer(cudaStream_t stream, std::function<void()> launch, bool may_capture);

}  // namespace flashsteps
