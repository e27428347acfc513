// What is done in a worker process: look at the device, validate steps, time steps.
//
// A job is a JSON request in, a stream of JSON events out. The same function runs in a worker (events go
// through a pipe) and in the program itself (--in-process and under the name of a step), so there is one
// behaviour.
//
// probe
//   request: job, backend, steps (names), problems
//   events:  probe, with backend, no_cuda (why not, or ""), device, free_bytes, and per problem and step:
//            refusals (a reason or ""), resources
// validate
//   request: job, backend, tasks (step, problem, compare: whole outputs, with those of trusted_step(), for
//            problems that it passes), modes (of the emulator)
//   events:  per task, in their order, begin, done (result)
// bench
//   request: job, backend, problem (if there are steps), steps (name: samples already taken), rounds,
//            ceilings (as steps), cold_l2
//   events:  begin (step, or a ceiling: see backend.h), method (step, launches_per_sample, graph, l2; for a
//            ceiling also what, unit and work), sample (step, ms, sm_clock_mhz); of one that fails, begin is
//            the last
// trace
//   request: job, step, problem, cta
//   events:  trace (trace: a trace file, but for the problem)
//
// Every request may have tuning: the text of a tuning file (harness/device/tuning.h), by which steps then
// get their configurations.
//
// A worker adds {"event":"alive"}, from any thread, a few times a second. Its last event is finished, or
// where the job is not done failed (status, message): without either, something else has ended it.
#pragma once

#include <functional>
#include <string>

#include "harness/run/step_result.h"

namespace flashsteps {

using EmitEvent = std::function<void(const json&)>;

struct JobOutcome {
  Status status = Status::kPass;  // or of the step at which it failed
  std::string message;            // "its process was killed by signal 11 (Segmentation fault)", ...
  bool done() const { return status == Status::kPass; }
};

// Runs a job right here, without a time limit. "validate" leaves the remaining tasks to a new process when
// the device is lost.
JobOutcome run_job(const json& request, const EmitEvent& emit);

// Has a job done in a worker, which is the program itself started anew, and calls on_event for every event in
// order. The worker is killed when no event comes in `timeout_seconds` of its own time: computed by one of
// its threads, or slept by all.
JobOutcome run_job_isolated(const json& request, double timeout_seconds, const EmitEvent& on_event);

// The worker's main(): request on standard input, events on file descriptor kEventFd.
constexpr const char* kWorkerFlag = "--worker";
int worker_main();

}  // namespace flashsteps
