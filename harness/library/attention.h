// attention() of flashsteps.h for callers that find memory when it is known which step runs.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/call.h"

namespace flashsteps {

// Memory of so many bytes for a step's workspace, or for its counters where gpu_counters() has none. It may
// hold anything.
enum class MemoryFor { kWorkspace, kCounters };
using FindMemory = std::function<void*(MemoryFor use, size_t bytes)>;

std::string_view queue_attention(const AttentionCall& call, void* stream, std::string_view step,
                                 const FindMemory& find);

// The first entry of a page table in host memory that names no page, of those that sequences have, as text that
// follows the table's name; empty when all do. The lengths are in host memory and have been checked.
std::string wrong_page(const AttentionCall& call);

// For a call that is to come, whose memory is not there yet: its pointers stand for their alignment alone.
// Throws as the functions of flashsteps.h where no step could run it, whatever the GPU; where it is known to
// run on the current device, also if that one refuses it. Returns how many bytes counters and behind them a
// workspace take on the current device; 0 where the step needs neither, without a GPU, or where that one will
// refuse the call.
size_t plan_attention(const AttentionCall& call, std::string_view step, bool on_current_device);

}  // namespace flashsteps
