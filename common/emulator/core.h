// Internals: the state of a running CTA, and what the parts of the runtime ask of each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/emulator/device.h"
#include "common/emulator/emulator.h"
#include "common/emulator/fiber.h"
#include "common/emulator/rules.h"

namespace emulator {

constexpr int kWarpSize = 32;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / kWarpSize;
constexpr int kMaxClusterSize = 8;
constexpr int kNumBarriers = 16;
constexpr size_t kMaxSmemBytes = 232448;  // 227 KiB, as on sm_90
constexpr size_t kSmemGuardBytes =
    1 << 20;  // inaccessible on both sides, so that a wild index is still named as one

enum class State : uint8_t {
  kReady,       // running, or could run
  kCollective,  // waits for other lanes of its warp
  kActiveMask,  // waits until no lane of its warp can run
  kBarrier,     // waits for other threads of its CTA
  kMbarrier,    // waits for a phase of an mbarrier
  kCluster,     // waits for other threads of its cluster
  kRegisters,   // waits for registers, which another warp must give back
  kWgmmas,      // waits for the other warps of its warpgroup to execute the same wgmmas
  kLogFull,     // waits until the other lanes' accesses are known, so that its log can be emptied
  kExited,
};

// A CUDA thread. What a collective needs lies in two cache lines: there are many threads.
struct alignas(64) Fiber {
  Context context;
  cuda::uint3 thread_idx;
  int warp;
  int lane;
  State state;
  bool registers_watched;  // its accesses to its stack are looked at; see AsyncProducts

  // What it does or waits for, when it is not plain code.
  unsigned mask;    // of a collective
  void* args;       // of a collective
  Execute execute;  // of a collective
  const char* op;
  Location at;
  int barrier_id;
  int mbarrier;  // its number
  int parity;    // of the phase
  int timeouts;  // how often it has waited in vain since the last phase that completed

  unsigned polls;  // see poll()
  // What it has last read as a volatile variable, and how often in a row: see headway.h.
  unsigned in_vain;
  uintptr_t polled;
  uint64_t polled_value;
  uintptr_t polled_at;   // a return address
  unsigned store_group;  // number of bulk groups that it has committed
};

// Bit i of every mask stands for lane i.
struct Warp {
  unsigned ready;    // could run
  unsigned waiting;  // in a collective
  unsigned log_full;
  unsigned asking;  // in __activemask
  unsigned exited;  // also set for lanes beyond the CTA's last thread

  unsigned live() const { return ~exited; }
};

struct Barrier {
  int arrived;     // threads, in the current round
  int count;       // that complete the round; kEveryone: all that have not exited
  unsigned warps;  // that took part
  int yes;         // whose predicate holds
  const char* op;  // of the round's first arrival
  Location at;     // the same
  Tally result;    // of the last round that was completed
};
constexpr int kEveryone = -1;

// The numbers of the bits that are set, the lowest first: for (const int lane : Bits{lanes}).
struct Bits {
  struct Iterator {
    unsigned rest;
    int operator*() const { return __builtin_ctz(rest); }
    void operator++() { rest &= rest - 1; }
    bool operator!=(Iterator other) const { return rest != other.rest; }
  };
  unsigned mask;
  Iterator begin() const { return {mask}; }
  Iterator end() const { return {0}; }
};

// splitmix64, by Sebastiano Vigna (public domain).
struct Random {
  uint64_t state = 0;
  uint64_t next() {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  bool one_in(int n) { return next() % unsigned(n) == 0; }
};

// A stretch of global memory, and what the race detector knows of it when it is on.
struct GlobalBlock;
struct GlobalCell;
struct GlobalUpdate;
struct GlobalRange {
  uintptr_t begin;
  size_t bytes;
  bool is_variable = false;  // of the program, and nobody has registered it
  GlobalBlock* blocks = nullptr;
  GlobalCell* cells = nullptr;
  GlobalUpdate* updates = nullptr;
};

// Which pairs of bytes of global memory a CTA has read in this stretch of its time, as far as there is room:
// the race detector knows these reads, and need not look at the same ones again. By blocks of 16 bytes.
class RecentReads {
 public:
  bool has(uintptr_t address, size_t bytes) const {
    const uint64_t entry = entries_[index(address)];
    const uint64_t pairs = pairs_of(address, bytes);
    return (entry & ~uint64_t(kAllPairs)) == key(address) && (entry & kAllPairs & pairs) == pairs;
  }
  // Whole pairs only: of a byte, the other one may lie outside of an allocation.
  void add(uintptr_t address, size_t bytes) {
    if ((address | bytes) % 2 != 0 || address % kBlock + bytes > kBlock) return;
    uint64_t& entry = entries_[index(address)];
    if ((entry & ~uint64_t(kAllPairs)) != key(address)) entry = key(address);
    entry |= pairs_of(address, bytes);
  }
  void forget() {
    if (++time_ <= kMaxTime) return;
    std::fill(entries_.begin(), entries_.end(), 0);
    time_ = 1;
  }

 private:
  static constexpr size_t kBlock = 16, kNumEntries = 1 << 15;
  static constexpr uint64_t kAllPairs = 0xff, kMaxTime = 0xfff;
  static size_t index(uintptr_t address) { return address / kBlock % kNumEntries; }
  uint64_t key(uintptr_t address) const { return uint64_t(address / kBlock) << 20 | time_ << 8; }
  // One bit each, also of those beyond the block, which no entry has.
  static uint64_t pairs_of(uintptr_t address, size_t bytes) {
    const size_t first = address % kBlock / 2, last = (address % kBlock + bytes - 1) / 2;
    return (uint64_t(2) << last) - (uint64_t(1) << first);
  }

  std::vector<uint64_t> entries_ = std::vector<uint64_t>(kNumEntries);  // block, time, pairs
  uint64_t time_ = 1;
};

// How a CTA stands to the others; see global_races.h. An epoch is a stretch of its time between two
// fences, or a bulk group, by its number in the launch.
struct GlobalOrder {
  uint32_t epoch = 0;
  uint32_t known = 0;                   // one that has happened before, the last that was looked up
  bool touched = false;                 // something, in this epoch
  std::vector<uint32_t> complete = {};  // bulk groups that have been waited for, since the last fence
  std::vector<uint32_t> fenced = {};    // epochs that lie before a fence, and are not published yet
  uint64_t acquired = 0;                // so many publications are known
  bool polls = false;                   // by volatile reads, whose success is not seen: it may know all
  bool previous_runs = false;           // the kernel before this one may: nobody has waited for its end
};

class AccessLog;      // counters.h
class SharedRaces;    // shared_races.h
class GlobalRaces;    // global_races.h
class TileLayouts;    // tile_layouts.h
class MbarrierTable;  // mbarrier_table.h
class CopyEngine;     // copy_engine.h
class LaneCopies;     // lane_copies.h
class RegisterPool;   // register_pool.h
class AsyncProducts;  // async_products.h
class Tracer;         // tracer.h
class WrittenPlaces;  // headway.h
class ReadExtents;    // headway.h
class Turns;          // cta_order.h
class SharedLayout;   // shared_layout.h
class HostThreads;    // scheduler.cpp
struct Cluster;       // cluster_state.h

struct Launch {
  cuda::dim3 grid;
  cuda::dim3 block;
  size_t smem_bytes;
  void (*body)(void*);
  void* arguments;
  size_t argument_bytes;
  int cluster_size;                     // CTAs that a host thread runs together; of steps, neighbours in x
  bool overlaps;                        // begins before the previous kernel has ended
  const ProgramLaunch* program;         // null: a step's
  std::vector<GlobalRange> memory;      // global; sorted, disjoint
  GlobalRaces* global_races = nullptr;  // null unless the race detector is on
  WrittenPlaces* written = nullptr;
  SharedLayout* layout = nullptr;  // null unless `program` is there
  Turns* turns = nullptr;          // null unless Options::shuffle
  HostThreads* host_threads = nullptr;
  // Of the clusters that were given up, the place of the one that started first.
  mutable std::atomic<uint64_t> failed_place = UINT64_MAX;
  mutable std::atomic<uint64_t> num_suspicions = 0;  // see headway.h

  int num_threads() const { return int(block.x * block.y * block.z); }
  uint64_t num_ctas() const { return uint64_t(grid.x) * grid.y * grid.z; }
  uint64_t num_clusters() const { return num_ctas() / uint64_t(cluster_size); }
};

// A CTA, and what the host thread that runs it keeps from CTA to CTA and from launch to launch. A host thread
// runs the CTAs of a cluster together, and has as many of these.
struct Cta {
  Cta();
  ~Cta();

  // Of the launch.
  const Launch* launch;
  Options options;
  int num_threads;
  int num_warps;
  size_t smem_bytes;

  // Of the CTA that runs now.
  uint64_t index;
  int num_live;
  int64_t ticks;  // see ticks()
  int running_warp;
  unsigned ready_warps;
  bool has_neighbours;  // in its cluster
  bool has_turn;        // see take_turn()
  uint64_t meetings;    // how often it has taken one
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barriers[kNumBarriers];
  Random random;
  Counters counters;
  GlobalOrder order;
  RecentReads recent_reads;

  Stacks stacks;
  unsigned char* smem;
  std::unique_ptr<AccessLog> log;
  std::unique_ptr<SharedRaces> races;
  std::unique_ptr<TileLayouts> layouts;
  std::unique_ptr<MbarrierTable> mbarriers;
  std::unique_ptr<CopyEngine> copies;
  std::unique_ptr<LaneCopies> lane_copies;
  std::unique_ptr<RegisterPool> registers;
  std::unique_ptr<AsyncProducts> products;
  std::unique_ptr<ReadExtents> reads;
  std::unique_ptr<Tracer> tracer;  // null unless the CTA that runs now is traced
  Cluster* cluster;                // that it is part of: every CTA is, if only of its own
  int rank;                        // in the cluster
  cuda::uint3 block_idx;

  Fiber& fiber(int warp, int lane) { return fibers[size_t(warp * kWarpSize + lane)]; }
};

// ---- Which addresses the running thread may touch, as the hooks' fast path sees it

// Addresses at which an access of up to 16 bytes is all right, without looking any further. One comparison,
// whatever the size of the access: the last 15 bytes of the memory behind it are left out.
struct Window {
  static constexpr uintptr_t kLongestAccess = 16;
  uintptr_t base = 0;
  uintptr_t span = 0;

  constexpr Window() = default;
  constexpr Window(uintptr_t begin, uintptr_t bytes)
      : base(begin), span(bytes < kLongestAccess ? 0 : bytes - (kLongestAccess - 1)) {}
  bool holds(uintptr_t address) const { return address - base < span; }
};

inline constexpr Window kEverything{0, UINTPTR_MAX};

struct Windows {
  // The running thread's own stack. Outside of kernels everything may be touched: the kernels' translation
  // units contain host code as well, and the linker may take the instrumented copy of an inline function for
  // all.
  Window stack = kEverything;
  // Only when nobody wants to know about each access; see set_windows() in scheduler.cpp.
  Window shared;
  Window global[2];  // the last two ranges touched: K and V, in most loops
  unsigned oldest_global = 0;
};
extern constinit thread_local Windows windows EMULATOR_FAST_TLS;

inline bool in_kernel() { return windows.stack.span != kEverything.span; }

// ---- The running thread

// Null outside of kernels.
extern constinit thread_local Cta* cta EMULATOR_FAST_TLS;
extern constinit thread_local Fiber* self EMULATOR_FAST_TLS;

// The one that the thread is part of: the current one, or another of its cluster.
Cta& cta_of(const Fiber& fiber);

// Has the running thread written what another lane of its warp has written, too? The race detector asks it
// when the value is there, which is where the thread next comes.
extern constinit thread_local bool has_doubtful_write EMULATOR_FAST_TLS;
void settle_doubtful_write();

// Lives while a kernel's thread runs the emulator's own code, which no hook must look at. Does not nest.
class InRuntime {
 public:
  InRuntime() {
    windows.stack = kEverything;
    if (has_doubtful_write) [[unlikely]]
      settle_doubtful_write();
  }
  ~InRuntime() {
    windows.stack = self->registers_watched ? Window() : Window(uintptr_t(self->context.stack), kStackBytes);
  }
};

// ---- scheduler.cpp
// In threadIdx and its like, which are thread-local as __shared__ variables are. clang has them hooked.
bool is_coordinate(uintptr_t address);
std::string describe_block(const Cta& which);     // "block (0, 0, 0)"
std::string describe_thread(const Fiber& fiber);  // "block (0, 0, 0) warp 1 lane 5"
// Blocks the running fiber until somebody wakes it. What it waits for is already written down in it.
void park(State state);
inline void wake_lanes(int warp, unsigned lanes) {
  if (lanes == 0) return;
  cta->warps[size_t(warp)].ready |= lanes;
  cta->ready_warps |= 1u << warp;
  for (const int lane : Bits{lanes}) cta->fiber(warp, lane).state = State::kReady;
}
inline void wake(const Fiber& fiber) { wake_lanes(fiber.warp, 1u << fiber.lane); }
// Lets another ready fiber run.
void yield();
// For where a thread may be spinning on memory that another one will change: yields now and then.
void poll();
// For where the running thread is about to meet other CTAs, by an atomic operation or a volatile access in
// global memory. Its CTA keeps the turn, if there are any, until it passes it on, takes the next one, or
// changes to another thread.
void take_turn();
void pass_turn();
// Have all clusters under way stood still since so many suspicions, and can no more start beside them?
// True for one of them, the first.
bool all_stand_still(uint64_t num_suspicions);
bool is_cancelled();

// ---- rendezvous.cpp
void reset_rendezvous();
void leave_rendezvous(Fiber& exited);  // a thread that exits may complete what others wait for
bool in_same_collective(const Fiber& a, const Fiber& b);  // of lanes of a warp that are in one each
// What the .aligned instructions (ldmatrix, mma.sync, WMMA) demand of their callers: that all 32 lanes of the
// warp execute the same one. To be called first by the instruction's execute(); `lanes` are those that came.
// The running thread need not be one of them: it may be one that exits and so completes what the others wait
// for.
void check_aligned(unsigned lanes);

// ---- warp_operations.cpp
void answer_active_mask(Warp& warp);  // to the lanes that ask

// ---- memory.cpp
// A plain access's place in the program, in 32 bits: its return address relative to the runtime's own code,
// which is linked into the same module. Ordered as the addresses are.
using Site = uint32_t;
inline uintptr_t site_anchor() { return uintptr_t(&site_anchor); }
inline Site site_of(uintptr_t pc) { return Site(pc - site_anchor()) ^ 0x80000000u; }
inline uintptr_t pc_of(Site site) { return site_anchor() + uintptr_t(int32_t(site ^ 0x80000000u)); }

// Where an access stands in the source: a return address into the kernel, or a location if that is zero.
struct Place {
  uintptr_t pc = 0;
  Location at = {};
};
inline Place place_of(Site site) { return {.pc = pc_of(site)}; }
enum class Space { kPrivate, kShared, kGlobal, kCluster };
// Before the running fiber touches global memory: reports it if the previous kernel may still run.
void check_previous_kernel(uintptr_t address, size_t bytes, bool write, const Place& place);
// What the running fiber is about to touch; reports what it must not. kPrivate stands for all that needs no
// further attention: its stack, the kernel's arguments, constants. kCluster: another CTA's shared memory.
Space check_access_elsewhere(uintptr_t address, size_t bytes, bool write, const Place& place);
inline Space check_access(uintptr_t address, size_t bytes, bool write, const Place& place) {
  const uintptr_t offset = address - uintptr_t(cta->smem);
  if (offset < cta->smem_bytes && bytes <= cta->smem_bytes - offset) return Space::kShared;
  return check_access_elsewhere(address, bytes, write, place);
}
void check_alignment(uintptr_t address, size_t bytes, bool write, const Place& place);
// A lane's part in a warp-wide instruction that accesses shared memory: checks it, and touch_shared() tells
// the race detector. To be called before collective(), outside of InRuntime; `pc` is a return address into
// the kernel.
void check_shared(const char* op, const void* address, size_t bytes, size_t alignment, bool write,
                  uintptr_t pc);
void touch_shared(const char* op, const void* address, size_t bytes, size_t alignment, bool write,
                  uintptr_t pc);
// The same for what a lane's own copy will read from global memory, or a matrix there; logs it, too.
void touch_global(const char* op, uintptr_t address, size_t bytes, bool write, uintptr_t pc);
// A volatile access.
void touch_volatile(uintptr_t address, size_t bytes, bool write, uintptr_t pc);
// Zeros, which cost memory only where they are touched, or all at once.
void* map_zeros(size_t bytes, bool at_once);
std::vector<GlobalRange>
global_memory();  // that kernels may touch: registered memory and __device__ variables
// Where this host thread has its static __shared__ variables, between others.
uintptr_t static_shared_begin();
size_t static_shared_bytes();
void poison_static_shared();
const GlobalRange* find_range(uintptr_t address);  // of the launch, the last that does not begin behind it
bool is_global(uintptr_t address, size_t bytes);
std::string describe_foreign_address(uintptr_t address);  // "0x..., 32 bytes after the end of an allocation"

// ---- report.cpp
bool same_place(Location a, Location b);
std::string describe(Location at);   // "steps/v01_scalar/kernel.cu:42"
std::string describe(uintptr_t pc);  // the same, from a return address and the debug information
std::string describe(Place place);
std::string describe_address(uintptr_t address);        // "0x7ffe10"
std::string describe_lanes(unsigned lanes);             // "lanes 0-3, 7"
std::string describe_warps(int first, unsigned which);  // "warps 4, 6": first + the numbers of the bits
std::string describe_shared(uintptr_t address);         // "smem + 8"
inline const char* kind_of_access(bool write) { return write ? "write" : "read"; }

// In the words of who reads the report: steps call the functions of common/, programs are PTX and CUDA alone.
inline const char* word(const char* in_common, const char* in_ptx) {
  return cta->options.reports == nullptr ? in_common : in_ptx;
}

[[noreturn]] void report_deadlock();  // no thread can proceed: who waits where, and for whom

// Has nobody reported this of these two places? Cheap, for where it may happen at every access. Where a
// launch ends with its first report, everything is news.
bool is_news(const Rule& rule, const Place& first, const Place& second = {});
// Never returns, and never runs the destructors of the frames that it leaves: no caller may hold anything
// that owns memory.
[[noreturn]] void abandon_cta();

// Writes a report on behalf of a thread, part by part. What has a type of its own is kept beside the text,
// too.
class ReportWriter {
 public:
  struct Address {
    std::string text;
  };
  struct Advice {};  // begins here

  ReportWriter(const ReportWriter&) = delete;
  ReportWriter& operator=(const ReportWriter&) = delete;

  [[gnu::cold]] ReportWriter& operator<<(const std::string& text);
  ReportWriter& operator<<(const Place& place);
  ReportWriter& operator<<(Location at) { return *this << Place{.at = at}; }
  ReportWriter& operator<<(const Address& address);
  ReportWriter& operator<<(Advice);
  template <std::integral T>
  ReportWriter& operator<<(T number) {
    return *this << std::to_string(number);
  }
  ReportWriter& also(Location at);  // a place in a part of the text that somebody else has written

 protected:
  ReportWriter(const Rule& rule, const Fiber& who);
  ~ReportWriter() = default;
  Report finish();

 private:
  Report report_;  // but for its text
  std::string text_;
  size_t advice_begins_ = std::string::npos;
  std::vector<std::string> others_;
};

// fail(bug, who) << "what happened at " << at; gives up the CTA. The message's temporaries are destroyed
// first, as they were made later.
class Failure : public ReportWriter {
 public:
  Failure(const Rule& rule, const Fiber& who) : ReportWriter(rule, who) {}
  // The text begins with an operation, where it stands, and more.
  Failure(Bug bug, const Fiber& who, const std::string& op, Location at, const std::string& more = ": ")
      : ReportWriter(rule_of(bug), who) {
    *this << op << " at " << at << more;
  }
  [[noreturn]] ~Failure();
};
[[gnu::cold]] inline Failure fail(const Rule& rule, const Fiber& who) { return Failure(rule, who); }
[[gnu::cold]] inline Failure fail(Bug bug, const Fiber& who) { return Failure(rule_of(bug), who); }

// The same for what a thread can go on after, which it does if Options::reports says so.
class Remark : public ReportWriter {
 public:
  Remark(const Rule& rule, const Fiber& who, bool is_advice = false)
      : ReportWriter(rule, who), is_advice_(is_advice) {}
  ~Remark();

 private:
  const bool is_advice_;  // and no bug: of interest to programs alone
};
[[gnu::cold]] inline Remark remark(const Rule& rule, const Fiber& who) { return Remark(rule, who); }

}  // namespace emulator
