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

}  // namespace flashsteps
