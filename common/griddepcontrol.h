// Programmatic dependent launch: a kernel that launch_overlapping() of common/launch.h has launched begins
// while the one before it in the stream still runs. PTX ISA, "griddepcontrol". sm_90 and newer.
//
// On the emulator a kernel begins when the previous one is done, but a CTA that touches global memory before
// it has waited is reported.
#pragma once

#include "common/cuda.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

// Once a thread of every CTA of this kernel has called it, or the CTA has exited, the next kernel's CTAs
// begin wherever an SM has room for them.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#ifdef __CUDACC__
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Waits until the previous kernel has ended and all that it has written can be read. Before that, no thread
// may touch global memory. One thread may wait for the whole CTA: the others then wait for that thread at a
// barrier or an mbarrier.
__device__ __forceinline__ void griddepcontrol_wait() {
#ifdef __CUDACC__
  asm volatile("griddepcontrol.wait;" : : : "memory");
#else
  emulator::wait_for_previous_kernel();
#endif
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
