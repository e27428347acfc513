// What crosses between a step and the program that calls it. Plain C++: no CUDA type appears here, so the
// harness, the emulator's build of a step and nvcc's build of the same step can all include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/call.h"

namespace flashsteps {

enum class BackendKind { kCuda, kEmulator };

// What launch() was asked for, and what the compiled kernel needs. The emulator has no registers to report.
struct LaunchRecord {
  unsigned grid[3], block[3];
  size_t smem_bytes;    // dynamic shared memory per CTA
  int registers = 0;    // per thread
  int spill_bytes = 0;  // local memory per thread: register spills and stack frame
  int ctas_per_sm = 0;  // occupancy
};

struct StepInfo {
  const char* title;           // the one idea, in a line
  const char* removes;         // the bottleneck of the step before that this one takes away
  bool supports_fp32 = false;  // fp16 and bf16 are always supported
  int alignment_bytes = 0;     // of every row of q, k, v and o; 0: the element's own
  // The oldest compute capability of a GPU that it runs on, e.g. 90 for TMA; the emulator runs every step.
  // The build finds `needs_sm = 90` in the kernel's source, so write the number itself.
  int needs_sm = 80;
  const char* spills = nullptr;  // why register spills are accepted; nullptr: they are a defect
};

struct Step {
  const char* name;  // the folder's name, e.g. "v02_smem_tiles"
  BackendKind backend;
  StepInfo info;
  // Launches the step on `stream` (a cudaStream_t; ignored by the emulator, which returns when it is done).
  // Asynchronous on CUDA. Throws std::runtime_error when the launch itself fails.
  void (*run)(const AttentionCall& call, void* stream);
};

// Called by REGISTER_STEP before main(). Defined once, in harness/src/registry.cpp.
bool register_step(const Step& step);
const std::vector<Step>& registered_steps();

// What is wrong with these sizes, whoever is to compute with them; empty when nothing is.
std::string size_error(int batch, int num_heads_q, int num_heads_kv, int64_t seqlen_q, int64_t seqlen_kv,
                       int head_dim);

// Why `step` cannot run `call`, naming the limit; empty when it can. Needs no launch; the device's own limits
// (shared memory, architecture) are the backend's to check.
std::string refusal(const Step& step, const AttentionCall& call);

// Why a GPU of this compute capability (90 is 9.0) is too old for the step; empty when it is not.
std::string architecture_refusal(const StepInfo& info, const std::string& gpu, int compute_capability);

// While a recorder is set (per thread), launch() fills it in and launches nothing. This is how the program
// asks a step what it would launch, without a second description of it that could drift.
std::vector<LaunchRecord>*& launch_recorder();

}  // namespace flashsteps
