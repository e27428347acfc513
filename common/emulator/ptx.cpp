// Addresses of inline PTX: shared memory as a window of 32 bits.
#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/shared_layout.h"

namespace emulator {
namespace {

// Tiles that wgmma reads have addresses of 18 bits.
constexpr uintptr_t kWindowBytes = 1 << 18, kUnit = 1024;
constexpr uint32_t kOutside = 0x80000000;  // shared_pointer() makes something of it that nobody may touch
constexpr int kRankShift = 24;

// Steps know no addresses, only descriptors of tiles in smem.
size_t reserved_bytes() { return cta->launch->layout != nullptr ? SharedLayout::kReservedBytes : 0; }

// Of static shared memory, from a multiple of what tiles are aligned to.
struct StaticWindow {
  uintptr_t begin, bytes;  // on the host
  uintptr_t address;       // in the window
};
StaticWindow static_window() {
  const uintptr_t begin = static_shared_begin() / kUnit * kUnit;
  const uintptr_t bytes = (static_shared_begin() + static_shared_bytes() - begin + kUnit - 1) / kUnit * kUnit;
  // A program with more thread-local variables of its own than this has room for gets addresses behind it.
  const bool fits = bytes + reserved_bytes() + cta->smem_bytes <= kWindowBytes;
  return {begin, bytes, fits ? kWindowBytes - bytes : kWindowBytes};
}

}  // namespace

uint32_t shared_address(const void* pointer) {
  const Cta* const its = cta_with(uintptr_t(pointer));
  const Cta& one = its != nullptr ? *its : *cta;
  const intptr_t offset = intptr_t(uintptr_t(pointer) - uintptr_t(one.smem));
  const bool is_near = offset >= -intptr_t(kSmemGuardBytes) && offset < intptr_t(kMaxSmemBytes);
  const uint32_t rank = cluster_size() > 1 ? uint32_t(one.rank) : 0;
  if (is_near) return (rank << kRankShift) + uint32_t(offset + intptr_t(reserved_bytes()));
  const StaticWindow window = static_window();
  if (uintptr_t(pointer) - window.begin < window.bytes)
    return uint32_t(window.address + (uintptr_t(pointer) - window.begin));
  return kOutside;
}

void* own_shared_pointer(uint64_t address) {
  const StaticWindow window = static_window();
  if (address - window.address < window.bytes)
    return reinterpret_cast<void*>(window.begin + (address - window.address));
  return cta->smem + (intptr_t(int32_t(address)) - intptr_t(reserved_bytes()));
}

void* shared_pointer(uint64_t address, Location at) {
  if (address >> 32 != 0) {
    const InRuntime in_runtime;
    fail(Bug::kSharedOutOfBounds, *self)
        << "shared memory access out of bounds: the address at " << at
        << " has more than 32 bits. Is it a pointer, and __cvta_generic_to_shared is missing?";
  }
  const unsigned rank = unsigned(address) >> kRankShift;
  if (cluster_size() == 1 || rank >= unsigned(cluster_size())) return own_shared_pointer(address);
  const uintptr_t offset = address & ((1u << kRankShift) - 1);
  return cta->cluster->ctas[rank]->smem + (offset - reserved_bytes());
}

bool is_shared(const void* pointer) { return shared_address(pointer) != kOutside; }

uint32_t shared_address_in_cluster(uint64_t address, int cta_rank, Location at) {
  const InRuntime in_runtime;
  cta_of_cluster("mapa", cta_rank, at);
  const auto offset = uint32_t(address & ((1u << kRankShift) - 1));
  return cluster_size() > 1 ? uint32_t(cta_rank) << kRankShift | offset : uint32_t(address);
}

size_t dynamic_shared_bytes() { return cta->launch->layout->dynamic_bytes(); }

}  // namespace emulator
