#include "common/emulator/tests/support.h"

// Normally the harness's; the emulator's tests do without it.
namespace flashsteps {
std::vector<LaunchRecord>*& launch_recorder() {
  thread_local std::vector<LaunchRecord>* recorder = nullptr;
  return recorder;
}
}  // namespace flashsteps
