// Jobs in a process of their own, so that a step that crashes or hangs takes nothing else with it.
#pragma once

#include "harness/run/jobs.h"

namespace flashsteps {

// Has a job done in a worker, which is the program itself started anew, and calls on_event for every event in
// order. The worker is killed when no event comes in `timeout_seconds` of its own time: computed by one of
// its threads, or slept by all.
JobOutcome run_job_isolated(const nlohmann::json& request, double timeout_seconds, const EmitEvent& on_event);

// The worker's main(): request on standard input, events on file descriptor kEventFd.
constexpr const char* kWorkerFlag = "--worker";
int worker_main();

}  // namespace flashsteps
