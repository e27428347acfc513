// Jobs in a process of their own, so that a step that crashes or hangs takes nothing else with it.
#pragma once

#include <string>

#include "harness/run/jobs.h"

namespace flashsteps {

struct JobOutcome {
  std::string status;   // of the step at which it failed, as results files have it; empty: the job is done
  std::string message;  // "its process was killed by signal 11 (Segmentation fault)", ...
  bool done() const { return status.empty(); }
};

// Runs a job to its end, calling on_event for every event in order. Isolated: in a worker, which is the
// program itself started anew; it is killed when no event comes in `timeout_seconds` of its own time:
// computed by one of its threads, or slept by all. Not isolated: right here, without a time limit.
JobOutcome run_job_isolated(const nlohmann::json& request, double timeout_seconds, const EmitEvent& on_event);
JobOutcome run_job_in_process(const nlohmann::json& request, const EmitEvent& on_event);

// The worker's main(): request on standard input, events on file descriptor kEventFd.
constexpr const char* kWorkerFlag = "--worker";
int worker_main();

}  // namespace flashsteps
