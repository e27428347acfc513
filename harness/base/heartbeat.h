// Signs of life from long work, so that a time limit ends what hangs and not what is slow.
#pragma once

#include <functional>

namespace flashsteps {

// Called a few times a second at most, from whichever thread reports progress.
void set_heartbeat(std::function<void()> beat);
// To be called wherever a bounded piece of work is done: a row, a CTA. Cheap.
void heartbeat();

}  // namespace flashsteps
