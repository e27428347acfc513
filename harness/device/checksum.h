#pragma once

#include <cstddef>
#include <cstdint>

namespace flashsteps {

// Backend::checksum() of a GPU.
uint64_t gpu_checksum(const void* memory, size_t bytes, void* stream);

}  // namespace flashsteps
