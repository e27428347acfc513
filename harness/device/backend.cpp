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

std::string Backend::refusal(const Step& step, const AttentionCall& call) {
  if (std::string reason = flashsteps::refusal(step, call); !reason.empty()) return reason;
  // Before anything of the kernel is asked for: a build may hold no code of it that this device can load.
  if (std::string reason = architecture_refusal(step.info); !reason.empty()) return reason;
  try {
    describe(step, call);
  } catch (const DeviceError&) {
    throw;  // the device is broken, which says nothing about the step
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace flashsteps
