// What one CTA did and when, warp by warp and copy by copy. Plain C++, for the harness; tracer.cpp makes it.
//
// The emulator has no clock. The times in a trace are nominal: they follow from the kernel and the costs
// below and from nothing else, whatever the order in which the emulator runs threads and finishes copies. A
// trace shows who waits for whom and what overlaps. It does not show how long anything takes on a GPU.
//
//   - Every lane has a time, which advances by the cost of what it executes. In a warp-wide instruction lanes
//     meet: they go on from the latest one's time. What is not listed below costs nothing; arithmetic in
//     registers is invisible to the emulator.
//   - Loads and stores of the kernel's own become warp instructions only where the warp meets (counters.cpp),
//     and are charged there: those of global memory all overlap, so a stretch of them has one latency, and
//     none if nothing is loaded.
//   - A thread that waits at a barrier goes on when the last one has arrived; a phase of an mbarrier
//   completes
//     when its last arrival has happened and its last copy has landed.
//   - The copies that a warp issues go through the engine one after the other, loads and stores apart; each
//     lands a latency after its last byte has.
//   - A wgmma costs its warp nothing. The products of a warp go through a tensor core one after the other,
//   and
//     a warp that waits for a group goes on when the group's last product is done.
//   - A lane's own copies (cp.async) are charged to its warp like stores, and land a latency after the lane
//     has asked for them.
//   - No warp is slowed down by another one, and no CTA by another one: what a GPU shares is free here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

// Costs of a warp instruction, in units. Their proportions are roughly those of an SM's quarter at work.
namespace trace_units {
constexpr int kMma = 8;              // per m16n8k16 product
constexpr int kWgmma = 5;            // the same as part of a wgmma, for each warp: N / 8 of them
constexpr int kSharedWavefront = 1;  // ldmatrix and plain accesses alike
constexpr int kGlobalSector = 1;
constexpr int kGlobalLatency = 400;  // per stretch of accesses with a load among them
constexpr int kExponential = 8;      // exp2f, expf
constexpr int kShuffle = 2;          // votes too
constexpr int kCopyIssue = 8;
constexpr int kCopyLatency = 400;  // also of cp.async
constexpr int kCopyBytesPerUnit = 32;
}  // namespace trace_units

struct TraceEvent {
  enum class Kind {
    kProducts,  // mma and the ldmatrix between them, as long as nothing else comes between
    kMemory,    // a stretch of plain accesses, some of them to global memory
    kWork,      // everything else that costs something
    kWait,      // at a barrier, for a phase of an mbarrier, for stores; end == begin: it passed at once
    kArrival,   // at an mbarrier; an instant
    kIssue,     // of a copy
    kCopy,      // from its issue until it has landed
    kWgmma,     // while a tensor core works on them; wgmmas of the same line
  };
  Kind kind;
  int warp;  // of a copy: the one that issued it
  uint64_t begin, end;

  // Where in the source: a burst's first instruction, the last exponential of other work, the operation
  // itself. Where plain accesses stand is not known: theirs is what the warp came to `after` them.
  const char* file = "";
  unsigned line = 0;
  bool after = false;
  const char* op = "";  // waits and arrivals

  uint64_t mma = 0, ldmatrix = 0;  // products
  uint64_t wgmma = 0;              // how many
  int barrier = -1;                // of a wait at bar.sync, its number
  int mbarrier = -1;               // of waits, arrivals, loads: its number, in order of initialisation
  uint64_t mbarrier_offset = 0;    // in shared memory
  uint64_t phase = 0;              // of the mbarrier; the parity is phase % 2
  bool initial = false;            // a wait for the phase before the first: there is nothing to wait for
  int64_t bytes = 0;               // copied, or announced with the arrival
  const void* global = nullptr;    // the tensor map's base; the first address of a stretch of accesses
  bool store = false;              // copies: from shared to global memory
  uint64_t shared_offset = 0;      // of a copy
  int origin[5] = {};              // of a copy, in the tensor map's coordinates
  unsigned box[5] = {};
  // Of the lanes' own copies, which have no box: all that lanes have asked for at the same place in the
  // source, as part of their group of this number.
  unsigned group = 0;
};

struct Trace {
  int num_warps = 0;               // 0: nothing was traced
  size_t smem_bytes = 0;           // of the CTA, as num_warps
  std::vector<TraceEvent> events;  // by beginning
};

// "steps/v10_tma_warpspec/kernel.cu:176"
std::string place_of(const TraceEvent& event);

}  // namespace emulator
