// FlashSteps from C++: exact attention and its gradients, by any step of the ladder, on an NVIDIA GPU or on
// the CPU emulator. In CMake: find_package(flashsteps) and link flashsteps::flashsteps.
// harness/examples/attention.cpp shows it at work.
//
// What is computed, and what shapes, strides and types mean, is said at AttentionCall in common/call.h. Calls
// that cannot be carried out throw before anything is launched or written:
// - std::invalid_argument: the call is wrong, the step does not exist, or no step can run such a call. The
//   text names what is wrong.
// - std::runtime_error: there is no GPU, CUDA reports an error, or the emulator finds a bug in the kernel.
// A call without queries (batch, num_heads_q or seqlen_q is 0) has an empty result: no step runs, and the
// functions that return a step's name return an empty one. Its pointers may be null, but those of dk and dv,
// which become zero. All functions may be called from several threads.
//
// All of them compute gradients where AttentionCall::backward is set: o and lse, from a call without it, are
// inputs then, and so is d_o.
//
// A step with several configurations takes the one that AttentionCall::configuration names; else the one that
// `flashsteps tune` has kept for such calls on this GPU, if there is one; else it chooses itself. The first
// call reads the file: $FLASHSTEPS_TUNING, or flashsteps/tuning.json in $XDG_CACHE_HOME or ~/.cache. One that
// is of no use is ignored, with a line on standard error.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/call.h"

namespace flashsteps {

// Queues the call on `stream`, a cudaStream_t of the current device (nullptr: its default stream), and
// returns at once, with the name of the step that was launched. All pointers are that device's. Allocates no
// device memory and never synchronises (a step's first call loads its kernel), and so may be captured into a
// CUDA graph.
//
// `step` is a step's name, e.g. "v09_direct_rescale". Empty: the one that a rule takes for the fastest
// (docs/frameworks.md, "Which step computes"), or else the last of the ladder that can run the call on this
// device.
std::string_view attention(const AttentionCall& call, void* stream = nullptr, std::string_view step = {});

// Bytes of AttentionCall::workspace that attention() needs for this call on the current device: those of the
// step that it would take. 0 with most steps. A call without AttentionCall::counters gets a step that does
// without them, which is slower: allocate kCounterBytes once for each stream, zero them once (cudaMemset),
// and give them to every call on that stream. Calls in a CUDA graph that may run beside others need their
// own.
size_t workspace_bytes(const AttentionCall& call, std::string_view step = {});

// attention() for tensors in host memory: copies them to the current device and the result back, and waits.
// This one and the next find a workspace and counters themselves.
std::string_view attention_from_host(const AttentionCall& call, std::string_view step = {});

// The same for tensors in host memory, without a GPU: the emulator runs the step's kernel thread by thread on
// all cores, and this waits. Calls from several threads take turns, and fork() waits for them. When another
// thread sets `cancel`, the call soon ends with std::system_error(std::errc::operation_canceled); o and lse
// hold anything then.
std::string_view attention_on_emulator(const AttentionCall& call, std::string_view step = {},
                                       const std::atomic<bool>* cancel = nullptr);

// Why attention() cannot run here ("no NVIDIA driver", …); empty when it can.
std::string missing_gpu();

// A step of the ladder, as it describes itself.
struct StepDescription {
  std::string_view name;     // its folder's: "v02_smem_tiles"
  std::string_view title;    // the one idea, in a line
  std::string_view removes;  // the bottleneck of the step before that this one takes away
  std::string_view part;     // of the ladder: "memory", "mma.sync", "Hopper", "decode", "FP8" or "backward"
  std::string_view purpose;  // "prefill", or "decode": a few queries against many keys
  DTypes dtypes;             // element types that it computes with
  int alignment_bytes;       // of every row of q, k, v and o; 0: the element's own
  int needs_sm;              // oldest compute capability of a GPU that it runs on, 90 for 9.0
  bool needs_sm_exactly;     // and of no other, as code with wgmma
  std::vector<std::string_view> configurations;  // by AttentionCall::configuration; empty where there is one
  bool uses_counters;                            // it needs AttentionCall::counters
  bool pages;                                    // K and V may be in pages: AttentionCall::page_table
  bool fast;                                     // it approximates: AttentionCall::fast
  bool no_lse;                                   // it computes O alone: AttentionCall::lse is null
  bool fp8_cache;                                // K and V must be in e4m3: AttentionCall::fp8_cache
  bool quantizes;                                // it rounds q, k and v to e4m3: AttentionCall::quantize
  bool backward;                                 // it computes gradients: AttentionCall::backward
  std::string_view varies;                       // why two runs of a call may differ in the last bits
  std::string_view spills;                       // why it spills registers, where it does
  bool has_cuda;                                 // this build has it for GPUs; for the emulator it always has
};
std::vector<StepDescription> steps();  // in the order of the ladder

// A few queries of each sequence, and its cache of keys and values: what attention_with_kvcache() is asked.
// All tensors are contiguous, in the order that their comments say.
struct KvCacheCall {
  DType dtype;             // of q and o, and of the caches unless fp8_cache; not kE4m3
  bool fp8_cache = false;  // the caches are in e4m3, and dtype is kFp16 or kBf16
  int batch, num_heads_q, num_heads_kv, seqlen_q, head_dim;
  int seqlen_kv = 0;        // most keys of a sequence; with a page table 0 stands for max_pages * page_size
  const void* q = nullptr;  // [batch, seqlen_q, num_heads_q, head_dim], as o
  void* o = nullptr;
  const void *k_cache = nullptr, *v_cache = nullptr;  // [batch, seqlen_kv, num_heads_kv, head_dim], or in
                                                      // pages: [num_pages, page_size, num_heads_kv, head_dim]
  const int* cache_seqlens = nullptr;  // [batch]: how many keys a sequence has, those of its queries among
                                       // them. nullptr: each has seqlen_kv
  PageTable page_table = {};
  bool causal = true;
  float scale = 0;                         // of the scores; 0: 1 / sqrt(head_dim)
  int num_splits = 0;                      // as in AttentionCall
  Descale k_descale = {}, v_descale = {};  // with fp8_cache: of the caches
  float* lse = nullptr;                    // [batch, num_heads_q, seqlen_q], or not wanted
  void* workspace = nullptr;               // of workspace_bytes(as_attention(call)) bytes
  size_t workspace_bytes = 0;              // or more
  unsigned* counters = nullptr;  // as of attention(); no step does without them where K and V are in pages
};
// The same for the other functions: workspace_bytes(), attention_on_emulator(), … Whoever needs other strides
// sets them there. Throws as those do.
AttentionCall as_attention(const KvCacheCall& call);
inline std::string_view attention_with_kvcache(const KvCacheCall& call, void* stream = nullptr) {
  return attention(as_attention(call), stream);
}

// Views of contiguous tensors: [batch, heads, rows, head_dim] and [batch, rows, heads, head_dim]. An input's
// memory is only read.
inline TensorView bhsd_view(const void* data, int64_t heads, int64_t rows, int64_t head_dim) {
  return {const_cast<void*>(data), heads * rows * head_dim, rows * head_dim, head_dim};
}
inline TensorView bshd_view(const void* data, int64_t heads, int64_t rows, int64_t head_dim) {
  return {const_cast<void*>(data), heads * rows * head_dim, head_dim, heads * head_dim};
}

}  // namespace flashsteps
