#include "common/emulator/headway.h"

#include <sys/mman.h>

#include <atomic>

namespace emulator {

namespace {
constexpr size_t kPlaceBytes = 64;
}  // namespace

WrittenPlaces::WrittenPlaces(const std::vector<GlobalRange>& memory) {
  size_t num_bits = 0;
  for (const GlobalRange& range : memory) {
    begins_.push_back(num_bits);
    num_bits += range.bytes / kPlaceBytes + 1;
  }
  num_bytes_ = num_bits / 8 + 1;
  bits_ = static_cast<uint8_t*>(map_zeros(num_bytes_, /*at_once=*/false));
}

WrittenPlaces::~WrittenPlaces() { munmap(bits_, num_bytes_); }

bool WrittenPlaces::add(size_t range, size_t offset) {
  const size_t bit = begins_[range] + offset / kPlaceBytes;
  const std::atomic_ref<uint8_t> byte(bits_[bit / 8]);
  const auto mask = uint8_t(1u << bit % 8);
  return (byte.load(std::memory_order_relaxed) & mask) == 0 &&
         (byte.fetch_or(mask, std::memory_order_relaxed) & mask) == 0;
}

void ReadExtents::start(size_t num_ranges) {
  extents_.resize(num_ranges);
  ++time_;
}

bool ReadExtents::add(size_t range, uintptr_t address) {
  const uintptr_t place = address / kPlaceBytes;
  Extent& extent = extents_[range];
  if (extent.time != time_) {
    extent = {place, place, time_};
    return true;
  }
  if (place >= extent.first && place <= extent.last) return false;
  (place < extent.first ? extent.first : extent.last) = place;
  return true;
}

void note_headway(const GlobalRange& range, uintptr_t address, bool write) {
  void (*const progress)() = cta->options.progress;
  if (progress == nullptr) return;
  const std::vector<GlobalRange>& memory = cta->launch->memory;
  const auto index = size_t(&range - memory.data());
  if (write) {
    if (!cta->launch->written->add(index, address - range.begin)) return;
    cta->reads->start(memory.size());
  } else if (!cta->reads->add(index, address)) {
    return;
  }
  if (++cta->reads->headway % 16 == 0) progress();  // which costs as much as many reads
}

}  // namespace emulator
