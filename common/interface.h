// What crosses between a step and the program that calls it. Plain C++: no CUDA type appears here, so the
// harness, the emulator's build of a step and nvcc's build of the same step can all include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/call.h"

namespace flashsteps {

enum class BackendKind { kCuda, kEmulator };

std::string name(DType dtype);  // "fp32", "fp16", "bf16" or "e4m3"

// What launch() was asked for, and what the compiled kernel needs. The emulator has no registers to report.
struct LaunchRecord {
  unsigned grid[3], block[3];
  size_t smem_bytes;    // dynamic shared memory per CTA
  int registers = 0;    // per thread
  int spill_bytes = 0;  // local memory per thread: register spills and stack frame
  int ctas_per_sm = 0;  // occupancy
};

// The ladder's parts: tables and charts are grouped by them.
enum class Part { kMemory, kMmaSync, kHopper, kDecode, kFp8, kBackward };
constexpr const char* kPartNames[] = {"memory", "mma.sync", "Hopper",
                                      "decode", "FP8",      "backward"};  // by Part

// Prefill: many queries. Decode: a few queries against a long memory of keys and values.
enum class Purpose { kPrefill, kDecode };
constexpr const char* kPurposeNames[] = {"prefill", "decode"};  // by Purpose
Purpose purpose_of(const AttentionCall& call);                  // by its number of queries

// The GPUs that a step runs on, in nvcc's words: "80" is compute capability 8.0 or newer, "90a" is 9.0 and
// nothing else (wgmma and setmaxnreg exist there only).
struct Architecture {
  int sm;      // compute capability, 90 for 9.0
  bool exact;  // and nothing else
  constexpr explicit Architecture(std::string_view text) : sm(0), exact(text.ends_with('a')) {
    if (exact) text.remove_suffix(1);
    for (const char digit : text) {
      if (digit < '0' || digit > '9') throw std::invalid_argument("needs_sm is not like \"80\" or \"90a\"");
      sm = 10 * sm + (digit - '0');
    }
  }
  constexpr bool operator==(const Architecture&) const = default;
};

struct StepInfo {
  const char* title;            // the one idea, in a line
  const char* removes;          // the bottleneck of the step that it comes from, which this one takes away
  const char* after = nullptr;  // that step, by its full name; nullptr: the one before it on the ladder
  Part part = Part::kMemory;
  Purpose purpose = Purpose::kPrefill;
  DTypes dtypes = {DType::kFp16, DType::kBf16};
  int alignment_bytes = 0;  // of every row of every tensor; 0: the element's own
  // Which GPUs it runs on: see Architecture. The emulator runs every step. The build reads `needs_sm = "..."`
  // in the kernel's source and compiles for these GPUs alone.
  const char* needs_sm = "80";
  const char* spills = nullptr;  // why register spills are accepted; nullptr: they are a defect

  // The names of its configurations (tile sizes, stages, warps), where it has several, e.g. "128x64x3": one
  // word each, which the command line takes after an @. A configuration's number is its index here. `choose`
  // says which one a call gets; it may also look at the GPU (smem_bytes_per_sm() of common/launch.h).
  static constexpr int kMaxConfigurations = 16;
  const char* configurations[kMaxConfigurations] = {};
  int (*choose)(const AttentionCall& call) = nullptr;
  // Bytes of AttentionCall::workspace that the step needs for a call; nullptr: it never needs any.
  size_t (*workspace_bytes)(const AttentionCall& call) = nullptr;
  // The step needs AttentionCall::counters. They are zero before a call, and the step leaves them zero; a
  // counter that wraps around needs no kernel that resets it.
  bool uses_counters = false;
  bool fast = false;    // does it approximate? It takes only calls that allow it: AttentionCall::fast
  bool merges = false;  // can it merge its result with AttentionCall::earlier?
  bool pages = false;   // can it find K and V by AttentionCall::page_table?
  // Does it read K and V in e4m3 while q has another type? It takes only such calls:
  // AttentionCall::fp8_cache.
  bool fp8_cache = false;
  // Does it round q, k and v to e4m3? It takes only calls that ask for that: AttentionCall::quantize.
  bool quantizes = false;
  // Does it compute gradients? It takes only such calls: AttentionCall::backward.
  bool backward = false;
  // Why two runs of a call may differ in the rounding of sums; nullptr: they are the same, bit by bit.
  const char* varies = nullptr;
  bool no_lse = false;  // does it compute O alone? It takes only calls in which AttentionCall::lse is null
  // Why the step cannot compute a call, apart from what the fields above say, in words that follow the step's
  // name ("needs ..."); empty when it can. `call.configuration` is never kChosenByStep here. nullptr: it
  // computes all.
  std::string (*refuses)(const AttentionCall& call) = nullptr;

  constexpr int num_configurations() const {
    int count = 0;
    while (count < kMaxConfigurations && configurations[count] != nullptr) ++count;
    return count;
  }
};

struct Step {
  const char* name;  // the folder's name, e.g. "v02_smem_tiles"
  BackendKind backend;
  StepInfo info;
  // Launches the step on `stream` (a cudaStream_t; ignored by the emulator, which returns when it is done):
  // one kernel or several. Asynchronous on CUDA. Throws std::runtime_error when a launch itself fails.
  void (*run)(const AttentionCall& call, void* stream);
};

// Called by REGISTER_STEP before main(). Defined once, in common/interface.cpp.
bool register_step(const Step& step);
const std::vector<Step>& registered_steps();
const Step* find_step(std::string_view name, BackendKind backend);  // nullptr: there is none
bool keep_only_step(std::string_view name);  // false, and all stay, when there is none of this name

// What is wrong with these sizes, for any step; empty when nothing is. No size may be below `least`.
std::string size_error(int batch, int num_heads_q, int num_heads_kv, int64_t seqlen_q, int64_t seqlen_kv,
                       int head_dim, int least = 1);

// What is wrong with the sizes of a call's page table; empty when nothing is, or there is none.
std::string page_table_error(const AttentionCall& call);

// Why `step` cannot run `call`, naming the limit; empty when it can. Needs no launch and no memory. The
// backend checks the device's own limits (shared memory, architecture), and memory_refusal() the workspace
// and the counters, which the caller provides.
std::string refusal(const Step& step, const AttentionCall& call);

// Why the step does not run on a GPU of this compute capability (90 is 9.0); empty when it does.
std::string architecture_refusal(const StepInfo& info, const std::string& gpu, int compute_capability);

// The configuration that `call` gets: the one it names, or the step's choice. 0 where the step has only one.
int configuration_of(const StepInfo& info, const AttentionCall& call);

// Bytes of workspace that the step needs for this call.
size_t needed_workspace(const StepInfo& info, const AttentionCall& call);
// What is wrong with the counters of `call` for this step; empty when nothing is.
std::string counters_refusal(const StepInfo& info, const AttentionCall& call);
// What is wrong with the workspace or the counters of `call` for this step; empty when nothing is.
std::string memory_refusal(const StepInfo& info, const AttentionCall& call);

// The call with the strides that a kernel gets. The stride of an axis of extent 1 is never used to reach an
// element, so frameworks leave any number there. But kernels also compute addresses of rows beyond the last
// one with it, and these must be aligned; so such a stride becomes that of contiguous rows.
AttentionCall with_kernel_strides(AttentionCall call);

// Steps put heads and batches into y and z of the grid, which hold 65,535 CTAs each. A call with more is
// split into calls that fit, to be launched one after the other; a call that fits is returned as it is.
std::vector<AttentionCall> split_for_grid(const AttentionCall& call);
constexpr int kMaxGridYZ = 65535;

// While a recorder is set (per thread), launch() fills it in and launches nothing. This is how the program
// asks a step what it would launch, without a second description of it that could drift.
std::vector<LaunchRecord>*& launch_recorder();

}  // namespace flashsteps
