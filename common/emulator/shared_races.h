// Data races in shared memory: two accesses to the same bytes, at least one of them a write, with nothing
// that orders them. Found by vector clocks.
//
// Every warp has a time of its own, which ticks whenever one of its threads lets others know what it has done
// (a barrier, an arrival, a fence). An access is remembered as (time, warp, lane). It happened before the
// current one if the same thread made it, or if the current thread has since learned, through a barrier, of
// that warp and that time. The copies that an mbarrier tracks write in the mbarrier's name, at a time that
// only those threads learn which wait until the copies are complete. A warp's products (wgmma) read in the
// same way.
//
// Most accesses are of 16 bytes on a multiple of 16: copies, vector loads, rows of ldmatrix. So memory is
// remembered in blocks of 16 bytes, and by cells of four bytes, two or one only where somebody has touched a
// part of a block.
//
// TMA accesses shared memory through a separate path, the async proxy. What threads have written must not
// only have happened before a copy; a proxy fence must also follow the write. That is learned in the same
// way.
//
// A CTA of a cluster keeps its own times, and its threads know of those of the others as well, once a cluster
// barrier or an arrival at one of their mbarriers has told them. Such an arrival counts only for threads that
// wait for it with cluster scope. Copies, arrivals and stores reach into another CTA's memory, where the
// stores of each warp have times of their own.
//
// Lanes of a warp may write the same value to the same place: it does not matter whose write is the last.
//
// It errs on the side of silence: __syncwarp of some lanes counts for the whole warp; when several lanes of a
// warp let others know at different times, the latest counts for each; of several concurrent readers two are
// remembered; atomics and volatile accesses are not looked at.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/emulator/core.h"

namespace emulator {

constexpr size_t kTensorMapBytes = 128;  // of a CUtensorMap

class SharedRaces {
 public:
  using Time = uint32_t;

  void start_launch();
  void start_cta();
  void cover_shared();  // of which there is more than when the CTA started
  // written_next: a write of plain code, so that the value is there when the thread next comes to the
  // emulator.
  void shared_access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Site site,
                     bool written_next = false);
  void settle_doubtful_write();  // see core.h
  // A block that a whole warp reads together. A thread that overwrites it must have heard from all of the
  // warp's lanes. The lane that hands in the address must know what is in the block when that lane comes, and
  // the lanes that receive it must know when all have come.
  void warp_read_begins(const Fiber& who, uintptr_t address, Site site);
  void warp_reads(const Fiber& who, uintptr_t address, unsigned receivers, Site site);
  // A block that a whole warp writes together. The lanes that write must know what was there, and a thread
  // that touches it next must have heard from all of the warp.
  void warp_writes(const Fiber& who, uintptr_t address, unsigned writers, Site site);

  void warp_synchronised(int warp);
  void cta_synchronised();
  // What the thread did and knows becomes known to the barrier, and what the barrier knows, to the warp.
  void barrier_arrival(int barrier, const Fiber& who, bool first_of_round);
  void barrier_departure(int barrier, int warp);

  static constexpr int kMaxRemoteWarps = kMaxClusterSize * kMaxWarps;

  // The same for an mbarrier, by its number. A thread that waits learns what was known when the last phase
  // completed.
  static constexpr int kMaxMbarriers = 2048 - kMaxWarps - kMaxRemoteWarps;
  void mbarrier_initialised(int mbarrier);
  void mbarrier_arrival(int mbarrier, const Fiber& who);
  void mbarrier_completed(int mbarrier);
  void mbarrier_waited(int mbarrier, const Fiber& who, bool cluster_scope);

  // By a thread of another CTA of the cluster: the copy engine reads these bytes for it, it reads or writes
  // them itself, it arrives here.
  void remote_read(const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void remote_access(const char* op, const Fiber& who, uintptr_t address, size_t bytes, bool write,
                     Site site);
  void remote_arrival(int mbarrier, const Fiber& who);
  void must_hear_of_arrival(const Fiber& who, Location at);  // before it exits
  void check_exit(const Fiber& last) const;  // of the CTA's last thread: has it heard of these and of writes?
  // By a thread of this CTA or another one: it tells only of copies and products that it has waited for.
  void relaxed_arrival(int mbarrier, const Fiber& who);

  // The cluster's barrier, of which the CTA of rank 0 keeps what is known.
  void cluster_arrival(const Fiber& who);
  void cluster_completed() { cluster_completed_ = cluster_collected_; }
  void cluster_waited(const Fiber& who);

  void proxy_fence(const Fiber& who);

  // Between the two of a load, and then until they have waited for it, threads may not touch these bytes.
  // Returns when it was issued.
  Time load_issued(int mbarrier, const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void load_landed(int mbarrier, Time issued);
  // The load that this mbarrier tracks reads a tensor map in global memory: until they have waited for the
  // load, threads may not write the map.
  void load_reads_map(int mbarrier, uintptr_t map, Site site);
  void global_write(const Fiber& who, uintptr_t address, size_t bytes, Site site) const {
    if (!map_reads_.empty()) [[unlikely]]
      check_map_reads(who, address, bytes, site);
  }
  // Between the two of a store, threads may not write these bytes.
  void store_issued(const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void store_waited(const Fiber& who, uintptr_t address, size_t bytes, Site site);

  // Between the two of a lane's own copy (cp.async) nobody may touch these 16 bytes. Then it is a write like
  // others by this lane, at the moment at which it has waited.
  void lane_copy_issued(const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void lane_copy_waited(const Fiber& who, uintptr_t address, size_t bytes, Site site);
  void forget(uintptr_t address, size_t bytes);  // what happened to these bytes

  // Between the two of a warp's product (wgmma), and then until they have heard that it is complete, threads
  // may not write these 16 bytes. Returns when it was issued.
  Time product_issued(int warp);
  void product_reads(int warp, Time issued, uintptr_t address, Site site);
  Time latest_product(int warp) const { return products_[size_t(warp)]; }
  void product_waited(int warp, int of, Time issued);  // of a warp of its warpgroup, and all earlier ones

  // The epoch of the write that all of these 16 bytes hold; zero if this CTA has not written them, or not all
  // of them with the same write.
  uint64_t last_write(uintptr_t address);
  static Site site_of_write(uint64_t write) { return Site(write); }

 private:
  // What is known to have happened: of each warp everything up to `all`, and of some of its lanes everything
  // up to `some`, when that is later; of each warp's products and each mbarrier's copies those up to a time;
  // and in the same way what warps of other CTAs have written. (A warp that is not in the list has done
  // nothing.)
  struct RemoteWrites {
    Time all = 0, some = 0;
    unsigned lanes = 0;
  };
  struct Clock {
    std::array<Time, kMaxWarps> all = {};
    std::array<Time, kMaxWarps> some = {};
    std::array<unsigned, kMaxWarps> lanes = {};
    std::array<Time, kMaxWarps> products = {};
    std::vector<Time> copies;
    std::vector<RemoteWrites> remote_writes;  // by rank and warp
  };
  struct KnowledgeOfCta {
    Clock happened;
    Clock fenced;  // and lies behind a proxy fence
  };
  struct Knowledge : KnowledgeOfCta {    // of the own CTA
    std::vector<KnowledgeOfCta> others;  // of the cluster, by rank; empty: nothing
  };

  // Who accessed, when and where. From the top: the time; 0, the warp, whether all of it, the lane; the site.
  // Of a copy: the time; 1, the mbarrier; the site. Of a product: the same, its warp behind all mbarriers. Of
  // a write by another CTA: the same, the number of its warp in the cluster behind all those; the lane, the
  // number of the site. Zero: nobody. A lane's copy that is under way was written by the whole warp at a time
  // that nobody ever knows.
  using Epoch = uint64_t;
  static constexpr int kTimeShift = 44;
  static constexpr int kCopyShift = 43;
  static constexpr int kWarpShift = 38;
  static constexpr int kWholeWarpShift = 37;
  static constexpr int kWhoShift = 32;  // the lane, or the mbarrier
  static constexpr Time kNever = (1u << 20) - 1;
  static constexpr Time kMaxTime = kNever - 1;
  static constexpr int kRemoteLaneShift = 27;
  static constexpr int kFirstRemoteWarp = kMaxMbarriers + kMaxWarps;
  static_assert(kMaxWarps <= 32 && kFirstRemoteWarp + kMaxRemoteWarps <= 1 << (kCopyShift - kWhoShift));
  static Epoch thread_epoch(Time time, const Fiber& who, Site site) {
    return Epoch(time) << kTimeShift | Epoch(who.warp) << kWarpShift | Epoch(who.lane) << kWhoShift | site;
  }
  static Epoch warp_epoch(Time time, const Fiber& who, Site site) {
    return thread_epoch(time, who, site) | Epoch(1) << kWholeWarpShift;
  }
  static Epoch copy_epoch(Time time, int mbarrier, Site site) {
    return Epoch(time) << kTimeShift | Epoch(1) << kCopyShift | Epoch(mbarrier) << kWhoShift | site;
  }
  static Epoch on_way_epoch(const Fiber& who, Site site) { return warp_epoch(kNever, who, site); }
  static bool is_on_way(Epoch epoch) { return time_of(epoch) == kNever; }
  // By the warp as a whole. If it writes there again, that is silently taken to be by the same lanes.
  static bool is_write_of_warp(Epoch write, int warp) {
    return is_whole_warp(write) && !is_copy(write) && !is_on_way(write) && warp_of(write) == warp;
  }
  static bool is_write_of_lane(Epoch write, int warp) {
    return !is_whole_warp(write) && !is_copy(write) && warp_of(write) == warp;
  }
  // By the same thread, warp or mbarrier as well.
  static bool same_time(Epoch a, Epoch b) { return (a >> kWhoShift) == (b >> kWhoShift); }
  // This read, or one of the whole warp at the same time.
  static bool includes(Epoch read, Epoch other) {
    return same_time(read, other) || (is_whole_warp(read) && (read ^ other) >> kWarpShift == 0);
  }
  static Time time_of(Epoch epoch) { return Time(epoch >> kTimeShift); }
  static bool is_copy(Epoch epoch) { return ((epoch >> kCopyShift) & 1) != 0; }  // or what looks like one:
  // For a product, kMaxMbarriers and its warp. For a write by another CTA, kFirstRemoteWarp and its warp.
  static int mbarrier_of(Epoch epoch) {
    return int(epoch >> kWhoShift) & ((1 << (kCopyShift - kWhoShift)) - 1);
  }
  static bool is_product(Epoch epoch) {
    return is_copy(epoch) && mbarrier_of(epoch) >= kMaxMbarriers && mbarrier_of(epoch) < kFirstRemoteWarp;
  }
  static bool is_remote_write(Epoch epoch) {
    return is_copy(epoch) && mbarrier_of(epoch) >= kFirstRemoteWarp;
  }
  static int remote_lane_of(Epoch epoch) { return int(Site(epoch) >> kRemoteLaneShift); }
  static bool is_asynchronous(Epoch epoch) { return is_copy(epoch) && !is_remote_write(epoch); }
  static int warp_of(Epoch epoch) { return int(epoch >> kWarpShift) & 31; }
  static bool is_whole_warp(Epoch epoch) { return ((epoch >> kWholeWarpShift) & 1) != 0; }
  static int lane_of(Epoch epoch) { return int(epoch >> kWhoShift) & 31; }
  static bool is_by(const Fiber& who, Epoch epoch) {
    return !is_copy(epoch) && !is_whole_warp(epoch) && warp_of(epoch) == who.warp &&
           lane_of(epoch) == who.lane;
  }

  struct Cell {
    Epoch write = 0;
    Epoch reads[2] = {};
  };
  static constexpr int kBlockShift = 4;
  static constexpr size_t kBlockBytes = 1 << kBlockShift;
  static constexpr size_t kMaxCells = kBlockBytes / 2;  // of a block, unless it has one for each byte
  struct Block {
    Cell cell;                         // of all its bytes, unless they differ:
    uint8_t cell_shift = kBlockShift;  // then each 1 << cell_shift of them have a cell
  };
  struct Shadow {
    uintptr_t base = 0;
    std::vector<Block> blocks;
    std::vector<Cell> cells;
    std::vector<Cell> byte_cells;  // empty until somebody touches a byte: together they would fill caches

    void cover(uintptr_t begin, size_t bytes);
    Block& block_at(uintptr_t address) { return blocks[(address - base) / kBlockBytes]; }
    Cell* cells_of(const Block& block) {
      const size_t number = size_t(&block - blocks.data());
      return block.cell_shift == 0 ? &byte_cells[number * kBlockBytes] : &cells[number * kMaxCells];
    }
    void split(Block& block, int cell_shift);
  };
  struct Mbarrier {
    Knowledge collected;         // up to now
    Knowledge completed;         // up to the end of the last phase
    Knowledge remote_collected;  // the same from other CTAs
    Knowledge remote_completed;
    Time time = 0;                   // of its last load
    std::vector<Time> loads_on_way;  // when they were issued
  };
  // The last of a thread of another CTA.
  struct RemoteArrival {
    int rank;
    Epoch epoch;
    Location at;
  };
  // A warp of another CTA that writes here.
  struct RemoteWriter {
    Time time;              // of its last write here
    Time time_there = 0;    // the same, of its own times
    Epoch last[kWarpSize];  // access of each lane
  };
  // Of a lane, to where another lane of its warp has written.
  struct DoubtfulWrite {
    uintptr_t address;
    size_t bytes;
    unsigned char before[16];  // what the other lane has written
    Epoch earlier, now;
  };
  struct StoreSource {
    uintptr_t begin;
    size_t bytes;
    const Fiber* who;
    Site site;
  };

  struct MapRead {
    uintptr_t map;
    Epoch load;
  };

  Shadow& shadow_of(uintptr_t address);
  template <typename Visit>
  void for_each_block(uintptr_t address, size_t bytes, Visit visit);
  void access(const Fiber& who, uintptr_t address, size_t bytes, bool write, Epoch now);
  void access_blocks(const Fiber& who, uintptr_t address, size_t bytes, bool write, Epoch now);
  void access_cell(Cell& cell, uintptr_t address, const Fiber& who, const Clock& known, Epoch now,
                   bool write);

  bool knows(const Clock& clock, Epoch epoch) const;
  // The same, not inlined: for where it is seldom asked.
  [[gnu::noinline]] bool is_known(const Clock& clock, Epoch epoch) const;
  bool happened_before(Epoch earlier, const Fiber& who, const Clock& known) const;
  bool known_to_warp(Epoch earlier, int warp);
  // Of what happened at the address before, all of these lanes of the warp must know.
  void check_lanes(int warp, unsigned lanes, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                   bool write);
  void join(Clock& into, const Clock& from) const;
  void join(KnowledgeOfCta& into, const KnowledgeOfCta& from) const;
  void join(Knowledge& into, const Knowledge& from) const;
  // What a CTA of another rank knows becomes known here.
  void join_from(int rank, Knowledge& into, const Knowledge& from) const;
  // What a thread of whichever CTA of the cluster knows of this one.
  const KnowledgeOfCta& known_here(const Fiber& who) const;
  // What the thread knows: the same as its whole warp, until it alone learns more.
  const Knowledge& knowledge_of(const Fiber& who) const;
  Knowledge& own_knowledge_of(const Fiber& who);
  void add_own(Clock& clock, const Fiber& who) const;
  void release(Knowledge& to, const Fiber& who);
  void gather(int warp);
  void tick(int warp);
  void overwrite(uintptr_t address, size_t bytes, Cell cell);  // of one block
  void forget();
  void forget_everything();  // with the whole cluster

  void check_map_reads(const Fiber& who, uintptr_t address, size_t bytes, Site site) const;
  void check_store_sources(const Fiber& who, uintptr_t address, size_t bytes, Site site) const;
  // `known`: to the thread. What is not is a race, which has been reported.
  void check_fence(const Fiber& who, const KnowledgeOfCta& known, uintptr_t address, Epoch earlier,
                   bool earlier_write, Site site, bool overwrites, const char* who_does = "copy") const;
  // Returns only where the launch goes on after reports.
  [[gnu::cold]] void report(const Fiber& who, uintptr_t address, Epoch earlier, bool earlier_write, Epoch now,
                            bool write) const;
  std::string describe_thread_of(Epoch epoch) const;  // "warp 1 lane 5", perhaps of another CTA
  Site site_of_epoch(Epoch epoch) const;

  std::array<Time, kMaxWarps> times_ = {};
  std::array<Time, kMaxWarps> products_ = {};  // of a warp's last one
  std::array<Knowledge, kMaxWarps> warps_;     // what all lanes of a warp know
  std::vector<Knowledge> lanes_;               // what a lane knows, where own_ says so
  std::array<unsigned, kMaxWarps> own_ = {};
  std::array<Epoch, kMaxWarps> known_ = {};  // the last that all lanes of a warp turned out to know
  std::array<Knowledge, kNumBarriers> barriers_;
  std::vector<Mbarrier> mbarriers_;
  bool written_next_ = false;       // of the access that is looked at
  DoubtfulWrite doubtful_ = {};     // while has_doubtful_write
  std::vector<MapRead> map_reads_;  // of each map and mbarrier, the last
  std::vector<StoreSource> store_sources_;
  std::vector<Site> store_sites_;  // of bulk stores: their reads are the copy engine's own
  Shadow dynamic_shared_, static_shared_;
  int rank_ = 0;
  Knowledge cluster_collected_, cluster_completed_;
  std::vector<RemoteArrival> remote_arrivals_;
  std::vector<RemoteWriter> remote_writers_;  // by rank and warp
  std::vector<Site> remote_sites_;            // where such writes stand
  bool has_forgotten_ = false;                // since the CTA began
  Time latest_ = 0;                           // no time is beyond it
  Time before_ = 0;                           // up to here it was another CTA's
};

inline SharedRaces::Shadow& SharedRaces::shadow_of(uintptr_t address) {
  return address - uintptr_t(cta->smem) < kMaxSmemBytes ? dynamic_shared_ : static_shared_;
}

inline uint64_t SharedRaces::last_write(uintptr_t address) {
  Shadow& shadow = shadow_of(address);
  Block& block = shadow.block_at(address);
  const bool whole = block.cell_shift == kBlockShift;
  const std::span cells(whole ? &block.cell : shadow.cells_of(block), kBlockBytes >> block.cell_shift);
  const Epoch write = cells[0].write;
  const auto is_same = [&](const Cell& cell) { return cell.write == write; };
  return time_of(write) > before_ && std::all_of(cells.begin(), cells.end(), is_same) ? write : 0;
}

}  // namespace emulator
