// What is done in a worker process: look at the device, validate steps, time steps.
//
// A job is a JSON request in, a stream of JSON events out. The same function runs in a worker (events go through a
// pipe) and in the program itself (--in-process and the single-step executables), so there is one behaviour.
//
//   probe     {"job":"probe","backend":B,"steps":[names],"problems":[...]}
//             -> {"event":"probe","backend":"cuda","no_cuda":why,"device":{...},"free_bytes":n,"peak_tflops":{dtype: x},
//                 "refusals":[[reason per step] per problem],"resources":[[...]]}
//   validate  {"job":"validate","backend":B,"tasks":[{"id":n,"step":s,"problem":{...}}],"modes":[...]}
//             -> per task {"event":"begin","id":n}, {"event":"prepared",...}, {"event":"done","id":n,"entry":{...}}
//   bench     {"job":"bench","backend":B,"problem":{...},"steps":{name: samples already taken},"rounds":n,"ceiling":bool}
//             -> {"event":"begin","step":s}, {"event":"method","step":s,...}, {"event":"sample","step":s,"ms":x,
//                 "sm_clock_mhz":n}; the ceiling's step name is "matmul" and its method event carries "flops"
#pragma once

#include <functional>

#include <nlohmann/json.hpp>

namespace flashsteps {

using EmitEvent = std::function<void(const nlohmann::json&)>;

// Throws std::runtime_error when the job as a whole cannot be done. Returns false when the device is lost and the
// remaining tasks need a new process.
bool run_job(const nlohmann::json& request, const EmitEvent& emit);

}  // namespace flashsteps
