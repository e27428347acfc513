// The kinds of reports. docs/findings.md has a section for each, under its name. Plain C++, as emulator.h.
#pragma once

#include <algorithm>
#include <iterator>

#include "common/emulator/emulator.h"

namespace emulator {

// Of a bug with several rules the first stands for all that have no rule of their own.
inline constexpr Rule kRules[] = {
    {"deadlock", Bug::kDeadlock, "No thread can go on: each waits for another one.",
     "Let all threads that a barrier counts reach it, and every wait have its arrival."},
    {"race-shared", Bug::kRace, "Two threads touch the same bytes of shared memory, and nothing orders them.",
     "Put a barrier between the two accesses, on every path."},
    {"race-global", Bug::kRace, "Two blocks touch the same bytes of global memory, and nothing orders them.",
     "Use an atomic operation, or split the work into two launches."},
    {"race-with-previous-kernel", Bug::kRace,
     "A kernel touches global memory while the kernel before it may still run.",
     "Call griddepcontrol.wait before the first access to global memory."},
    {"missing-wait", Bug::kRace,
     "A thread touches what an asynchronous operation that is under way reads or writes.",
     "Wait for the operation, and let a barrier or an mbarrier tell the other threads."},
    {"copy-too-early", Bug::kRace, "A bulk copy overwrites shared memory that a thread may still need.",
     "Issue the copy only after those threads have arrived where its issuer waits."},
    {"missing-proxy-fence", Bug::kProxyFence,
     "A bulk copy or a wgmma may not see what a thread has done in shared memory.",
     "Execute fence.proxy.async between the access and the barrier that the issuer waits at."},
    {"mbarrier-init-fence", Bug::kProxyFence,
     "A bulk copy uses an mbarrier, and no fence follows mbarrier.init.",
     "Execute fence.mbarrier_init.release.cluster, or fence.proxy.async, after mbarrier.init."},
    {"divergent-collective", Bug::kDivergence,
     "Threads that must execute an instruction together are at different ones.",
     "Move the instruction out of the branch, or give a mask of those lanes that reach it."},
    {"lane-not-in-mask", Bug::kBadMask, "A lane takes part in a warp function whose mask leaves it out.",
     "Give all lanes the mask of those that take part."},
    {"shuffle-width", Bug::kBadShuffle, "The width of a shuffle is no power of two up to 32.",
     "Give a width of 1, 2, 4, 8, 16 or 32."},
    {"barrier-misuse", Bug::kBadBarrier,
     "A barrier has an impossible number, or its threads do not agree on it.",
     "Let all threads of a round name the same barrier, the same count and the same operation."},
    {"out-of-bounds-shared", Bug::kSharedOutOfBounds, "An access lies beyond the block's shared memory.",
     "Check the index, and the bytes that the launch asks for."},
    {"out-of-bounds-global", Bug::kGlobalOutOfBounds, "An access lies in memory that no kernel may touch.",
     "Check the index, and the bytes of the allocation."},
    {"stack-overflow", Bug::kGlobalOutOfBounds, "A thread needs more stack than there is.",
     "End the recursion, or move large local variables to memory."},
    {"heap-misuse", Bug::kGlobalOutOfBounds,
     "A kernel frees memory that is free, or that no malloc() of a kernel has returned.",
     "Free each block once, in a kernel."},
    {"misaligned", Bug::kMisaligned, "The address of an access is not a multiple of its size.",
     "Align the variable, the offset and the stride to the size of the access."},
    {"trap", Bug::kTrap, "The kernel executes __trap().", "See why it does."},
    {"device-assert", Bug::kTrap, "The condition of an assert() in a kernel does not hold.",
     "See why the condition does not hold."},
    {"division-by-zero", Bug::kTrap, "An integer is divided by zero.", "Check the divisor."},
    {"launch-refused", Bug::kLaunch, "CUDA would refuse the launch, or nvcc the kernel.",
     "Keep the launch within the limits of the GPU."},
    {"invalid-operand", Bug::kLaunch, "An instruction has an operand that it cannot have.",
     "See which operands PTX allows."},
    {"mbarrier-misuse", Bug::kBadMbarrier,
     "An mbarrier is not initialised, was overwritten, or gets more arrivals than it counts.",
     "Initialise it once, let a barrier follow, and count the arrivals of a phase."},
    {"mbarrier-bytes", Bug::kBadExpectTx, "Copies bring other bytes to an mbarrier than were announced.",
     "Announce, in each phase, as many bytes as its copies bring."},
    {"exit-before-completion", Bug::kUnfinishedCopy,
     "A thread or block ends while an asynchronous operation still needs it.",
     "Wait for the operation before the end of the kernel."},
    {"register-count", Bug::kBadRegisters, "setmaxnreg asks for registers that there are not.",
     "Let the warpgroups' registers add up to no more than an SM has."},
    {"wrong-swizzle", Bug::kSwizzle, "A tile is read in another layout than the copy has given it.",
     "Use the tensor map's swizzle in the address or the descriptor."},
    {"bad-descriptor", Bug::kDescriptor, "wgmma cannot read what its descriptor says.",
     "See which layouts and offsets PTX allows."},
    {"wgmma-register-in-use", Bug::kRegisterInUse, "A thread touches registers of a wgmma that is under way.",
     "Commit the wgmma, and wait for its group, before the access."},
    {"missing-wgmma-fence", Bug::kRegisterFence,
     "A wgmma may not see what its threads have done with its registers.",
     "Execute wgmma.fence between the access and the wgmma."},
    {"cluster-misuse", Bug::kCluster, "A thread reaches a block of its cluster that is not there.",
     "Let a barrier of the cluster stand before the first access and after the last one."},
    {"variable-written", Bug::kVariable, "A step writes a variable that two calls at a time would share.",
     "Use the call's own workspace."},
};

constexpr const Rule& rule_named(std::string_view name) {
  return *std::find_if(std::begin(kRules), std::end(kRules),
                       [&](const Rule& rule) { return rule.name == name; });
}
constexpr const Rule& rule_of(Bug bug) {
  return *std::find_if(std::begin(kRules), std::end(kRules),
                       [&](const Rule& rule) { return rule.bug == bug; });
}

}  // namespace emulator
