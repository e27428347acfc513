#include "common/emulator/global_races.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace emulator {

// An access: its epoch in the upper half, its site in the lower; zero: nobody. Touched by several host
// threads.
struct GlobalCell {
  std::atomic<uint64_t> write;
  std::atomic<uint64_t> read;
};

struct GlobalBlock {
  GlobalCell cell;            // of accesses to all its bytes
  std::atomic<bool> split;    // others have cells of their own
  std::atomic<bool> updated;  // some of it; always by cells
};

// The last update of a cell.
struct GlobalUpdate {
  std::atomic<uint64_t> last;
};

namespace {

constexpr uint64_t kSeveralCtas = uint64_t(1) << 63;  // have read
constexpr uint32_t kMaxEpochs = (1u << 31) - 1;

uint32_t epoch_of(uint64_t access) { return uint32_t((access & ~kSeveralCtas) >> 32); }

constexpr size_t kGlobalCellBytes = 2;
constexpr size_t kGlobalBlockBytes = 16;
constexpr size_t kGlobalCellsPerBlock = kGlobalBlockBytes / kGlobalCellBytes;

uintptr_t first_block(const GlobalRange& range) { return range.begin / kGlobalBlockBytes; }
size_t num_blocks(const GlobalRange& range) {
  return (range.begin + range.bytes - 1) / kGlobalBlockBytes - first_block(range) + 1;
}

}  // namespace

GlobalRaces::GlobalRaces(Launch& launch) : launch_(launch) {
  if (launch.num_ctas() >= kMaxEpochs) {
    throw Report(Bug::kLaunch, "cannot launch: the race detector can tell " + std::to_string(kMaxEpochs - 1) +
                                   " CTAs apart, but the grid has " + std::to_string(launch.num_ctas()));
  }
  num_epochs_ = uint32_t(launch.num_ctas());
  for (GlobalRange& range : launch.memory) {
    // Most of a small one will be touched, and a page that is read before it is written interrupts all host
    // threads.
    constexpr size_t kAtOnce = 1 << 20;
    const size_t count = num_blocks(range);
    range.blocks = static_cast<GlobalBlock*>(map_zeros(count * sizeof(GlobalBlock), count <= kAtOnce));
    range.cells =
        static_cast<GlobalCell*>(map_zeros(count * kGlobalCellsPerBlock * sizeof(GlobalCell), false));
    range.updates =
        static_cast<GlobalUpdate*>(map_zeros(count * kGlobalCellsPerBlock * sizeof(GlobalUpdate), false));
  }
}

GlobalRaces::~GlobalRaces() {
  for (GlobalRange& range : launch_.memory) {
    munmap(range.blocks, num_blocks(range) * sizeof(GlobalBlock));
    munmap(range.cells, num_blocks(range) * kGlobalCellsPerBlock * sizeof(GlobalCell));
    munmap(range.updates, num_blocks(range) * kGlobalCellsPerBlock * sizeof(GlobalUpdate));
  }
}

void GlobalRaces::start_cta() {
  cta->order = {.epoch = uint32_t(cta->index + 1), .previous_runs = launch_.overlaps};
}

// What an access touches of a block.
struct GlobalRaces::Part {
  GlobalBlock& block;
  GlobalCell* cells;      // of the whole block
  GlobalUpdate* updates;  // the same
  size_t first, last;     // cells that are touched
  uintptr_t end;

  bool is_whole() const { return first == 0 && last == kGlobalCellsPerBlock - 1; }
};

inline GlobalRaces::Part GlobalRaces::next_part(const GlobalRange& range, uintptr_t address, uintptr_t end) {
  const uintptr_t begin = address - address % kGlobalBlockBytes;
  const size_t index = begin / kGlobalBlockBytes - first_block(range);
  end = std::min(end, begin + kGlobalBlockBytes);
  return {.block = range.blocks[index],
          .cells = &range.cells[index * kGlobalCellsPerBlock],
          .updates = &range.updates[index * kGlobalCellsPerBlock],
          .first = (address - begin) / kGlobalCellBytes,
          .last = (end - 1 - begin) / kGlobalCellBytes,
          .end = end};
}

void GlobalRaces::access(uintptr_t address, size_t bytes, bool write, Site site) {
  cta->order.touched = true;
  if (bytes == 1) return;
  const GlobalRange& range = *find_range(address);
  const Use use = write ? Use::kWrite : Use::kRead;
  for (const uintptr_t end = address + bytes; address < end;) {
    const Part part = next_part(range, address, end);
    // Sequentially consistent: of two CTAs that collide at this very moment, at least one sees the other.
    if (part.end - address == kGlobalBlockBytes) {
      access_cell(part.block.cell, address, use, site);
      if (part.block.split.load()) {
        for (size_t i = 0; i < kGlobalCellsPerBlock; ++i) check_cell(part.cells[i], address, use, site);
      }
    } else {
      if (!part.block.split.load()) {
        part.cells[0].write.fetch_add(
            0);  // the first touch of a page of cells is a write: see the constructor
        part.block.split.store(true);
      }
      for (size_t i = part.first; i <= part.last; ++i) access_cell(part.cells[i], address, use, site);
      check_cell(part.block.cell, address, use, site);
    }
    if (part.block.updated.load()) [[unlikely]] {
      for (size_t i = part.first; i <= part.last; ++i) {
        const uint64_t earlier = part.updates[i].last.load();
        if (!happened_before(earlier)) report(address, earlier, Use::kUpdate, site, use);
      }
    }
    address = part.end;
  }
}

void GlobalRaces::update(uintptr_t address, size_t bytes, Site site) {
  GlobalOrder& order = cta->order;
  order.touched = true;
  const GlobalRange& range = *find_range(address);
  const uint64_t now = uint64_t(order.epoch) << 32 | site;
  for (const uintptr_t end = address + bytes; address < end;) {
    const Part part = next_part(range, address, end);
    for (size_t i = part.first; i <= part.last; ++i) part.updates[i].last.store(now);
    part.block.updated.store(true);
    check_cell(part.block.cell, address, Use::kUpdate, site);
    if (part.block.split.load()) {
      for (size_t i = part.first; i <= part.last; ++i) check_cell(part.cells[i], address, Use::kUpdate, site);
    }
    address = part.end;
  }
}

inline void GlobalRaces::access_cell(GlobalCell& cell, uintptr_t address, Use use, Site site) {
  const uint32_t epoch = cta->order.epoch;
  const uint64_t now = uint64_t(epoch) << 32 | site;
  if (use == Use::kWrite) {
    if (epoch_of(cell.write.load()) != epoch) {
      const uint64_t earlier = cell.write.exchange(now);
      if (!happened_before(earlier)) report(address, earlier, Use::kWrite, site, use);
    }
    const uint64_t read = cell.read.load();
    if (!happened_before(read)) report(address, read, Use::kRead, site, use);
  } else {
    const uint64_t read = cell.read.load();
    if (read == 0 || (epoch_of(read) != epoch && (read & kSeveralCtas) == 0)) {
      cell.read.store(is_mine(read) ? now : read | kSeveralCtas);
    }
    const uint64_t earlier = cell.write.load();
    if (!happened_before(earlier)) report(address, earlier, Use::kWrite, site, use);
  }
}

inline void GlobalRaces::check_cell(const GlobalCell& cell, uintptr_t address, Use use, Site site) {
  const uint64_t earlier = cell.write.load();
  if (!happened_before(earlier)) report(address, earlier, Use::kWrite, site, use);
  if (use == Use::kRead) return;
  const uint64_t read = cell.read.load();
  if (!happened_before(read)) report(address, read, Use::kRead, site, use);
}

uint64_t GlobalRaces::cta_of(uint32_t epoch) {
  if (epoch <= launch_.num_ctas()) return epoch - 1;
  const std::lock_guard lock(mutex_);
  return ctas_.at(epoch);
}

// Or nobody's.
inline bool GlobalRaces::is_mine(uint64_t access) {
  const uint32_t epoch = epoch_of(access);
  return epoch == 0 || epoch == cta->order.epoch || cta_of(epoch) == cta->index;
}

inline bool GlobalRaces::happened_before(uint64_t access) {
  const bool several = (access & kSeveralCtas) != 0;
  GlobalOrder& order = cta->order;
  const uint32_t epoch = epoch_of(access);
  if (!several) {
    if (epoch == 0 || epoch == order.epoch || epoch == order.known) return true;
    if (cta_of(epoch) == cta->index) {
      order.known = epoch;
      return true;
    }
  }
  const std::lock_guard lock(mutex_);
  if (order.polls) order.acquired = num_publications_;
  if (several) return order.acquired > 0;  // who all of them were is not known
  const auto published = published_.find(epoch);
  if (published == published_.end() || published->second > order.acquired) return false;
  order.known = epoch;
  return true;
}

void GlobalRaces::fence() {
  GlobalOrder& order = cta->order;
  if (!order.touched) return;
  const std::lock_guard lock(mutex_);
  if (num_epochs_ == kMaxEpochs) return;
  order.fenced.push_back(order.epoch);
  order.fenced.insert(order.fenced.end(), order.complete.begin(), order.complete.end());
  order.complete.clear();
  order.epoch = ++num_epochs_;
  order.touched = false;
  ctas_[order.epoch] = cta->index;
  cta->recent_reads.forget();
}

uint32_t GlobalRaces::start_group() {
  const std::lock_guard lock(mutex_);
  if (num_epochs_ == kMaxEpochs) return cta->order.epoch;
  ctas_[++num_epochs_] = cta->index;
  return num_epochs_;
}

void GlobalRaces::group_access(uint32_t group, uintptr_t address, size_t bytes, bool update, Site site) {
  uint32_t& epoch = cta->order.epoch;
  const uint32_t of_threads = std::exchange(epoch, group);
  update ? this->update(address, bytes, site) : access(address, bytes, /*write=*/true, site);
  epoch = of_threads;
}

void GlobalRaces::group_complete(uint32_t group) {
  cta->order.complete.push_back(group);
  cta->order.touched = true;
}

void GlobalRaces::publish() {
  GlobalOrder& order = cta->order;
  if (order.fenced.empty()) return;
  const std::lock_guard lock(mutex_);
  ++num_publications_;
  for (const uint32_t epoch : order.fenced) published_[epoch] = num_publications_;
  order.fenced.clear();
}

void GlobalRaces::acquire() {
  const std::lock_guard lock(mutex_);
  cta->order.acquired = num_publications_;
}

void GlobalRaces::report(uintptr_t address, uint64_t earlier, Use earlier_use, Site site, Use use) {
  constexpr const Rule& kRule = rule_named("race-global");
  if (!is_news(kRule, place_of(site), place_of(Site(earlier)))) return;
  const bool is_other = !is_mine(earlier);
  const auto word_for = [](Use its) {
    return its == Use::kUpdate ? "atomic update" : kind_of_access(its == Use::kWrite);
  };
  remark(kRule, *self) << "race between CTAs on global memory at "
                       << ReportWriter::Address{describe_address(address)} << ": the " << word_for(use)
                       << " at " << place_of(site) << " touches what the " << word_for(earlier_use) << " at "
                       << place_of(Site(earlier)) << " by "
                       << (is_other ? "CTA number " + std::to_string(cta_of(epoch_of(earlier)))
                                    : "another CTA")
                       << " touched in the same launch, and CTAs run in no particular order";
}

}  // namespace emulator
