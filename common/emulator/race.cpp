#include "common/emulator/race.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace emulator {
namespace {

constexpr uintptr_t kSiteBias = uintptr_t(1) << 31;
uintptr_t anchor() { return reinterpret_cast<uintptr_t>(&site_of); }

constexpr size_t kCellBytes = 2;

const char* kind(bool write) { return write ? "write" : "read"; }

}  // namespace

Site site_of(uintptr_t pc) { return Site(pc - anchor() + kSiteBias); }
uintptr_t pc_of(Site site) { return anchor() + site - kSiteBias; }

// ---- Shared memory

void RaceDetector::start_cta() {
  // A host thread that is new may have its __shared__ variables elsewhere than those before it.
  constexpr size_t kMaxShadows = 16;
  if (shadows_.size() > kMaxShadows) shadows_.clear();
  // All that earlier CTAs left in the cells lies before the new CTA's clocks: nothing needs clearing.
  if (latest_ >= kMaxClock / 2) forget_everything();
  const Clock before = latest_;
  for (VectorClock& clock : clocks_) clock.fill(before);
  latest_ = before + 1;
  for (int warp = 0; warp < kMaxWarps; ++warp) clocks_[warp][warp] = latest_;
}

// Only when the clocks run out, after a million synchronisations of one CTA.
void RaceDetector::forget_everything() {
  for (Shadow& shadow : shadows_) std::fill(shadow.cells.begin(), shadow.cells.end(), Cell{});
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    clocks_[warp].fill(0);
    clocks_[warp][warp] = 1;
  }
  for (VectorClock& clock : barriers_) clock.fill(0);
  latest_ = 1;
}

void RaceDetector::tick(int warp) {
  if (clocks_[warp][warp] == kMaxClock) forget_everything();
  latest_ = std::max(latest_, ++clocks_[warp][warp]);
}

void RaceDetector::warp_synchronised(int warp) { tick(warp); }

void RaceDetector::cta_synchronised() {
  VectorClock everything;
  for (int warp = 0; warp < kMaxWarps; ++warp) everything[warp] = clocks_[warp][warp];
  for (int warp = 0; warp < cta->num_warps; ++warp) clocks_[warp] = everything;
  for (int warp = 0; warp < cta->num_warps; ++warp) tick(warp);
}

void RaceDetector::barrier_arrival(int barrier, int warp, bool first_of_round) {
  VectorClock& known = barriers_[barrier];
  if (first_of_round) known.fill(0);
  for (int i = 0; i < kMaxWarps; ++i) known[i] = std::max(known[i], clocks_[warp][i]);
  tick(warp);
}

void RaceDetector::barrier_departure(int barrier, int warp) {
  VectorClock& clock = clocks_[warp];
  for (int i = 0; i < kMaxWarps; ++i) clock[i] = std::max(clock[i], barriers_[barrier][i]);
  tick(warp);
}

RaceDetector::Cell* RaceDetector::cells_of(uintptr_t address) {
  const auto index = [&](const Shadow& shadow) { return (address - shadow.base) / kCellBytes; };
  for (Shadow& shadow : shadows_) {
    if (index(shadow) < shadow.cells.size()) return &shadow.cells[index(shadow)];
  }
  // First access to it: the dynamic shared memory as a whole, or the surroundings of a __shared__ variable.
  const bool is_dynamic = address - uintptr_t(cta->smem) < kMaxSmemBytes;
  constexpr size_t kSurroundings = 1 << 16;
  const uintptr_t base = is_dynamic ? uintptr_t(cta->smem) : address / kSurroundings * kSurroundings;
  const size_t bytes = is_dynamic ? kMaxSmemBytes : kSurroundings;
  // An access may run over the end by less than its own length.
  shadows_.push_back({base, std::vector<Cell>(bytes / kCellBytes + 64)});
  Shadow& shadow = shadows_.back();
  return &shadow.cells[index(shadow)];
}

inline bool RaceDetector::happened_before(Epoch earlier, const Fiber& who) const {
  if (earlier == 0) return true;
  const Clock clock = Clock(earlier >> kClockShift);
  const int warp = int(earlier >> kWarpShift) & 63;
  const int lane = int(earlier >> kLaneShift) & 31;
  if (warp != who.warp) return clock <= clocks_[who.warp][warp];
  return lane == who.lane || clock < clocks_[warp][warp];
}

void RaceDetector::shared_access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Site site) {
  const int warp = who.warp;
  const Epoch now = Epoch(clocks_[warp][warp]) << kClockShift | Epoch(warp) << kWarpShift |
                    Epoch(who.lane) << kLaneShift | site;
  Cell* cell = cells_of(address);
  Cell* const end = cell + (address % kCellBytes + bytes + kCellBytes - 1) / kCellBytes;
  for (; cell < end; ++cell) {
    // Whatever could be unordered with this access was reported when its first twin was checked.
    if (same_time(cell->write, now)) continue;
    if (!write && same_time(cell->reads[0], now)) continue;
    if (!happened_before(cell->write, who)) report(who, address, cell->write, true, now, write);
    if (write) {
      for (const Epoch read : cell->reads) {
        if (!happened_before(read, who)) report(who, address, read, false, now, write);
      }
      *cell = {now, {0, 0}};
    } else {
      // Keep a read that is still unordered with this one beside it.
      const int slot = happened_before(cell->reads[0], who) ? 0 : 1;
      cell->reads[slot] = now;
    }
  }
}

void RaceDetector::report(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                          bool write) const {
  const int warp = int(earlier >> kWarpShift) & 63;
  const int lane = int(earlier >> kLaneShift) & 31;
  fail(Bug::kRace, who, [&] {
    const uintptr_t offset = address - uintptr_t(cta->smem);
    const std::string where =
        offset < kMaxSmemBytes ? "smem + " + std::to_string(offset) : "a __shared__ variable";
    const std::string remedy = warp == who.warp
                                   ? "a __syncwarp() (if other warps come here too, a __syncthreads())"
                                   : "a __syncthreads()";
    return "race on shared memory at " + where + ": the " + kind(write) + " at " +
           describe(pc_of(Site(now))) + " is not ordered after the " + kind(earlier_write) + " at " +
           describe(pc_of(Site(earlier))) + " by warp " + std::to_string(warp) + " lane " +
           std::to_string(lane) + ". Is " + remedy + " missing between the two?";
  });
}

// ---- Global memory

// CTA number + 1 in the upper half, site in the lower; zero: nobody. Touched by several host threads.
struct GlobalCell {
  std::atomic<uint64_t> write;
  std::atomic<uint64_t> read;
};

namespace {

constexpr uint64_t kSeveralCtas = uint64_t(1) << 63;

uint64_t cta_of(uint64_t access) { return (access & ~kSeveralCtas) >> 32; }

size_t shadow_bytes(const GlobalRange& range) { return (range.bytes / kCellBytes + 64) * sizeof(GlobalCell); }

[[noreturn]] void report_global(uintptr_t address, uint64_t earlier, bool earlier_write, Site site,
                                bool write) {
  fail(Bug::kRace, *self, [&] {
    char where[32];
    std::snprintf(where, sizeof(where), "0x%zx", size_t(address));
    const bool is_other = cta_of(earlier) != cta->index + 1;
    const std::string other = is_other ? "CTA number " + std::to_string(cta_of(earlier) - 1) : "another CTA";
    return std::string("race between CTAs on global memory at ") + where + ": the " + kind(write) + " at " +
           describe(pc_of(site)) + " touches what the " + kind(earlier_write) + " at " +
           describe(pc_of(Site(earlier))) + " by " + other +
           " touched in the same launch, where CTAs run in no order";
  });
}

}  // namespace

GlobalRaces::GlobalRaces(Launch& launch, bool enabled) : launch_(launch) {
  if (!enabled) return;
  for (GlobalRange& range : launch.memory) {
    // Costs memory only where it is touched.
    void* shadow = mmap(nullptr, shadow_bytes(range), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shadow == MAP_FAILED) throw std::bad_alloc();
    range.shadow = static_cast<GlobalCell*>(shadow);
  }
}

GlobalRaces::~GlobalRaces() {
  for (GlobalRange& range : launch_.memory) {
    if (range.shadow != nullptr) munmap(range.shadow, shadow_bytes(range));
  }
}

void global_access(uintptr_t address, size_t bytes, bool write, Site site) {
  const uint64_t mine = cta->index + 1;
  const uint64_t now = mine << 32 | site;
  const std::vector<GlobalRange>& ranges = cta->launch->memory;
  const GlobalRange& range =
      *(std::upper_bound(ranges.begin(), ranges.end(), address,
                         [](uintptr_t a, const GlobalRange& r) { return a < r.begin; }) -
        1);
  const uintptr_t offset = address - range.begin;
  GlobalCell* cell = range.shadow + offset / kCellBytes;
  GlobalCell* const end = range.shadow + (offset + bytes + kCellBytes - 1) / kCellBytes;
  for (; cell < end; ++cell) {
    // Sequentially consistent: of two CTAs that collide at this very moment, at least one sees the other.
    if (write) {
      if (cta_of(cell->write.load()) != mine) {
        const uint64_t earlier = cell->write.exchange(now);
        if (earlier != 0 && cta_of(earlier) != mine) report_global(address, earlier, true, site, write);
      }
      const uint64_t read = cell->read.load();
      if (read != 0 && ((read & kSeveralCtas) != 0 || cta_of(read) != mine)) {
        report_global(address, read, false, site, write);
      }
    } else {
      const uint64_t read = cell->read.load();
      if (read == 0) {
        cell->read.store(now);
      } else if (cta_of(read) != mine && (read & kSeveralCtas) == 0) {
        cell->read.store(read | kSeveralCtas);
      }
      const uint64_t earlier = cell->write.load();
      if (earlier != 0 && cta_of(earlier) != mine) report_global(address, earlier, true, site, write);
    }
  }
}

}  // namespace emulator
