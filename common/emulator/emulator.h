// The emulator's controls: how to run kernels, memory that kernels may touch, what a run counted and what it
// found. Plain C++ without any CUDA name, so that the harness can include it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace emulator {

// When asynchronous copies take effect: at issue, as late as is legal, or at any legal moment.
enum class AsyncMode { kEarly, kLate, kRandom };

// What every byte of shared memory holds before a kernel writes it, and of a copy's destination while the
// copy is under way. No single value shows every mistake: fmaxf() swallows a NaN, a sum hides a small number.
// Runs that differ in nothing else differ in their results if a kernel reads what it has not written.
enum class Poison : unsigned char {
  kNan = 0xff,    // in every float type
  kLarge = 0x7b,  // 61,280 in FP16, 1.3e36 in BF16 and FP32
  kSmall = 0x04,  // 6.1e-5 in FP16, 1.6e-36 in BF16 and FP32
};

struct Counters;
struct Report;
struct Trace;

struct Options {
  AsyncMode async = AsyncMode::kEarly;
  Poison poison = Poison::kNan;
  // Seeded random order of CTAs, warps and lanes, preemption at plain shared accesses. Same seed, same
  // behaviour, whatever host_threads is: also of CTAs that meet in global memory by atomic operations and
  // volatile accesses. Only CTAs that race there may behave differently from run to run.
  bool shuffle = false;
  bool last_cta_first = false;   // without shuffle: CTAs start in descending order of their numbers
  bool race_detector = false;    // between threads in shared memory, between CTAs in global memory
  bool count = false;            // memory counters: requests, sectors, wavefronts
  uint64_t seed = 1;             // of all that is random
  int host_threads = 0;          // CTAs are spread over so many, or some more; 0: one per core
  void (*progress)() = nullptr;  // a sign of life, from any host thread: see headway.h
  std::vector<Counters>* each_launch = nullptr;  // receives the counters of every launch
  // Receives what CTA number trace_cta does, unless it has that of a kernel with more shared memory, or with
  // as much and as many warps; implies `count`.
  Trace* trace = nullptr;
  uint64_t trace_cta = 0;
  // Receives the reports of every launch, and advice. A launch then goes on after those that permit it, each
  // pair of places once, and only a refused one throws. Null: a launch ends with its first report, and throws
  // it.
  std::vector<Report>* reports = nullptr;
  // Is it a bug to write a variable that is declared __device__? Calls of the same kernel on two streams
  // share it.
  bool variables_are_constant = false;
  // What steps are told of the GPU, by which they choose tiles and share out work.
  int smem_bytes_per_sm = 233472;  // 228 KiB, as on sm_90
  // Few, so that the CTAs of a kernel that stay take several tiles each, even of a small problem.
  int num_sms = 4;
};

// Read at every launch.
Options& options();

// While such a flag is set, launches end where their threads next wait for each other, and throw
// std::system_error(std::errc::operation_canceled). The emulator stays usable. nullptr: there is none.
void cancel_by(const std::atomic<bool>* flag);

// Summed over all CTAs of a launch. Memory counters are per warp instruction and need Options::count;
// counters.cpp states the model.
struct Counters {
  uint64_t global_requests = 0;
  uint64_t global_sectors = 0;  // of 32 bytes
  uint64_t global_bytes = 0;    // that lanes asked for
  uint64_t shared_requests = 0;
  uint64_t shared_wavefronts = 0;
  uint64_t shared_wavefronts_ideal = 0;  // without bank conflicts
  uint64_t mma = 0;       // m16n8k16 products; a WMMA product or an m16n8k32 is two, as Hopper executes it
  uint64_t ldmatrix = 0;  // x4; a WMMA load of a 16-bit matrix is one
  uint64_t ldmatrix_wavefronts = 0;  // part of shared_wavefronts, as are the requests of ldmatrix
  uint64_t ldmatrix_wavefronts_ideal = 0;
  uint64_t wgmma = 0;               // once per warp, of any number of columns
  uint64_t wgmma_flops = 0;         // of all warps
  uint64_t wgmma_shared_bytes = 0;  // of their operands; B is read once for the four warps
  uint64_t barriers = 0;            // warp-level: one per warp that arrives
  uint64_t syncwarps = 0;
  uint64_t shuffles = 0;
  uint64_t votes = 0;           // and __match, __reduce
  uint64_t atomics = 0;         // one per lane
  uint64_t tma_loads = 0;       // boxes from global to shared memory
  uint64_t tma_load_bytes = 0;  // of the whole boxes, also where they reach beyond the tensor
  uint64_t tma_stores = 0;      // boxes from shared to global memory
  uint64_t tma_store_bytes = 0;
  uint64_t mbarrier_arrivals = 0;  // by threads; copies do not arrive
  uint64_t mbarrier_waits = 0;     // one per thread; of a loop around try_wait only the time that succeeds
  uint64_t switches = 0;           // between fibers: what the emulator itself did

  Counters& operator+=(const Counters& other);
  bool operator==(const Counters& other) const = default;
};

struct CounterField {
  const char* name;
  uint64_t Counters::*value;
};
std::span<const CounterField> counter_fields();

Counters last_counters();  // of the last launch, also of one that ended in a Report

// Global memory: 256-byte aligned, guard pages around it, filled with 0xff (NaN in every float type).
void* allocate(size_t bytes);
// The same without the fill: costs memory only where it is touched, and is zero there.
void* allocate_sparse(size_t bytes);
void release(void* memory);
// Lets kernels touch memory that the caller owns.
void register_memory(void* memory, size_t bytes);
void unregister_memory(void* memory);

enum class Bug {
  kDeadlock,           // nobody can proceed
  kRace,               // two accesses without synchronisation between them, at least one of them a write
  kDivergence,         // lanes of a warp meet at different warp-wide operations
  kSharedOutOfBounds,  // beyond what the launch asked for
  kGlobalOutOfBounds,  // memory that no kernel may touch
  kVariable,           // a variable that no call has for itself is written: Options::variables_are_constant
  kMisaligned,         // an access that is not aligned to its size
  kBadMask,            // a lane takes part in a warp-wide operation whose mask leaves it out
  kBadShuffle,         // an impossible width
  kBadBarrier,         // impossible barrier number or thread count, or two kinds of barrier in one
  kTrap,               // __trap(), or an integer divided by zero, of which CUDA leaves the result undefined
  kLaunch,             // a launch that CUDA would refuse
  kBadMbarrier,        // an mbarrier that is none, was overwritten, or gets more arrivals than it counts
  kBadExpectTx,        // copies bring more bytes to an mbarrier than were announced
  kUnfinishedCopy,     // a thread or CTA ends while copies still need its shared memory
  kProxyFence,         // the copy engine may not see what a thread has written: a fence is missing
  kBadRegisters,       // setmaxnreg gives back more than there is, or takes less
  kSwizzle,            // ldmatrix or wgmma takes a swizzled tile for one that is not, or lies in another way
  kDescriptor,         // wgmma cannot read what its descriptor says
  kRegisterInUse,      // a wgmma that is under way still needs the register
  kCluster,            // no such CTA in the cluster, or it has exited; or what no cluster may use here
  kRegisterFence,      // wgmma may not see what a thread has done with a register: a fence is missing
};

// What reports of one kind are filed under. rules.h has them all.
struct Rule {
  const char* name;   // also of a section in docs/findings.md
  Bug bug;            // those of the same bug: the first is what rule_of() takes
  const char* means;  // in one sentence: what is wrong
  const char* mend;   // and what to do about it
};

// What launch() throws when a kernel has a bug: a short paragraph that names block, warp, lane, what and
// where. The emulator stays usable.
struct Report : std::runtime_error {
  Report(const Rule& its_rule, const std::string& message)
      : std::runtime_error(message), bug(its_rule.bug), rule(&its_rule) {}
  Report(Bug which, const std::string& message);
  bool is_like(const Report& other) const;  // by its rule and the first two places, in either order

  Bug bug;
  const Rule* rule;
  // The same as the text says, where it says so.
  std::vector<std::string> places;  // "kernel.cu:42": where the bug shows, what it collides with, and others
  std::vector<unsigned> block;      // blockIdx: x, y, z
  std::vector<unsigned> thread;     // threadIdx
  int warp = -1, lane = -1;
  std::string address;  // "smem + 8204"
  std::string advice;   // the end of the text, or the rule's
  // Of those that Options::reports receives.
  bool goes_on = false;    // the CTA did so
  bool is_advice = false;  // and no bug
};
constexpr size_t kMostReports = 100;  // of a launch, and one that says that there are more

}  // namespace emulator
