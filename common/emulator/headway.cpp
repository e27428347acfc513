#include "common/emulator/headway.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "common/emulator/cluster_state.h"
#include "common/emulator/copy_engine.h"

namespace emulator {

namespace {
constexpr size_t kPlaceBytes = 64;

// So many reads in vain. A program may measure something by reading the same place again and again.
constexpr unsigned kOften = 1 << 14, kOftenInPrograms = 1 << 20;
static_assert(kOftenInPrograms % kOften == 0);

std::span<Fiber> fibers_of(Cta& one) { return std::span(one.fibers).first(size_t(one.num_threads)); }

bool only_waits(const Fiber& fiber) {
  const unsigned often = cta->launch->program != nullptr ? kOftenInPrograms : kOften;
  if (fiber.state == State::kReady) return fiber.in_vain >= often;
  return fiber.state != State::kLogFull;
}

// The running thread has read in vain so often.
void suspect_standstill() {
  Cluster& cluster = *cta->cluster;
  for (Cta* const one : cluster.ctas) {
    if (one->copies->has_loads() || !std::ranges::all_of(fibers_of(*one), only_waits)) return;
  }
  std::atomic<uint64_t>& num_suspicions = cta->launch->num_suspicions;
  if (!cluster.suspected) ++num_suspicions;
  const bool is_anew = !cluster.suspected || cluster.suspicions != num_suspicions;
  cluster.suspected = true;
  if (is_anew) {
    cluster.suspicions = num_suspicions;
    for (Cta* const one : cluster.ctas) {
      for (Fiber& fiber : fibers_of(*one)) fiber.in_vain = 0;
    }
    return;
  }
  *cluster.standing = cluster.suspicions;
  if (all_stand_still(cluster.suspicions)) report_deadlock();
}

}  // namespace

void note_poll(uintptr_t address, size_t bytes, uintptr_t pc) {
  Fiber& me = *self;
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<const void*>(address), std::min(bytes, sizeof(value)));
  if (address != me.polled || value != me.polled_value) {
    cta->cluster->goes_on();
    me.polled = address;
    me.polled_value = value;
    me.in_vain = 0;
  }
  me.polled_at = pc;
  if (++me.in_vain % kOften == 0) suspect_standstill();
}

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
