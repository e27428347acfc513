#include "harness/device/backend.h"

namespace flashsteps {

std::vector<LaunchRecord> Backend::describe(const Step& step, const AttentionCall& call) {
  std::vector<LaunchRecord> records;
  struct Recording {
    explicit Recording(std::vector<LaunchRecord>& into) { launch_recorder() = &into; }
    ~Recording() { launch_recorder() = nullptr; }
  } recording(records);
  step.run(call, nullptr);
  return records;
}

}  // namespace flashsteps
