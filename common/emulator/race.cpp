#include "common/emulator/race.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
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

// ---- Shared memory: who knows what

void RaceDetector::start_cta() {
  // A host thread that is new may have its __shared__ variables elsewhere than those before it.
  constexpr size_t kMaxShadows = 16;
  if (shadows_.size() > kMaxShadows) shadows_.clear();
  // All that earlier CTAs left in the cells lies before the new CTA's times: nothing needs clearing.
  if (latest_ >= kMaxTime / 2) forget_everything();
  const Time before = latest_;
  latest_ = before + 1;
  times_.fill(latest_);
  own_.fill(0);
  lanes_.resize(cta->fibers.size());
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    warps_[warp] = {};
    warps_[warp].happened.all.fill(before);
    warps_[warp].fenced.all.fill(before);
  }
  num_mbarriers_ = 0;
  store_sources_.clear();
}

// Only when the times run out, after a million synchronisations of one CTA.
void RaceDetector::forget_everything() {
  for (Shadow& shadow : shadows_) {
    std::fill(shadow.cells.begin(), shadow.cells.end(), Cell{});
    std::fill(shadow.chunks.begin(), shadow.chunks.end(), Chunk{});
  }
  warps_.fill({});
  own_.fill(0);
  barriers_.fill({});
  for (Mbarrier& mbarrier : mbarriers_) {
    mbarrier.collected = mbarrier.completed = {};
    mbarrier.loads_on_way.clear();
  }
  times_.fill(1);
  latest_ = 1;
}

void RaceDetector::tick(int warp) {
  if (times_[warp] == kMaxTime) forget_everything();
  latest_ = std::max(latest_, ++times_[warp]);
}

void RaceDetector::join(Clock& into, const Clock& from) const {
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    const Time all = std::max(into.all[warp], from.all[warp]);
    into.lanes[warp] =
        (into.some[warp] > all ? into.lanes[warp] : 0) | (from.some[warp] > all ? from.lanes[warp] : 0);
    into.some[warp] = std::max(into.some[warp], from.some[warp]);
    into.all[warp] = all;
  }
  for (int agent = kFirstMbarrier; agent < kFirstMbarrier + num_mbarriers_; ++agent) {
    into.all[agent] = std::max(into.all[agent], from.all[agent]);
  }
}

void RaceDetector::join(Knowledge& into, const Knowledge& from) const {
  join(into.happened, from.happened);
  join(into.fenced, from.fenced);
}

const RaceDetector::Knowledge& RaceDetector::knowledge_of(const Fiber& who) const {
  const bool own = ((own_[who.warp] >> who.lane) & 1) != 0;
  return own ? lanes_[size_t(who.warp * kWarpSize + who.lane)] : warps_[who.warp];
}

RaceDetector::Knowledge& RaceDetector::own_knowledge_of(const Fiber& who) {
  Knowledge& own = lanes_[size_t(who.warp * kWarpSize + who.lane)];
  if (((own_[who.warp] >> who.lane) & 1) == 0) own = warps_[who.warp];
  own_[who.warp] |= 1u << who.lane;
  return own;
}

// Everything that the thread itself has done.
void RaceDetector::add_own(Clock& clock, const Fiber& who) const {
  const int warp = who.warp;
  const unsigned others = clock.some[warp] > clock.all[warp] ? clock.lanes[warp] : 0;
  clock.lanes[warp] = others | 1u << who.lane;
  clock.some[warp] = times_[warp];
}

void RaceDetector::release(Knowledge& to, const Fiber& who) {
  join(to, knowledge_of(who));
  add_own(to.happened, who);
  tick(who.warp);
}

// All that its lanes know and have done becomes known to the whole warp.
void RaceDetector::gather(int warp) {
  Knowledge& known = warps_[warp];
  for (unsigned rest = own_[warp]; rest != 0; rest &= rest - 1) {
    join(known, lanes_[size_t(warp * kWarpSize + __builtin_ctz(rest))]);
  }
  own_[warp] = 0;
  known.happened.all[warp] = times_[warp];
}

void RaceDetector::warp_synchronised(int warp) {
  gather(warp);
  tick(warp);
}

void RaceDetector::cta_synchronised() {
  for (int warp = 0; warp < cta->num_warps; ++warp) gather(warp);
  for (int warp = 1; warp < cta->num_warps; ++warp) join(warps_[0], warps_[warp]);
  for (int warp = 1; warp < cta->num_warps; ++warp) warps_[warp] = warps_[0];
  for (int warp = 0; warp < cta->num_warps; ++warp) tick(warp);
}

void RaceDetector::barrier_arrival(int barrier, const Fiber& who, bool first_of_round) {
  if (first_of_round) barriers_[barrier] = {};
  release(barriers_[barrier], who);
}

void RaceDetector::barrier_departure(int barrier, int warp) {
  gather(warp);
  join(warps_[warp], barriers_[barrier]);
  tick(warp);
}

void RaceDetector::mbarrier_initialised(int mbarrier) {
  num_mbarriers_ = std::max(num_mbarriers_, mbarrier + 1);
  mbarriers_[mbarrier] = {};
}

void RaceDetector::mbarrier_arrival(int mbarrier, const Fiber& who) {
  release(mbarriers_[mbarrier].collected, who);
}

void RaceDetector::mbarrier_completed(int mbarrier) {
  Mbarrier& its = mbarriers_[mbarrier];
  // A load that is still on its way is not part of this phase, nor are those that were issued after it.
  Time landed = times_[kFirstMbarrier + mbarrier];
  for (const Time issued : its.loads_on_way) landed = std::min(landed, issued - 1);
  its.collected.happened.all[kFirstMbarrier + mbarrier] = landed;
  its.completed = its.collected;
}

void RaceDetector::mbarrier_waited(int mbarrier, const Fiber& who) {
  join(own_knowledge_of(who), mbarriers_[mbarrier].completed);
}

void RaceDetector::proxy_fence(const Fiber& who) {
  Knowledge& own = own_knowledge_of(who);
  join(own.fenced, own.happened);
  add_own(own.fenced, who);
  tick(who.warp);
}

bool RaceDetector::knows(const Clock& clock, Epoch epoch) {
  const int agent = agent_of(epoch);
  const Time time = time_of(epoch);
  if (time <= clock.all[agent]) return true;
  return agent < kMaxWarps && ((clock.lanes[agent] >> lane_of(epoch)) & 1) != 0 && time <= clock.some[agent];
}

// ---- Shared memory: accesses

RaceDetector::Shadow& RaceDetector::shadow_of(uintptr_t address) {
  for (Shadow& shadow : shadows_) {
    if ((address - shadow.base) / kCellBytes < shadow.cells.size()) return shadow;
  }
  // First access to it: the dynamic shared memory as a whole, or the surroundings of a __shared__ variable.
  const bool is_dynamic = address - uintptr_t(cta->smem) < kMaxSmemBytes;
  constexpr size_t kSurroundings = 1 << 16;
  const uintptr_t base = is_dynamic ? uintptr_t(cta->smem) : address / kSurroundings * kSurroundings;
  const size_t bytes = is_dynamic ? kMaxSmemBytes : kSurroundings;
  // An access may run over the end by less than its own length.
  shadows_.push_back({base, std::vector<Cell>(bytes / kCellBytes + 64), {}});
  return shadows_.back();
}

RaceDetector::Cell* RaceDetector::cells_of(uintptr_t address) {
  Shadow& shadow = shadow_of(address);
  return &shadow.cells[(address - shadow.base) / kCellBytes];
}

inline bool RaceDetector::happened_before(Epoch earlier, const Fiber& who, const Clock& known) const {
  if (earlier == 0) return true;
  if (agent_of(earlier) == who.warp && lane_of(earlier) == who.lane) return true;
  return knows(known, earlier);
}

void RaceDetector::shared_access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Site site) {
  if (write && !store_sources_.empty()) check_store_sources(who, address, bytes, site);
  const Epoch now = make_epoch(times_[who.warp], who.warp, who.lane, site);
  const Clock& known = knowledge_of(who).happened;
  Cell* cell = cells_of(address);
  Cell* const end = cell + (address % kCellBytes + bytes + kCellBytes - 1) / kCellBytes;
  for (; cell < end; ++cell) {
    // Whatever could be unordered with this access was reported when its first twin was checked.
    if (same_time(cell->write, now)) continue;
    if (!write && same_time(cell->reads[0], now)) continue;
    if (!happened_before(cell->write, who, known)) report(who, address, cell->write, true, now, write);
    if (write) {
      for (const Epoch read : cell->reads) {
        if (!happened_before(read, who, known)) report(who, address, read, false, now, write);
      }
      *cell = {now, {0, 0}};
    } else {
      // Keep a read that is still unordered with this one beside it.
      const int slot = happened_before(cell->reads[0], who, known) ? 0 : 1;
      cell->reads[slot] = now;
    }
  }
}

RaceDetector::Time RaceDetector::load_issued(int mbarrier, const Fiber& who, uintptr_t address, size_t bytes,
                                             Site site) {
  check_store_sources(who, address, bytes, site);
  const int agent = kFirstMbarrier + mbarrier;
  latest_ = std::max(latest_, ++times_[agent]);
  const Time issued = times_[agent];
  const Epoch now = make_epoch(issued, agent, who.lane, site);
  const Clock& known = knowledge_of(who).happened;
  Cell checked = {};  // neighbours mostly have the same past
  for (size_t offset = 0; offset < bytes; offset += kCellBytes) {
    Cell& cell = *cells_of(address + offset);
    if (std::memcmp(&cell, &checked, sizeof(Cell)) != 0) {
      checked = cell;
      if (!happened_before(cell.write, who, known)) {
        report(who, address + offset, cell.write, true, now, true);
      }
      for (const Epoch read : cell.reads) {
        if (!happened_before(read, who, known)) report(who, address + offset, read, false, now, true);
        check_fence(who, address + offset, read, false, site, true);
      }
      check_fence(who, address + offset, cell.write, true, site, true);
    }
    cell = {now, {0, 0}};
  }
  mbarriers_[mbarrier].loads_on_way.push_back(issued);
  return issued;
}

void RaceDetector::load_landed(int mbarrier, Time issued) {
  std::erase(mbarriers_[mbarrier].loads_on_way, issued);
}

void RaceDetector::store_issued(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  shared_access(who, address, bytes, false, site);
  Epoch checked = 0;
  for (size_t offset = 0; offset < bytes; offset += kCellBytes) {
    const Epoch write = cells_of(address + offset)->write;
    if (write != checked) check_fence(who, address + offset, write, true, site, false);
    checked = write;
  }
  store_sources_.push_back({address, bytes, &who, site});
  if (std::find(store_sites_.begin(), store_sites_.end(), site) == store_sites_.end()) {
    store_sites_.push_back(site);
  }
}

void RaceDetector::store_waited(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  const auto is_this = [&](const StoreSource& source) {
    return source.begin == address && source.who == &who && source.site == site;
  };
  store_sources_.erase(std::find_if(store_sources_.begin(), store_sources_.end(), is_this));
  // Now it is a read like others by this thread: whoever writes next must have heard from it.
  shared_access(who, address, bytes, false, site);
}

void RaceDetector::remember_chunk(uintptr_t address, int column, int swizzle_bytes) {
  Shadow& shadow = shadow_of(address);
  if (shadow.chunks.empty()) shadow.chunks.resize(shadow.cells.size() * kCellBytes / kChunkBytes);
  const uintptr_t offset = address - shadow.base;
  shadow.chunks[offset / kChunkBytes] = {column, swizzle_bytes, shadow.cells[offset / kCellBytes].write};
}

RaceDetector::Chunk RaceDetector::chunk_at(uintptr_t address) {
  const Shadow& shadow = shadow_of(address);
  if (shadow.chunks.empty()) return {};
  const uintptr_t offset = address - shadow.base;
  const Chunk& chunk = shadow.chunks[offset / kChunkBytes];
  const Cell* cell = &shadow.cells[offset / kCellBytes];
  const bool intact = std::all_of(cell, cell + kChunkBytes / kCellBytes,
                                  [&](const Cell& its) { return its.write == chunk.load; });
  return intact && chunk.load != 0 ? chunk : Chunk{};
}

// ---- Shared memory: reports

void RaceDetector::check_store_sources(const Fiber& who, uintptr_t address, size_t bytes, Site site) const {
  for (const StoreSource& source : store_sources_) {
    if (address >= source.begin + source.bytes || source.begin >= address + bytes) continue;
    fail(Bug::kRace, who, [&] {
      return "race on shared memory at " + describe_shared(address) + ": the write at " +
             describe(pc_of(site)) + " overwrites what the bulk store at " + describe(pc_of(source.site)) +
             " by warp " + std::to_string(source.who->warp) + " lane " + std::to_string(source.who->lane) +
             " may still be reading. Is its tma_store_wait_read missing before?";
    });
  }
}

void RaceDetector::check_fence(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write,
                               Site site, bool load) const {
  const bool by_thread = earlier != 0 && agent_of(earlier) < kMaxWarps;
  if (!by_thread || knows(knowledge_of(who).fenced, earlier)) return;
  const bool by_store =
      std::find(store_sites_.begin(), store_sites_.end(), Site(earlier)) != store_sites_.end();
  if (by_store) return;
  fail(Bug::kProxyFence, who, [&] {
    return "the copy at " + describe(pc_of(site)) + (load ? " overwrites" : " reads") + " shared memory at " +
           describe_shared(address) + ", which was " + (earlier_write ? "written" : "read") + " at " +
           describe(pc_of(Site(earlier))) + " by warp " + std::to_string(agent_of(earlier)) + " lane " +
           std::to_string(lane_of(earlier)) +
           ", and no fence_proxy_async() lies between the two. It must stand behind the " +
           (earlier_write ? "write" : "read") +
           ", or in front of the copy, behind what this thread waits for";
  });
}

void RaceDetector::report(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                          bool write) const {
  fail(Bug::kRace, who, [&] {
    const std::string where = "race on shared memory at " + describe_shared(address) + ": ";
    const std::string place = describe(pc_of(Site(now)));
    const std::string earlier_place = describe(pc_of(Site(earlier)));
    const bool is_copy = agent_of(now) >= kFirstMbarrier;
    const bool after_copy = agent_of(earlier) >= kFirstMbarrier;
    if (after_copy) {
      const std::string what = is_copy ? "the copy issued at " : std::string("the ") + kind(write) + " at ";
      return where + what + place + " touches what the copy issued at " + earlier_place +
             " brings, and this thread has not waited for that: is an mbarrier_wait missing, or was it for "
             "another phase or another mbarrier?";
    }
    const std::string other = earlier_place + " by warp " + std::to_string(agent_of(earlier)) + " lane " +
                              std::to_string(lane_of(earlier));
    if (is_copy) {
      return where + "the copy issued at " + place + " overwrites what the " + kind(earlier_write) + " at " +
             other +
             " may still need: this thread has not heard that it is done. Was the memory given free "
             "too early, or did nobody wait for that?";
    }
    const std::string remedy = agent_of(earlier) == who.warp
                                   ? "a __syncwarp() (if other warps come here too, a barrier)"
                                   : "a barrier (__syncthreads(), or bar_sync() of the warps concerned)";
    return where + "the " + kind(write) + " at " + place + " is not ordered after the " +
           kind(earlier_write) + " at " + other + ". Is " + remedy + " missing between the two?";
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

constexpr size_t kShadowAtOnce = size_t(16) << 20;

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
    // Costs memory only where it is touched. Most of a small one will be, and a page that is read before it is
    // written interrupts all host threads: such a shadow gets its pages at once.
    const int pages = shadow_bytes(range) <= kShadowAtOnce ? MAP_POPULATE : MAP_NORESERVE;
    void* shadow = mmap(nullptr, shadow_bytes(range), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | pages, -1, 0);
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
