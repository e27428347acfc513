#include "common/emulator/shared_races.h"

#include <algorithm>
#include <cstring>

#include "common/emulator/cluster_state.h"
#include "common/emulator/lane_copies.h"
#include "common/emulator/tile_layouts.h"

namespace emulator {
namespace {

using Address = ReportWriter::Address;
using Advice = ReportWriter::Advice;

constexpr const Rule& kMissingWait = rule_named("missing-wait");
constexpr const Rule& kCopyTooEarly = rule_named("copy-too-early");

const char* cluster_barrier() {
  return word("cluster_arrive() and cluster_wait()", "barrier.cluster.arrive and barrier.cluster.wait");
}

}  // namespace

// ---- Who knows what

inline bool SharedRaces::knows(const Clock& clock, Epoch epoch) const {
  const Time time = time_of(epoch);
  if (time <= before_) return true;
  if (is_copy(epoch)) {
    const size_t mbarrier = size_t(mbarrier_of(epoch));
    if (mbarrier >= kFirstRemoteWarp) {
      const size_t warp = mbarrier - kFirstRemoteWarp;
      if (warp >= clock.remote_writes.size()) return false;
      const RemoteWrites& writes = clock.remote_writes[warp];
      return time <= writes.all || ((writes.lanes >> remote_lane_of(epoch) & 1) != 0 && time <= writes.some);
    }
    if (mbarrier >= kMaxMbarriers) return time <= clock.products[mbarrier - kMaxMbarriers];
    return mbarrier < clock.copies.size() && time <= clock.copies[mbarrier];
  }
  const int warp = warp_of(epoch);
  if (time <= clock.all[warp]) return true;
  const unsigned lanes = is_whole_warp(epoch) ? 0xffffffff : 1u << lane_of(epoch);
  return (clock.lanes[warp] & lanes) == lanes && time <= clock.some[warp];
}

bool SharedRaces::is_known(const Clock& clock, Epoch epoch) const { return knows(clock, epoch); }

// Accesses of earlier launches no longer matter. But another kernel divides its shared memory in another way,
// and blocks with cells of two bytes are slow where it only makes accesses of four.
void SharedRaces::start_launch() {
  for (Shadow* shadow : {&dynamic_shared_, &static_shared_}) {
    std::fill(shadow->blocks.begin(), shadow->blocks.end(), Block{});
  }
}

void SharedRaces::cover_shared() { dynamic_shared_.cover(uintptr_t(cta->smem), cta->smem_bytes); }

void SharedRaces::start_cta() {
  cover_shared();
  static_shared_.cover(static_shared_begin(), static_shared_bytes());
  // All that earlier CTAs left in the cells lies before the new CTA's times: nothing needs clearing.
  if (latest_ >= kMaxTime / 2) {
    forget();
    cta->layouts->forget();
  }
  before_ = latest_;
  latest_ = before_ + 1;
  times_.fill(latest_);
  products_.fill(latest_);
  own_.fill(0);
  known_.fill(0);
  lanes_.resize(cta->fibers.size());
  for (int warp = 0; warp < cta->num_warps; ++warp) warps_[warp] = {};
  mbarriers_.clear();
  map_reads_.clear();
  store_sources_.clear();
  rank_ = cta->rank;
  cluster_collected_ = cluster_completed_ = {};
  remote_arrivals_.clear();
  remote_writers_.clear();
  has_forgotten_ = false;
}

// Only when the times run out, after half a million synchronisations of one CTA. The cluster's other CTAs
// must not know times that no longer exist.
void SharedRaces::forget_everything() {
  for (const Cta* one : cta->cluster->ctas) {
    one->races->forget();
    one->layouts->forget();
  }
}

void SharedRaces::forget() {
  for (Shadow* shadow : {&dynamic_shared_, &static_shared_}) {
    std::fill(shadow->blocks.begin(), shadow->blocks.end(), Block{});
    std::fill(shadow->cells.begin(), shadow->cells.end(), Cell{});
    std::fill(shadow->byte_cells.begin(), shadow->byte_cells.end(), Cell{});
  }
  warps_.fill({});
  own_.fill(0);
  known_.fill(0);
  barriers_.fill({});
  times_.fill(1);
  products_.fill(1);
  before_ = 0;
  latest_ = 1;
  map_reads_.clear();
  cluster_collected_ = cluster_completed_ = {};
  remote_arrivals_.clear();
  remote_writers_.clear();
  has_forgotten_ = true;
  for (size_t i = 0; i < mbarriers_.size(); ++i) mbarrier_initialised(int(i));
}

void SharedRaces::Shadow::cover(uintptr_t begin, size_t bytes) {
  base = begin / kBlockBytes * kBlockBytes;
  const size_t num_blocks = (begin - base + bytes + kBlockBytes - 1) / kBlockBytes;
  if (num_blocks <= blocks.size()) return;
  blocks.resize(num_blocks);
  cells.resize(num_blocks * kMaxCells);
  if (!byte_cells.empty()) byte_cells.resize(num_blocks * kBlockBytes);
}

void SharedRaces::tick(int warp) {
  if (times_[warp] == kMaxTime) forget_everything();
  latest_ = std::max(latest_, ++times_[warp]);
}

void SharedRaces::join(Clock& into, const Clock& from) const {
  const auto join_lanes = [](Time& all, Time& some, unsigned& lanes, Time from_all, Time from_some,
                             unsigned from_lanes) {
    all = std::max(all, from_all);
    lanes = (some > all ? lanes : 0) | (from_some > all ? from_lanes : 0);
    some = std::max(some, from_some);
  };
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    join_lanes(into.all[warp], into.some[warp], into.lanes[warp], from.all[warp], from.some[warp],
               from.lanes[warp]);
    into.products[warp] = std::max(into.products[warp], from.products[warp]);
  }
  if (into.copies.size() < from.copies.size()) into.copies.resize(from.copies.size());
  for (size_t i = 0; i < from.copies.size(); ++i) into.copies[i] = std::max(into.copies[i], from.copies[i]);
  if (into.remote_writes.size() < from.remote_writes.size()) {
    into.remote_writes.resize(from.remote_writes.size());
  }
  for (size_t i = 0; i < from.remote_writes.size(); ++i) {
    RemoteWrites& its = into.remote_writes[i];
    const RemoteWrites& other = from.remote_writes[i];
    join_lanes(its.all, its.some, its.lanes, other.all, other.some, other.lanes);
  }
}

void SharedRaces::join(KnowledgeOfCta& into, const KnowledgeOfCta& from) const {
  join(into.happened, from.happened);
  join(into.fenced, from.fenced);
}

void SharedRaces::join(Knowledge& into, const Knowledge& from) const {
  join(static_cast<KnowledgeOfCta&>(into), from);
  if (into.others.size() < from.others.size()) into.others.resize(from.others.size());
  for (size_t rank = 0; rank < from.others.size(); ++rank) join(into.others[rank], from.others[rank]);
}

void SharedRaces::join_from(int rank, Knowledge& into, const Knowledge& from) const {
  if (rank == rank_) return join(into, from);
  into.others.resize(cta->cluster->ctas.size());
  join(into.others[size_t(rank)], from);
  for (size_t i = 0; i < from.others.size(); ++i) {
    if (int(i) != rank) join(int(i) == rank_ ? into : into.others[i], from.others[i]);
  }
}

const SharedRaces::KnowledgeOfCta& SharedRaces::known_here(const Fiber& who) const {
  const SharedRaces& its = *cta_of(who).races;
  const Knowledge& known = its.knowledge_of(who);
  if (&its == this) return known;
  static const KnowledgeOfCta nothing;
  return known.others.empty() ? nothing : known.others[size_t(rank_)];
}

const SharedRaces::Knowledge& SharedRaces::knowledge_of(const Fiber& who) const {
  const bool own = ((own_[who.warp] >> who.lane) & 1) != 0;
  return own ? lanes_[size_t(who.warp * kWarpSize + who.lane)] : warps_[who.warp];
}

SharedRaces::Knowledge& SharedRaces::own_knowledge_of(const Fiber& who) {
  Knowledge& own = lanes_[size_t(who.warp * kWarpSize + who.lane)];
  if (((own_[who.warp] >> who.lane) & 1) == 0) own = warps_[who.warp];
  own_[who.warp] |= 1u << who.lane;
  return own;
}

// Everything that the thread itself has done.
void SharedRaces::add_own(Clock& clock, const Fiber& who) const {
  const int warp = who.warp;
  const unsigned others = clock.some[warp] > clock.all[warp] ? clock.lanes[warp] : 0;
  clock.lanes[warp] = others | 1u << who.lane;
  clock.some[warp] = times_[warp];
}

void SharedRaces::release(Knowledge& to, const Fiber& who) {
  join(to, knowledge_of(who));
  add_own(to.happened, who);
  tick(who.warp);
}

// All that its lanes know and have done becomes known to the whole warp.
void SharedRaces::gather(int warp) {
  Knowledge& known = warps_[warp];
  for (const int lane : Bits{own_[warp]}) join(known, lanes_[size_t(warp * kWarpSize + lane)]);
  own_[warp] = 0;
  known.happened.all[warp] = times_[warp];
}

void SharedRaces::warp_synchronised(int warp) {
  gather(warp);
  tick(warp);
}

void SharedRaces::cta_synchronised() {
  for (int warp = 0; warp < cta->num_warps; ++warp) gather(warp);
  for (int warp = 1; warp < cta->num_warps; ++warp) join(warps_[0], warps_[warp]);
  for (int warp = 1; warp < cta->num_warps; ++warp) warps_[warp] = warps_[0];
  for (int warp = 0; warp < cta->num_warps; ++warp) tick(warp);
}

void SharedRaces::barrier_arrival(int barrier, const Fiber& who, bool first_of_round) {
  if (first_of_round) barriers_[barrier] = {};
  release(barriers_[barrier], who);
}

void SharedRaces::barrier_departure(int barrier, int warp) {
  gather(warp);
  join(warps_[warp], barriers_[barrier]);
  tick(warp);
}

void SharedRaces::mbarrier_initialised(int mbarrier) {
  if (mbarriers_.size() <= size_t(mbarrier)) mbarriers_.resize(size_t(mbarrier) + 1);
  mbarriers_[size_t(mbarrier)] = {};
  mbarriers_[size_t(mbarrier)].time = before_ + 1;
}

void SharedRaces::mbarrier_arrival(int mbarrier, const Fiber& who) {
  release(mbarriers_[size_t(mbarrier)].collected, who);
}

void SharedRaces::mbarrier_completed(int mbarrier) {
  Mbarrier& its = mbarriers_[size_t(mbarrier)];
  // A load that is still on its way is not part of this phase, nor are those that were issued after it.
  Time landed = its.time;
  for (const Time issued : its.loads_on_way) landed = std::min(landed, issued - 1);
  std::vector<Time>& copies = its.collected.happened.copies;
  if (copies.size() <= size_t(mbarrier)) copies.resize(size_t(mbarrier) + 1);
  copies[size_t(mbarrier)] = landed;
  its.completed = its.collected;
  if (!its.remote_collected.others.empty()) its.remote_completed = its.remote_collected;
}

void SharedRaces::mbarrier_waited(int mbarrier, const Fiber& who, bool cluster_scope) {
  const Mbarrier& its = mbarriers_[size_t(mbarrier)];
  join(own_knowledge_of(who), its.completed);
  if (cluster_scope) join(own_knowledge_of(who), its.remote_completed);
}

// ---- Who knows what in a cluster

void SharedRaces::remote_read(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  const Clock& known = known_here(who).happened;
  for_each_block(address, bytes, [&](Block&, std::span<Cell> cells, bool) {
    for (const Cell& cell : cells) {
      if (is_known(known, cell.write)) continue;
      report(who, address, cell.write, true, thread_epoch(0, who, site), false);
    }
  });
}

void SharedRaces::remote_access(const char* op, const Fiber& who, uintptr_t address, size_t bytes, bool write,
                                Site site) {
  if (write) check_store_sources(who, address, bytes, site);
  SharedRaces& its = *cta_of(who).races;
  // A thread that hears anything of a CTA hears of a time of one of its threads.
  const Clock& heard = known_here(who).happened;
  const auto is_time = [](Time time) { return time > 0; };
  if (!has_forgotten_ && std::none_of(heard.some.begin(), heard.some.end(), is_time)) {
    fail(Bug::kCluster, who) << op << " at " << place_of(site) << ": " << describe_block(*cta)
                             << " of the cluster may not have begun: this thread has heard nothing of it. "
                             << Advice() << "Is a " << cluster_barrier() << " missing in front of it?";
  }
  const size_t warp = size_t(its.rank_ * cta->num_warps + who.warp);
  const auto find_writer = [&]() -> RemoteWriter& {
    if (remote_writers_.size() <= warp) remote_writers_.resize(warp + 1, {before_ + 1, 0, {}});
    return remote_writers_[warp];
  };
  if (find_writer().time == kMaxTime) forget_everything();
  RemoteWriter& writer = find_writer();
  // Others hear together of what lies between two times of the warp.
  const Time time_there = its.times_[who.warp];
  if (writer.time_there != time_there) latest_ = std::max(latest_, ++writer.time);
  writer.time_there = time_there;
  auto place = std::find(remote_sites_.begin(), remote_sites_.end(), site);
  if (place == remote_sites_.end()) place = remote_sites_.insert(place, site);
  const auto place_and_lane = Site(place - remote_sites_.begin()) | Site(who.lane) << kRemoteLaneShift;
  const Epoch now = copy_epoch(writer.time, kFirstRemoteWarp + int(warp), place_and_lane);
  writer.last[who.lane] = now;

  // The thread itself knows of it.
  Knowledge& own = its.own_knowledge_of(who);
  own.others.resize(cta->cluster->ctas.size());
  Clock& known = own.others[size_t(rank_)].happened;
  if (known.remote_writes.size() <= warp) known.remote_writes.resize(warp + 1);
  RemoteWrites& writes = known.remote_writes[warp];
  if (writes.lanes == 0xffffffff) writes.all = std::max(writes.all, writes.some);
  writes.lanes = (writes.some > writes.all ? writes.lanes : 0) | 1u << who.lane;
  writes.some = writer.time;
  const auto check = [&](Epoch earlier, bool earlier_write) {
    if (is_known(known, earlier)) return;
    report(who, address, earlier, earlier_write, thread_epoch(0, who, site), write);
  };
  for_each_block(address, bytes, [&](Block&, std::span<Cell> cells, bool) {
    for (Cell& cell : cells) {
      check(cell.write, true);
      if (write) {
        for (const Epoch read : cell.reads) check(read, false);
        cell = {now, {}};
      } else {
        const bool is_first = cell.reads[0] == 0 || is_known(known, cell.reads[0]);
        cell.reads[is_first ? 0 : 1] = now;
      }
    }
  });
}

void SharedRaces::must_hear_of_arrival(const Fiber& who, Location at) {
  const SharedRaces& its = *cta_of(who).races;
  const Epoch now = thread_epoch(its.times_[who.warp], who, 0);
  const auto is_same_thread = [&](const RemoteArrival& other) {
    return other.rank == its.rank_ && warp_of(other.epoch) == who.warp && lane_of(other.epoch) == who.lane;
  };
  std::erase_if(remote_arrivals_, is_same_thread);
  remote_arrivals_.push_back({its.rank_, now, at});
}

void SharedRaces::relaxed_arrival(int mbarrier, const Fiber& who) {
  const SharedRaces& its = *cta_of(who).races;
  Knowledge known = its.knowledge_of(who);
  const auto keep_asynchronous = [](KnowledgeOfCta& of) {
    for (Clock* clock : {&of.happened, &of.fenced}) {
      clock->all = clock->some = {};
      clock->lanes = {};
      clock->remote_writes.clear();
    }
  };
  keep_asynchronous(known);
  for (KnowledgeOfCta& other : known.others) keep_asynchronous(other);
  join_from(its.rank_, mbarriers_[size_t(mbarrier)].collected, known);
}

void SharedRaces::remote_arrival(int mbarrier, const Fiber& who) {
  SharedRaces& its = *cta_of(who).races;
  Knowledge known;
  its.release(known, who);
  join_from(its.rank_, mbarriers_[size_t(mbarrier)].remote_collected, known);
}

void SharedRaces::check_exit(const Fiber& last) const {
  if (remote_arrivals_.empty() && remote_writers_.empty()) return;
  Knowledge known;
  for (int warp = 0; warp < cta->num_warps; ++warp) {
    join(known, warps_[warp]);
    for (const int lane : Bits{own_[warp]}) join(known, lanes_[size_t(warp * kWarpSize + lane)]);
  }
  known.others.resize(cta->cluster->ctas.size());
  for (const RemoteArrival& arrival : remote_arrivals_) {
    const Cta& other = *cta->cluster->ctas[size_t(arrival.rank)];
    if (other.races->is_known(known.others[size_t(arrival.rank)].happened, arrival.epoch)) continue;
    known = {};
    fail(Bug::kCluster, last) << "the CTA exits and has not heard of the arrival at its mbarrier at "
                              << arrival.at << " by " << describe_block(other) << " warp "
                              << warp_of(arrival.epoch) << " lane " << lane_of(arrival.epoch)
                              << ": that arrival could come when this CTA is gone. " << Advice() << "Is a "
                              << cluster_barrier() << " missing at the kernel's end, or an "
                              << word("mbarrier_wait_cluster()", "mbarrier.try_wait with .acquire.cluster")
                              << " for that phase?";
  }
  for (const RemoteWriter& writer : remote_writers_) {
    const auto is_unknown = [&](Epoch one) { return one != 0 && !is_known(known.happened, one); };
    const auto found = std::find_if(std::begin(writer.last), std::end(writer.last), is_unknown);
    if (found == std::end(writer.last)) continue;
    known = {};
    fail(Bug::kCluster, last) << "the CTA exits and has not heard of the access to its shared memory at "
                              << place_of(site_of_epoch(*found)) << " by " << describe_thread_of(*found)
                              << ": that access could come when this CTA is gone. " << Advice() << "Is a "
                              << cluster_barrier() << " missing behind it?";
  }
}

void SharedRaces::cluster_arrival(const Fiber& who) {
  SharedRaces& first = *cta->cluster->ctas[0]->races;
  Knowledge known;
  release(known, who);
  first.join_from(rank_, first.cluster_collected_, known);
}

void SharedRaces::cluster_waited(const Fiber& who) {
  join_from(0, own_knowledge_of(who), cta->cluster->ctas[0]->races->cluster_completed_);
}

void SharedRaces::proxy_fence(const Fiber& who) {
  Knowledge& own = own_knowledge_of(who);
  join(own.fenced, own.happened);
  add_own(own.fenced, who);
  tick(who.warp);
}

// ---- accesses

void SharedRaces::Shadow::split(Block& block, int cell_shift) {
  if (cell_shift == 0 && byte_cells.empty()) byte_cells.resize(blocks.size() * kBlockBytes);
  const Block before = block;
  const Cell* const larger = before.cell_shift == kBlockShift ? &before.cell : cells_of(block);
  block.cell_shift = uint8_t(cell_shift);
  Cell* const its = cells_of(block);  // perhaps where the larger ones are
  for (size_t i = kBlockBytes >> cell_shift; i-- > 0;) its[i] = larger[i >> (before.cell_shift - cell_shift)];
}

// visit(block, cells, whole) for each block of these bytes: all of it, or a part. A block of which no part
// has been touched has one cell.
template <typename Visit>
inline void SharedRaces::for_each_block(uintptr_t address, size_t bytes, Visit visit) {
  Shadow& shadow = shadow_of(address);
  for (const uintptr_t end = address + bytes; address < end;) {
    Block& block = shadow.block_at(address);
    const uintptr_t begin = address - address % kBlockBytes;
    const uintptr_t part_end = std::min(end, begin + kBlockBytes);
    const bool whole = part_end - address == kBlockBytes;
    if (whole && block.cell_shift == kBlockShift) {
      visit(block, std::span(&block.cell, 1), true);
    } else {
      const uintptr_t ends = address | part_end;
      const int wanted = ends % 4 == 0 ? 2 : ends % 2 == 0 ? 1 : 0;
      if (block.cell_shift > wanted) shadow.split(block, wanted);
      Cell* const cells = shadow.cells_of(block);
      const size_t first = (address - begin) >> block.cell_shift;
      const size_t last = (part_end - 1 - begin) >> block.cell_shift;
      visit(block, std::span(cells + first, last - first + 1), whole);
    }
    address = part_end;
  }
}

inline bool SharedRaces::happened_before(Epoch earlier, const Fiber& who, const Clock& known) const {
  return is_by(who, earlier) || knows(known, earlier);
}

// To all of its lanes. What all know now they will know later, too.
inline bool SharedRaces::known_to_warp(Epoch earlier, int warp) {
  if (time_of(earlier) <= before_ || same_time(earlier, known_[warp])) return true;
  bool known = knows(warps_[warp].happened, earlier);
  if (!known && own_[warp] == 0xffffffff) {
    known = true;
    for (int lane = 0; lane < kWarpSize && known; ++lane) {
      known = knows(lanes_[size_t(warp * kWarpSize + lane)].happened, earlier);
    }
  }
  if (known) known_[warp] = earlier;
  return known;
}

inline void SharedRaces::access_cell(Cell& cell, uintptr_t address, const Fiber& who, const Clock& known,
                                     Epoch now, bool write) {
  // Whatever could be unordered with this access was reported when its first twin was checked.
  if (same_time(cell.write, now) || (!write && includes(cell.reads[0], now))) return;
  if (!happened_before(cell.write, who, known)) {
    if (written_next_ && is_write_of_lane(cell.write, who.warp)) {
      doubtful_.earlier = cell.write;
    } else {
      report(who, address, cell.write, true, now, write);
    }
  }
  if (write) {
    for (const Epoch read : cell.reads) {
      if (!happened_before(read, who, known)) report(who, address, read, false, now, write);
    }
    cell = {now, {}};
  } else {
    // Keep a read that is still unordered with this one beside it. What a lane has read is done when its
    // whole warp reads.
    const Epoch other = cell.reads[0];
    const bool by_this_warp = is_whole_warp(now) && !is_copy(other) && warp_of(other) == who.warp;
    cell.reads[by_this_warp || happened_before(other, who, known) ? 0 : 1] = now;
  }
}

inline void SharedRaces::access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Epoch now) {
  const Clock& known = knowledge_of(who).happened;
  Block& block = shadow_of(address).block_at(address);
  const size_t begin = address % kBlockBytes, last = begin + bytes - 1;
  // Most accesses are to one cell of a block that has such cells already.
  if (begin >> block.cell_shift == last >> block.cell_shift && bytes == size_t(1) << block.cell_shift) {
    Cell& cell = block.cell_shift == kBlockShift
                     ? block.cell
                     : shadow_of(address).cells_of(block)[begin >> block.cell_shift];
    access_cell(cell, address, who, known, now, write);
    return;
  }
  access_blocks(who, address, bytes, write, now);
}

void SharedRaces::access_blocks(const Fiber& who, uintptr_t address, size_t bytes, bool write, Epoch now) {
  const Clock& known = knowledge_of(who).happened;
  for_each_block(address, bytes, [&](Block& block, std::span<Cell> cells, bool whole) {
    for (Cell& cell : cells) access_cell(cell, address, who, known, now, write);
    if (write && whole) {
      block.cell_shift = kBlockShift;
      block.cell = {now, {}};
    }
  });
}

void SharedRaces::shared_access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Site site,
                                bool written_next) {
  const Epoch now = thread_epoch(times_[who.warp], who, site);
  if (!write) return access(who, address, bytes, false, now);
  if (!store_sources_.empty()) check_store_sources(who, address, bytes, site);
  written_next_ = written_next;
  doubtful_.earlier = 0;
  access(who, address, bytes, write, now);
  written_next_ = false;
  if (doubtful_.earlier == 0) [[likely]]
    return;
  doubtful_.address = address;
  doubtful_.bytes = bytes;
  doubtful_.now = now;
  std::memcpy(doubtful_.before, reinterpret_cast<const void*>(address), bytes);
  has_doubtful_write = true;
}

void SharedRaces::settle_doubtful_write() {
  const DoubtfulWrite& its = doubtful_;
  if (std::memcmp(its.before, reinterpret_cast<const void*>(its.address), its.bytes) == 0) return;
  report(*self, its.address, its.earlier, true, its.now, true);
}

void settle_doubtful_write() {
  has_doubtful_write = false;
  cta->races->settle_doubtful_write();
}

void SharedRaces::warp_read_begins(const Fiber& who, uintptr_t address, Site site) {
  access(who, address, kBlockBytes, false, warp_epoch(times_[who.warp], who, site));
}

inline void SharedRaces::check_lanes(int warp, unsigned lanes, uintptr_t address, Epoch earlier,
                                     bool earlier_write, Epoch now, bool write) {
  if (known_to_warp(earlier, warp)) return;
  for (const int lane : Bits{lanes}) {
    const Fiber& who = cta->fiber(warp, lane);
    if (happened_before(earlier, who, knowledge_of(who).happened)) continue;
    report(who, address, earlier, earlier_write, now, write);
  }
}

void SharedRaces::warp_reads(const Fiber& who, uintptr_t address, unsigned receivers, Site site) {
  const Epoch now = warp_epoch(times_[who.warp], who, site);
  for_each_block(address, kBlockBytes, [&](Block&, std::span<Cell> cells, bool) {
    for (const Cell& cell : cells) {
      check_lanes(who.warp, receivers, address, cell.write, true, now, false);
    }
  });
}

void SharedRaces::warp_writes(const Fiber& who, uintptr_t address, unsigned writers, Site site) {
  if (!store_sources_.empty()) check_store_sources(who, address, kBlockBytes, site);
  const Epoch now = warp_epoch(times_[who.warp], who, site);
  for_each_block(address, kBlockBytes, [&](Block& block, std::span<Cell> cells, bool) {
    for (const Cell& cell : cells) {
      if (!is_write_of_warp(cell.write, who.warp)) {
        check_lanes(who.warp, writers, address, cell.write, true, now, true);
      }
      for (const Epoch read : cell.reads) {
        check_lanes(who.warp, writers, address, read, false, now, true);
      }
    }
    block = {.cell = {now, {}}};
  });
}

SharedRaces::Time SharedRaces::load_issued(int mbarrier, const Fiber& who, uintptr_t address, size_t bytes,
                                           Site site) {
  check_store_sources(who, address, bytes, site);
  if (mbarriers_[size_t(mbarrier)].time == kMaxTime) forget_everything();
  Mbarrier& its = mbarriers_[size_t(mbarrier)];
  latest_ = std::max(latest_, ++its.time);
  const Epoch now = copy_epoch(its.time, mbarrier, site);
  const KnowledgeOfCta& known = known_here(who);
  const bool is_own = &cta_of(who) == cta;
  const auto is_over = [&](Epoch earlier) {
    return is_known(known.happened, earlier) || (is_own && is_by(who, earlier));
  };
  uintptr_t at = address;
  Cell checked;  // neighbours mostly have the same past
  for_each_block(address, bytes, [&](Block& block, std::span<Cell> cells, bool) {
    for (const Cell& cell : cells) {
      if (std::memcmp(&cell, &checked, sizeof(Cell)) != 0) {
        checked = cell;
        if (!is_over(cell.write)) report(who, at, cell.write, true, now, true);
        for (const Epoch read : cell.reads) {
          if (!is_over(read)) report(who, at, read, false, now, true);
          check_fence(who, known, at, read, false, site, true);
        }
        check_fence(who, known, at, cell.write, true, site, true);
      }
      at += kBlockBytes / cells.size();
    }
    block = {.cell = {now, {}}};
  });
  its.loads_on_way.push_back(its.time);
  return its.time;
}

void SharedRaces::load_landed(int mbarrier, Time issued) {
  std::erase(mbarriers_[size_t(mbarrier)].loads_on_way, issued);
}

void SharedRaces::load_reads_map(int mbarrier, uintptr_t map, Site site) {
  std::erase_if(map_reads_,
                [&](const MapRead& read) { return read.map == map && mbarrier_of(read.load) == mbarrier; });
  map_reads_.push_back({map, copy_epoch(mbarriers_[size_t(mbarrier)].time, mbarrier, site)});
}

void SharedRaces::check_map_reads(const Fiber& who, uintptr_t address, size_t bytes, Site site) const {
  const Clock& known = knowledge_of(who).happened;
  for (const MapRead& read : map_reads_) {
    const bool overlaps = address < read.map + kTensorMapBytes && address + bytes > read.map;
    if (!overlaps || is_known(known, read.load)) continue;
    const Place write = place_of(site), load = place_of(Site(read.load));
    if (!is_news(kMissingWait, write, load)) continue;
    remark(kMissingWait, who) << "race on the tensor map at " << Address{describe_address(read.map)}
                              << ": the write at " << write << " changes it, and the copy issued at " << load
                              << " may still read it: this thread has not waited for that copy";
  }
}

void SharedRaces::store_issued(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  shared_access(who, address, bytes, false, site);
  uintptr_t at = address;
  Epoch checked = 0;
  for_each_block(address, bytes, [&](Block&, std::span<Cell> cells, bool) {
    for (const Cell& cell : cells) {
      if (cell.write != checked) {
        check_fence(who, knowledge_of(who), at, cell.write, true, site, false);
      }
      checked = cell.write;
      at += kBlockBytes / cells.size();
    }
  });
  store_sources_.push_back({address, bytes, &who, site});
  if (std::find(store_sites_.begin(), store_sites_.end(), site) == store_sites_.end()) {
    store_sites_.push_back(site);
  }
}

void SharedRaces::store_waited(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  const auto is_this = [&](const StoreSource& source) {
    return source.begin == address && source.who == &who && source.site == site;
  };
  store_sources_.erase(std::find_if(store_sources_.begin(), store_sources_.end(), is_this));
  // Now it is a read like others by this thread: whoever writes next must have heard from it.
  shared_access(who, address, bytes, false, site);
}

void SharedRaces::overwrite(uintptr_t address, size_t bytes, Cell cell) {
  if (bytes == kBlockBytes) {
    shadow_of(address).block_at(address) = {.cell = cell};
  } else {
    for_each_block(address, bytes,
                   [&](Block&, std::span<Cell> cells, bool) { std::ranges::fill(cells, cell); });
  }
}

void SharedRaces::lane_copy_issued(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  shared_access(who, address, bytes, true, site);
  overwrite(address, bytes, {on_way_epoch(who, site), {}});
}

void SharedRaces::lane_copy_waited(const Fiber& who, uintptr_t address, size_t bytes, Site site) {
  overwrite(address, bytes, {thread_epoch(times_[who.warp], who, site), {}});
}

void SharedRaces::forget(uintptr_t address, size_t bytes) { overwrite(address, bytes, {}); }

SharedRaces::Time SharedRaces::product_issued(int warp) {
  if (products_[warp] == kMaxTime) forget_everything();
  latest_ = std::max(latest_, ++products_[warp]);
  return products_[warp];
}

void SharedRaces::product_reads(int warp, Time issued, uintptr_t address, Site site) {
  const Epoch now = copy_epoch(issued, kMaxMbarriers + warp, site);
  for_each_block(address, kBlockBytes, [&](Block&, std::span<Cell> cells, bool) {
    for (Cell& cell : cells) {
      if (same_time(cell.reads[0], now) || same_time(cell.reads[1], now)) continue;
      check_lanes(warp, 0xffffffff, address, cell.write, true, now, false);
      // The warp reads as one, so one lane's fence does for all.
      if (!is_asynchronous(cell.write)) {
        const Fiber& any = cta->fiber(warp, 0);
        check_fence(any, knowledge_of(any), address, cell.write, true, site, false, "wgmma");
      }
      // Of a warp's products the latest is complete last.
      const Epoch other = cell.reads[0];
      const bool by_this_warp = is_product(other) && mbarrier_of(other) == kMaxMbarriers + warp;
      const Clock& known = warps_[warp].happened;
      cell.reads[by_this_warp || knows(known, other) ? 0 : 1] = now;
    }
  });
}

void SharedRaces::product_waited(int warp, int of, Time issued) {
  const auto note = [&](Clock& clock) { clock.products[of] = std::max(clock.products[of], issued); };
  note(warps_[warp].happened);
  for (const int lane : Bits{own_[warp]}) note(lanes_[size_t(warp * kWarpSize + lane)].happened);
}

// ---- reports

void SharedRaces::check_store_sources(const Fiber& who, uintptr_t address, size_t bytes, Site site) const {
  for (const StoreSource& source : store_sources_) {
    if (address >= source.begin + source.bytes || source.begin >= address + bytes) continue;
    if (!is_news(kMissingWait, place_of(site), place_of(source.site))) continue;
    remark(kMissingWait, who) << "race on shared memory at " << Address{describe_shared(address)}
                              << ": the write at " << place_of(site) << " overwrites what the bulk store at "
                              << place_of(source.site) << " by warp " << source.who->warp << " lane "
                              << source.who->lane << " may still be reading. " << Advice() << "Is a "
                              << word("tma_store_wait_read", "cp.async.bulk.wait_group.read")
                              << " missing before this write?";
  }
}

void SharedRaces::check_fence(const Fiber& who, const KnowledgeOfCta& known, uintptr_t address, Epoch earlier,
                              bool earlier_write, Site site, bool overwrites, const char* who_does) const {
  if (is_asynchronous(earlier) || knows(known.fenced, earlier)) return;
  const bool by_store =
      std::find(store_sites_.begin(), store_sites_.end(), Site(earlier)) != store_sites_.end();
  if (by_store) return;
  const bool is_own = &cta_of(who) == cta;
  if (!is_known(known.happened, earlier) && !(is_own && is_by(who, earlier))) return;
  const Place earlier_place = place_of(site_of_epoch(earlier));
  if (!is_news(rule_of(Bug::kProxyFence), place_of(site), earlier_place)) return;
  remark(rule_of(Bug::kProxyFence), who)
      << "the " << who_does << " at " << place_of(site) << (overwrites ? " overwrites" : " reads")
      << " shared memory at " << Address{describe_shared(address)}
      << (is_own ? "" : " of " + describe_block(*cta)) << ", which was "
      << (earlier_write ? "written" : "read") << " at " << earlier_place << " by "
      << describe_thread_of(earlier) << ", and no " << word("fence_proxy_async()", "fence.proxy.async")
      << " lies between the two. " << Advice() << "It must come after the " << kind_of_access(earlier_write)
      << (is_own ? std::string(", or before the ") + who_does + " and after what this thread waits for"
                 : ", in that CTA");
}

std::string SharedRaces::describe_thread_of(Epoch epoch) const {
  const auto thread = [](int warp, int lane) {
    return "warp " + std::to_string(warp) + " lane " + std::to_string(lane);
  };
  if (!is_remote_write(epoch)) return thread(warp_of(epoch), lane_of(epoch));
  const int warp = mbarrier_of(epoch) - kFirstRemoteWarp;
  return describe_block(*cta->cluster->ctas[size_t(warp / cta->num_warps)]) + " " +
         thread(warp % cta->num_warps, remote_lane_of(epoch));
}

Site SharedRaces::site_of_epoch(Epoch epoch) const {
  constexpr Site kIndices = (Site(1) << kRemoteLaneShift) - 1;
  return is_remote_write(epoch) ? remote_sites_[epoch & kIndices] : Site(epoch);
}

void SharedRaces::report(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                         bool write) const {
  const bool is_own = &cta_of(who) == cta;
  const bool by_copy = is_copy(now) && !is_product(now);
  const Rule& rule = is_product(earlier) || is_on_way(earlier) || is_asynchronous(earlier) ? kMissingWait
                     : by_copy                                                             ? kCopyTooEarly
                               : rule_of(Bug::kRace);
  const Place place = place_of(Site(now)), earlier_place = place_of(site_of_epoch(earlier));
  if (!is_news(rule, place, earlier_place)) return;
  const char* const earlier_kind = kind_of_access(earlier_write);
  const Advice advice;
  Remark text = remark(rule, who);
  text << "race on shared memory at " << Address{describe_shared(address)}
       << (is_own ? "" : " of " + describe_block(*cta)) << ": "
       << (by_copy           ? "the copy issued"
           : is_product(now) ? "the wgmma"
                             : std::string("the ") + kind_of_access(write))
       << " at " << place;
  if (is_product(earlier)) {
    text << " overwrites what the wgmma at " << earlier_place << " by warp "
         << mbarrier_of(earlier) - kMaxMbarriers
         << " may still be reading: this thread has not heard that it is complete. " << advice << "Is a "
         << word("warpgroup_wait", "wgmma.wait_group")
         << " missing before the memory is released, or does it leave the group pending?";
  } else if (is_on_way(earlier)) {
    const Fiber& issuer = cta->fiber(warp_of(earlier), lane_of(earlier));
    text << " touches what the cp.async at " << earlier_place << " by warp " << issuer.warp << " lane "
         << issuer.lane << " brings, and " << advice
         << cta->lane_copies->describe_missing(issuer, address, who);
  } else if (is_asynchronous(earlier)) {
    text << " touches what the copy issued at " << earlier_place
         << " brings, and this thread has not waited for that: " << advice << "is an "
         << word("mbarrier_wait", "mbarrier.try_wait")
         << " missing, or was it for another phase or another mbarrier?";
  } else if (by_copy) {
    text << " overwrites what the " << earlier_kind << " at " << earlier_place << " by "
         << describe_thread_of(earlier) << " may still need: this thread has not heard that it is done. "
         << advice << "Was the memory released too early, or did nobody wait for its release?";
  } else {
    const bool between_ctas = !is_own || is_remote_write(earlier);
    text << " is not ordered after the " << earlier_kind << " at " << earlier_place << " by "
         << describe_thread_of(earlier) << ". " << advice << "Is "
         << (between_ctas ? std::string("a ") + cluster_barrier() + " of all threads"
             : warp_of(earlier) == who.warp
                 ? "a __syncwarp() (if other warps come here too, a barrier)"
                 : word("a barrier (__syncthreads(), or bar_sync() of the warps concerned)",
                        "a barrier (__syncthreads(), or bar.sync of the warps concerned)"))
         << " missing between the two?";
  }
}

}  // namespace emulator
