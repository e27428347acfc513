// attention() of flashsteps.h for callers that find a workspace when it is known which step runs.
#pragma once

#include <functional>
#include <string_view>

#include "common/call.h"

namespace flashsteps {

// Bytes of memory for a step's workspace; zero before the call when `zero` says so, and left zero then.
using FindWorkspace = std::function<void*(size_t bytes, bool zero)>;

std::string_view queue_attention(const AttentionCall& call, void* stream, std::string_view step,
                                 const FindWorkspace& find);

// For a call that is to come, whose memory is not there yet: its pointers stand for their alignment alone.
// Throws as the functions of flashsteps.h where no step could run it, whatever the GPU. Returns how many bytes
// of workspace it needs on the current device; 0 without a GPU, or where that one will refuse the call.
size_t plan_attention(const AttentionCall& call, std::string_view step);

}  // namespace flashsteps
