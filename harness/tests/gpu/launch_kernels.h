// Small kernels for the tests of launching and timing. As steps, so that a Backend can run them; what they
// read of the call is said at each.
#pragma once

#include <time.h>

#include "common/interface.h"

namespace flashsteps {

const void* spin_kernel();    // for prepare_launch(); takes dynamic shared memory of any size
const void* narrow_kernel();  // its launch bounds allow 64 threads per CTA

extern const Step kSpin;          // one CTA is busy for 1000 * seqlen_q clocks
extern const Step kSharedMemory;  // seqlen_kv bytes of dynamic shared memory set to 1, their sum to lse[0]
extern const Step kGrid;          // grid (1, num_heads_q, batch), does nothing
extern const Step
    kFollow;  // a thread reads lse[0], lse[lse[0]] and so on, seqlen_kv times; the last to lse[1]

// What a call costs the host, whoever else runs there: the time that the calling thread has computed.
inline double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

}  // namespace flashsteps
