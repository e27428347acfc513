// The emulator's side of common/launch.h: `smem` and launch(). Include that one.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "common/emulator/cuda.h"
#include "common/emulator/emulator.h"
#include "common/interface.h"

namespace emulator::cuda {

// 1024-byte aligned. A pointer, not an array: a thread-local block of this size would keep a Python module
// from loading.
extern constinit thread_local unsigned char* const smem __attribute__((tls_model("initial-exec")));

}  // namespace emulator::cuda

namespace flashsteps {
inline namespace on_emulator {

using Stream = void*;
using emulator::cuda::smem;

inline int num_sms() { return emulator::options().num_sms; }
inline int smem_bytes_per_sm() { return emulator::options().smem_bytes_per_sm; }

// Returns when the kernel is done. Throws emulator::Report when CUDA would refuse the launch or the kernel
// has a bug.
template <typename... Params, typename... Args>
void launch_with(int cluster_size, bool overlaps, void (*kernel)(Params...), dim3 grid, dim3 block,
                 size_t smem_bytes, Stream, Args&&... args) {
  emulator::check_launch(grid, block, smem_bytes, cluster_size);
  if (launch_recorder() != nullptr) {
    launch_recorder()->push_back({{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, smem_bytes});
    return;
  }
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> arguments;
  };
  Call call{kernel, std::tuple<Params...>(static_cast<Params>(args)...)};
  const auto body = [](void* opaque) {
    Call& its_call = *static_cast<Call*>(opaque);
    std::apply(its_call.kernel, its_call.arguments);
  };
  emulator::run(grid, block, smem_bytes, body, &call, sizeof(call), cluster_size, overlaps);
}

template <typename... Args>
void launch(auto* kernel, Args&&... args) {
  launch_with(1, false, kernel, std::forward<Args>(args)...);
}
template <typename... Args>
void launch_clusters(int cluster_size, auto* kernel, Args&&... args) {
  launch_with(cluster_size, false, kernel, std::forward<Args>(args)...);
}
template <typename... Args>
void launch_overlapping(auto* kernel, Args&&... args) {
  launch_with(1, true, kernel, std::forward<Args>(args)...);
}

}  // namespace on_emulator
}  // namespace flashsteps
